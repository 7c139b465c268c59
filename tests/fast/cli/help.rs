//! Help of every command.

use rollout_protocol::exit::ExitCode;

use crate::cli::{DEADLINE, assert_printed, project};

/// Names of the commands that a help text lists.
fn commands(help: &str) -> Vec<String> {
    let mut lines = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let mut names = Vec::new();
    while let Some(line) = lines.next().filter(|line| !line.is_empty()) {
        // Longer descriptions continue with more blanks.
        if let Some(entry) = line.strip_prefix("  ").filter(|entry| !entry.starts_with(' ')) {
            names.extend(entry.split_whitespace().next().map(str::to_owned));
        }
    }
    names.retain(|name| name != "help");
    names
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
}
