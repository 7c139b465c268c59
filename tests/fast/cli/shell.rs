//! Completions of shells and manual pages.

use std::fs;
use std::process::Command;

use rollout_protocol::exit::ExitCode;

use crate::cli::{DEADLINE, project};

#[test]
fn completions_know_commands_and_options() {
    let project = project();
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let exit = project.rollout(&["completions", shell]).wait(DEADLINE);
        let script = exit.expect_code(ExitCode::Success).stdout;
        for word in ["worker", "materialize", "listen"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
        if shell == "bash" {
            project.write_file("completions", &script);
            let mut bash = Command::new("bash");
            bash.args(["-c", ". ./completions && complete -p rollout"]).current_dir(project.path());
            let output = bash.output().expect("bash runs");
            let registered = String::from_utf8_lossy(&output.stdout);
            assert!(registered.contains("-F _rollout"), "{output:?}");
        }
    }
    let unknown = project.rollout(&["completions", "tcl"]).wait(DEADLINE);
    let _refused = unknown.expect_code(ExitCode::Usage);
}

#[test]
fn manual_pages_exist_for_every_command() {
    let project = project();
    let exit = project.rollout(&["man", "share/man1"]).wait(DEADLINE);
    let _written = exit.expect_code(ExitCode::Success);
    for (page, word) in [
        ("rollout", "rollout\\-run(1)"),
        ("rollout-run", "materialize"),
        ("rollout-worker", "drain"),
        ("rollout-tree-run", "trying ideas"),
        ("rollout-blob-verify", "store"),
    ] {
        let path = project.path().join("share/man1").join(format!("{page}.1"));
        let text = fs::read_to_string(path).expect("a page");
        assert!(text.contains(".TH ") && text.contains(word), "{page}:\n{text}");
    }
    project.write_file("file", "");
    let refused = project.rollout(&["man", "file"]).wait(DEADLINE);
    assert!(refused.stderr.contains("cannot write manual pages to file"), "{}", refused.stderr);
}
