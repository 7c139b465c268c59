//! Reports of tests that cannot run on this machine.
//!
//! A test cannot tell the test runner so while it runs: it passes. Its report is a line on standard
//! error and, if a variable names a file, a line in that file:
//!
//! ```text
//! PROGRAM NAME <tab> REASON             the test did not run
//! PROGRAM NAME <tab> REASON <tab> part  only a part of the test did not run
//! ```

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::path::Path;
use std::thread;

/// Variable with the path of the file.
const FILE_VARIABLE: &str = "ROLLOUT_TEST_IGNORED";

/// Variable with the full name of the test in a process that cargo-nextest started.
const NAME_VARIABLE: &str = "NEXTEST_TEST_NAME";

/// Variable with the name of the test program in such a process.
const PROGRAM_VARIABLE: &str = "NEXTEST_BINARY_ID";

/// How much of a test cannot run.
#[derive(Debug, Clone, Copy)]
enum IgnoredExtent {
    Test,
    Part,
}

/// Reports that this test cannot run here, with a reason such as `needs a Docker engine`.
///
/// # Panics
/// When the file of reports cannot be written.
pub fn report_ignored(reason: &str) {
    report(reason, IgnoredExtent::Test);
}

/// Reports that a part of this test cannot run here, with a reason. The test counts as run.
///
/// # Panics
/// When the file of reports cannot be written.
pub fn report_ignored_part(reason: &str) {
    report(reason, IgnoredExtent::Part);
}

fn report(reason: &str, extent: IgnoredExtent) {
    let name = std::env::var(NAME_VARIABLE).ok();
    let name = name.or_else(|| thread::current().name().map(str::to_owned));
    let name = name.unwrap_or_else(|| "a test".to_owned());
    // Tests of two programs may have one name.
    let name = format!("{} {name}", program());
    let said = match extent {
        IgnoredExtent::Test => "IGNORED",
        IgnoredExtent::Part => "IGNORED IN PART",
    };
    // A closed terminal must not fail the test. The test runner shows the output of `eprintln!` for
    // tests that fail only.
    drop(writeln!(io::stderr(), "{name}: {said}: {reason}"));
    if let Some(file) = std::env::var_os(FILE_VARIABLE) {
        append(file.as_ref(), &line(&name, reason, extent)).expect("the file of reports");
    }
}

/// Name of this test program.
fn program() -> String {
    let file = || {
        let path = std::env::current_exe().ok()?;
        Some(without_hash(path.file_name()?.to_str()?).to_owned())
    };
    std::env::var(PROGRAM_VARIABLE).ok().or_else(file).unwrap_or_else(|| "a program".to_owned())
}

/// The file name of a test program without the hash that cargo adds.
fn without_hash(file: &str) -> &str {
    let is_hash = |text: &str| text.len() == 16 && text.chars().all(|c| c.is_ascii_hexdigit());
    file.rsplit_once('-').filter(|(_, hash)| is_hash(hash)).map_or(file, |(name, _)| name)
}

/// The line of a report. Its columns have no control characters.
fn line(name: &str, reason: &str, extent: IgnoredExtent) -> String {
    let column = |text: &str| text.replace(|c: char| c.is_control(), " ");
    let part = match extent {
        IgnoredExtent::Test => "",
        IgnoredExtent::Part => "\tpart",
    };
    format!("{}\t{}{part}\n", column(name), column(reason))
}

/// Appends a line with one write, because many processes append to the file at the same time.
fn append(file: &Path, line: &str) -> io::Result<()> {
    OpenOptions::new().create(true).append(true).open(file)?.write_all(line.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_of_ignored_test_is_one_line_with_name_and_reason() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("ignored");
        append(&file, &line("p a::b", "needs\ta\nserver", IgnoredExtent::Test)).expect("written");
        append(&file, &line("q a::b", "needs root", IgnoredExtent::Part)).expect("written");
        let text = std::fs::read_to_string(&file).expect("there");
        assert_eq!(text, "p a::b\tneeds a server\nq a::b\tneeds root\tpart\n");
    }

    #[test]
    fn name_of_program_has_no_hash() {
        for (file, name) in [
            ("rollout_worker-d764f4b76fe0c07d", "rollout_worker"),
            ("real-d764f4b76fe0c07d", "real"),
            ("queue-overhead", "queue-overhead"),
        ] {
            assert_eq!(without_hash(file), name);
        }
        assert!(!program().is_empty());
    }
}
