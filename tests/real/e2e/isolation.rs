//! Secrets are in no stored file, and a sandbox shows only the files of its task.

use std::fs;
use std::path::Path;
use std::process::Command;

use rollout_protocol::exit::ExitCode;
use rollout_tests::docker::DockerEngine;

use crate::e2e::{DEADLINE, assert_nothing_left, project};

/// A value that does not occur by chance, with characters that JSON and URLs escape.
const SECRET: &str = "sk-test/7f3a\"Qz+91&wXeV==end";

#[test]
fn secret_is_stored_nowhere_on_docker() {
    let Some(_engine) = DockerEngine::available() else { return };
    assert_secret_not_kept("docker");
}

#[test]
fn secret_is_stored_nowhere_in_sandbox() {
    assert_secret_not_kept("process");
}

#[test]
fn secret_on_command_line_is_stored_nowhere() {
    let option = format!("--agent-env=SECRET={SECRET}");
    assert_kept_nowhere("process", |command| {
        command.arg(&option);
    });
}

fn assert_secret_not_kept(provider: &str) {
    assert_kept_nowhere(provider, |command| {
        command.env("ROLLOUT_TESTS_SECRET", SECRET);
    });
}

fn assert_kept_nowhere(provider: &str, give: impl Fn(&mut Command)) {
    let project =
        project().tasks(["agents/secret"], &[]).job("secret.yaml", &[("PROVIDER", provider)]);
    let mut command = project.command(&["run", "job.yaml"]);
    give(&mut command);
    let _ended = project.start(command).wait(DEADLINE).expect_code(ExitCode::Success);

    let trial = project.results("secret").trial("leaky", "secret");
    assert_eq!(trial.reward(), Some(1.0), "the agent had it: {:#}", trial.result);
    assert!(trial.text("command/stdout.txt").expect("captured").starts_with("out: "));
    let json = serde_json::to_string(SECRET).expect("JSON");
    let forms = [SECRET.to_owned(), json.trim_matches('"').to_owned(), hex(SECRET)];
    let mut found = Vec::new();
    files_with_any(project.path(), &forms, &mut found);
    assert_eq!(found, Vec::<String>::new(), "the secret is in these files");
    assert_nothing_left(&project);
}

fn hex(text: &str) -> String {
    text.bytes().map(|byte| format!("{byte:02x}")).collect()
}

/// Names of the files below `directory` that contain one of the forms.
fn files_with_any(directory: &Path, forms: &[String], found: &mut Vec<String>) {
    for entry in fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_symlink() {
            continue;
        }
        if path.is_dir() {
            files_with_any(&path, forms, found);
        } else if let Ok(content) = fs::read(&path) {
            let has = |form: &String| content.windows(form.len()).any(|w| w == form.as_bytes());
            if forms.iter().any(has) {
                found.push(path.to_string_lossy().into_owned());
            }
        }
    }
}

#[test]
fn sandbox_shows_only_files_of_task() {
    let project = project().tasks(["agents/nosy"], &[]);
    let values = [("MARK", project.mark()), ("PROJECT", project.path().display().to_string())];
    let values = values.each_ref().map(|(key, value)| (*key, value.as_str()));
    let project = project.job("nosy.yaml", &values);
    let _ended =
        project.rollout(&["run", "job.yaml"]).wait(DEADLINE).expect_code(ExitCode::Success);
    let trial = project.results("nosy").trial("nosy", "nosy");
    assert_eq!(trial.reward(), Some(1.0), "it saw: {:?}", trial.text("logs/agent/seen.txt"));
    assert_nothing_left(&project);
}
