//! Time limits that environments keep by themselves.
//!
//! No provider ends a single command: [`Environment::kill_processes`](super::Environment::kill_processes)
//! also ends services that an ENTRYPOINT or an earlier command left in the background. A command of this
//! module ends alone.

use std::time::Duration;

use super::CommandExit;

/// Runs the command of its arguments, with `$0` as its time limit in seconds if the environment has a
/// `timeout` that takes a signal: that of coreutils, or of busybox since 1.30. An older one would take
/// the limit for the program. The former ends the process group of the command, the latter its first
/// process, as Docker does.
pub(super) const SCRIPT: &str = "\
if timeout -s KILL 5 true >/dev/null 2>&1; then exec timeout -s KILL \"$0\" \"$@\"; fi
exec \"$@\"";

/// Most seconds of a limit: some programs count them in 32 bits.
const MOST_SECONDS: u64 = (1 << 31) - 1;

/// Codes of a command at its limit: that of `timeout`, and that of the signal KILL.
const CODES_AT_LIMIT: [i32; 2] = [124, 137];

/// The program and arguments that run `argv` and end it alone after `limit`, in whole seconds rounded
/// up. Nothing ends it in an environment without a suitable `timeout`. The shell is not `bash`, which
/// would run the file of `BASH_ENV` once more.
pub fn limited(argv: &[String], limit: Duration) -> Vec<String> {
    let part = u64::from(limit.subsec_nanos() > 0);
    // 0 would be no limit.
    let seconds = limit.as_secs().saturating_add(part).clamp(1, MOST_SECONDS);
    let mut all = ["/bin/sh", "-c", SCRIPT].map(str::to_owned).to_vec();
    all.push(seconds.to_string());
    all.extend_from_slice(argv);
    all
}

/// Whether a command of [`limited`] that ended after this time was ended at its limit.
pub fn is_end_at_limit(exit: CommandExit, ran: Duration, limit: Duration) -> bool {
    ran >= limit && CODES_AT_LIMIT.contains(&exit.code)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::{Command, Output};
    use std::time::Instant;

    use super::*;

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|&word| word.to_owned()).collect()
    }

    fn run(argv: &[&str], limit: Duration, search: Option<&str>) -> Output {
        let all = limited(&words(argv), limit);
        let mut command = Command::new(&all[0]);
        command.args(&all[1..]);
        if let Some(search) = search {
            command.env("PATH", search);
        }
        command.output().expect("a shell")
    }

    #[test]
    fn command_beyond_its_limit_is_ended() {
        for argv in [&["sleep", "1000"][..], &["/bin/sh", "-c", "sleep 1000; exit 0"]] {
            let began = Instant::now();
            let ended = run(argv, Duration::from_millis(300), None);
            assert_eq!(ended.status.signal(), Some(9), "{argv:?} {ended:?}");
            let took = began.elapsed();
            assert!((1.0..60.0).contains(&took.as_secs_f64()), "{argv:?} {took:?}");
        }
    }

    #[test]
    fn command_within_its_limit_keeps_arguments_output_and_code() {
        let given = ["a b", "it's", "\"$HOME\"", "", "-s", "*", "two\nlines"];
        let script = "printf '<%s>' \"$@\"; echo no >&2; exit 7";
        let argv = [&["/bin/sh", "-c", script, "name"][..], &given].concat();
        let shown: String = given.iter().map(|word| format!("<{word}>")).collect();
        for search in [None, Some("/nonexistent")] {
            let ended = run(&argv, Duration::from_secs(60), search);
            assert_eq!(ended.status.code(), Some(7), "{search:?} {ended:?}");
            assert_eq!(String::from_utf8_lossy(&ended.stdout), shown, "{search:?}");
            assert_eq!(String::from_utf8_lossy(&ended.stderr), "no\n", "{search:?}");
        }
    }

    #[test]
    fn limit_is_rounded_up_to_seconds_that_every_program_takes() {
        for (limit, seconds) in [
            (Duration::ZERO, "1"),
            (Duration::from_millis(1000), "1"),
            (Duration::from_millis(1001), "2"),
            (Duration::MAX, "2147483647"),
        ] {
            let expected = words(&["/bin/sh", "-c", SCRIPT, seconds, "a", "b c"]);
            assert_eq!(limited(&words(&["a", "b c"]), limit), expected, "{limit:?}");
        }
    }

    #[test]
    fn end_at_limit_has_code_and_time_of_one() {
        let limit = Duration::from_secs(2);
        let is_end = |code, millis| {
            is_end_at_limit(CommandExit { code }, Duration::from_millis(millis), limit)
        };
        assert!(is_end(124, 2000) && is_end(137, 2001));
        assert!(!is_end(137, 1999) && !is_end(1, 3000) && !is_end(0, 3000));
    }
}
