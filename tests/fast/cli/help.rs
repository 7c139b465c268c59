//! Help of every command.

use rollout_protocol::exit::ExitCode;

use crate::cli::{DEADLINE, assert_printed, project};

/// Names of the commands that a help text lists, in groups.
fn commands(help: &str) -> Vec<String> {
    let lines = help.lines().skip_while(|line| !line.starts_with("Usage:")).skip(1);
    // Options and arguments begin with a sign, and longer descriptions continue with more blanks.
    let entry = |line: &str| {
        let entry = line.strip_prefix("  ")?.split_whitespace().next()?.to_owned();
        let is_name = line[2..].starts_with(|first: char| first.is_ascii_lowercase());
        is_name.then_some(entry)
    };
    lines.filter_map(entry).filter(|name| name != "help").collect()
}

#[test]
fn help_of_every_command_is_as_reviewed() {
    let project = project();
    let mut waiting = vec![Vec::new()];
    while let Some(path) = waiting.pop() {
        let words: Vec<&str> = path.iter().map(String::as_str).chain(["--help"]).collect();
        let exit = project.rollout(&words).wait(DEADLINE).expect_code(ExitCode::Success);
        for name in commands(&exit.stdout) {
            let mut path: Vec<String> = path.clone();
            path.push(name);
            waiting.push(path);
        }
        let name = [&["help".to_owned()], path.as_slice()].concat().join("_");
        assert_printed(&name, &exit.stdout);
    }
    let summary = project.rollout(&["run", "-h"]).wait(DEADLINE).expect_code(ExitCode::Success);
    assert_printed("help_run_summary", &summary.stdout);
    assert!(summary.stdout.lines().count() <= 60, "{}", summary.stdout);
}

#[test]
fn short_help_of_up_says_how_it_ends() {
    let help = project().rollout(&["up", "-h"]).wait(DEADLINE).expect_code(ExitCode::Success);
    for said in ["foreground until Ctrl-C", "`rollout up &`"] {
        assert!(help.stdout.contains(said), "{}", help.stdout);
    }
}
