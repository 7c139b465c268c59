//! Texts that the program prints, as reviewed snapshots: help of every command, common errors,
//! commands that read runs.
//!
//! `INSTA_UPDATE=always cargo test -p rollout-tests --test fast cli::` writes the snapshots anew;
//! review the difference.

mod agents;
mod errors;
mod help;
mod logs;
mod runs;
mod shell;

use std::fs;
use std::time::Duration;

use regex::Regex;
use rollout_tests::project::Project;

/// How long a command may take that starts nothing.
const DEADLINE: Duration = Duration::from_secs(120);

/// An empty project for the program under test.
fn project() -> Project {
    Project::new(env!("CARGO_BIN_EXE_rollout-under-test"))
}

/// Compares a text with the snapshot of this name in `tests/fast/cli/snapshots`.
#[track_caller]
fn assert_printed(name: &str, text: &str) {
    let mut settings = insta::Settings::clone_current();
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.bind(|| insta::assert_snapshot!(name, text));
}

/// A text without what differs from run to run.
fn normalized(project: &Project, text: &str) -> String {
    let root = project.path().to_string_lossy().into_owned();
    let real = project.path().canonicalize().expect("there").to_string_lossy().into_owned();
    let mut text = text.replace(&real, "<project>").replace(&root, "<project>");
    let host = fs::read_to_string("/proc/sys/kernel/hostname").expect("a host has a name");
    text = text.replace(&format!(" {}", host.trim()), " <host>");
    for (pattern, replacement) in [
        (r"\b[0-9a-f]{32,64}\b", "<id>"),
        (r"process \d+", "process <pid>"),
        (r"127\.0\.0\.1:\d+", "127.0.0.1:<port>"),
        (r"\d{4}-\d\d-\d\dT[0-9:.]+(Z|[+-]\d\d:\d\d)", "<time>"),
        (r"\b\d+(\.\d+)?(ms|s)\b", "<duration>"),
        (r"byte \d+ of \d+", "byte <n> of <n>"),
        (r"\d+ bytes", "<n> bytes"),
    ] {
        let pattern = Regex::new(pattern).expect("a pattern");
        text = pattern.replace_all(&text, replacement).into_owned();
    }
    text
}
