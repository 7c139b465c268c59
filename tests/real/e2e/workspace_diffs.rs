//! Changes of a directory of an environment, from a job file to the files of a trial.

use std::fs;
use std::process::Command;

use rollout_protocol::exit::ExitCode;
use rollout_protocol::workspace_diff::{ChangeKind, FilesOmission, WorkspaceDiff};
use rollout_tests::docker::DockerEngine;
use rollout_tests::project::Project;
use rollout_tests::results;

use crate::e2e::{DEADLINE, assert_adds_up, project};

/// Writes the directory as it is before the agent: below `$1`.
const BEFORE: &str = r#"mkdir -p "$1/src" "$1/old" && cd "$1" &&
    printf 'one\ntwo\nthree\n' >src/main && printf 'a\0b' >data && printf 'x\n' >old/gone &&
    printf 'same\n' >kept && printf '#!/bin/sh\n' >run && ln kept linked && ln -s kept link"#;

/// The changes of the agent.
const CHANGES: &str = r#"cd /app && printf 'one\n2\nthree\n' >src/main && rm -r old && chmod 755 run &&
    printf 'c\0d' >data && mkdir new && printf 'new' >new/file && ln -s ../kept new/inside &&
    ln -s /etc/passwd new/outside && ln kept new/same && mkfifo pipe && echo y >/elsewhere"#;

/// A job that keeps the changes of `/app`, in an image without Git.
fn job(provider: &str) -> Project {
    let before = BEFORE.replace("$1", "/app");
    let text = format!(
        "name: diffs\nenvironment: {{type: {provider}}}\n\
         artifacts: [{{changes_of: /app, exclude: ['*.log']}}]\nagents:\n- name: works\n  \
         install: |\n    {before}\n  execute: |\n    {CHANGES}\n    echo l >/app/x.log\n\
         datasets: [{{path: tasks}}]\n"
    );
    project()
        .write("job.yaml", &text)
        .write("tasks/t/task.toml", "version = '1.0'\n")
        .write("tasks/t/instruction.md", "Work.\n")
        .write("tasks/t/environment/Dockerfile", "FROM debian:bookworm-slim\n")
        .write("tasks/t/tests/test.sh", "echo t >/app/tested; echo 1 >/logs/verifier/reward.txt\n")
}

fn assert_changes_are_kept(provider: &str) {
    let project = job(provider);
    let run = project.rollout(&["run", "job.yaml"]).wait(DEADLINE);
    let _passed = run.expect_code(ExitCode::Success);
    let results = project.results("diffs");
    assert_adds_up(&results, 1);
    let trial = results.trial("works", "t");
    assert_eq!(trial.reward(), Some(1.0), "{:#}", trial.result);
    let diff = trial.directory.join("artifacts/workspace-diff/app");
    let document = results::json(&diff.join("changes.json")).expect("a document");
    let document: WorkspaceDiff = serde_json::from_value(document).expect("its form");
    let kinds: Vec<_> = document.changes.iter().map(|c| (c.path.as_str(), c.change)).collect();
    use ChangeKind::{Added, Deleted, ModeChanged, Modified};
    let mut expected = vec![
        ("data", Modified),
        ("new", Added),
        ("new/file", Added),
        ("new/inside", Added),
        ("new/outside", Added),
        ("new/same", Added),
        ("old", Deleted),
        ("old/gone", Deleted),
        ("pipe", Added),
        ("run", ModeChanged),
        ("src/main", Modified),
    ];
    if provider == "process" {
        // A sandbox packs files, directories and links only.
        expected.retain(|(path, _)| *path != "pipe");
    }
    assert_eq!(kinds, expected, "{document:#?}");
    assert!(!document.truncated, "{document:#?}");
    let omitted = document.changes.iter().filter_map(|c| c.not_in_files);
    let omitted: Vec<_> = omitted.filter(|why| *why != FilesOmission::Special).collect();
    assert_eq!(omitted, [FilesOmission::LinkOutside]);

    // The patch and the files give the state after the agent.
    let shell = |script: &str| {
        let script = format!("set -e\n{script}");
        let mut command = Command::new("bash");
        command.args(["-c", &script, "bash"]).arg(project.path().join("copy")).arg(&diff);
        let output = command.env("HOME", project.path()).output().expect("it runs");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    shell(BEFORE);
    shell(r#"cd "$1" && GIT_CEILING_DIRECTORIES=$(dirname "$1") git apply "$2/changes.patch""#);
    let text = |name: &str| fs::read_to_string(project.path().join("copy").join(name));
    assert_eq!(text("src/main").expect("patched"), "one\n2\nthree\n");
    assert!(text("old/gone").is_err() && text("run").is_ok());
    shell(
        r#"test -x "$1/run" && tar -xf "$2/files.tar" -C "$1" && test "$(cat "$1/new/same")" = same"#,
    );
    assert_eq!(fs::read(project.path().join("copy/data")).expect("unpacked"), b"c\0d");

    let run = results.path().to_string_lossy().into_owned();
    let shown = project.rollout(&["show", &run, "works", "--json"]);
    let shown = shown.wait(DEADLINE).stdout;
    assert!(shown.contains("artifacts/workspace-diff/app"), "{shown}");
}

#[test]
fn changes_in_sandbox_are_kept_as_list_patch_and_files() {
    assert_changes_are_kept("process");
}

#[test]
fn changes_in_container_without_git_are_kept_as_list_patch_and_files() {
    let Some(_engine) = DockerEngine::available() else { return };
    assert_changes_are_kept("docker");
}
