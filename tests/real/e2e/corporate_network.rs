//! Runs behind a proxy that opens connections: proxies of this host, and a CA bundle.

use std::fs;
use std::path::Path;

use rollout_protocol::exit::ExitCode;
use rollout_tests::docker::DockerEngine;

use crate::e2e::{DEADLINE, assert_nothing_left, project};

const BUNDLE_JOB: &str = r#"
name: bundle
environment: {type: process}
artifacts: [/app]
agents:
  - name: a
    env: {CURL_CA_BUNDLE: /own.pem}
    execute: cat "$SSL_CERT_FILE" > seen.pem; echo "$PIP_CERT $CURL_CA_BUNDLE [$SSL_CERT_DIR]"
datasets: [{path: tasks}]
"#;

fn certificate() -> String {
    let made = rcgen::generate_simple_self_signed(vec!["ca.test".to_owned()]).expect("made");
    made.cert.pem()
}

#[test]
fn agent_and_verifier_have_the_ca_bundle_of_the_command_line() {
    let (project, bundle) = (project().write("job.yaml", BUNDLE_JOB), certificate());
    project.write_small_task(
        "grep -q BEGIN \"$SSL_CERT_FILE\" && cat \"$REQUESTS_CA_BUNDLE\" > /logs/verifier/seen.pem\n\
         echo 1 > /logs/verifier/reward.txt\n",
    );
    let dockerfile = "FROM debian:bookworm-slim\nWORKDIR /app\n";
    project.write_file("tasks/t/environment/Dockerfile", dockerfile);
    project.write_file("bundle.pem", &bundle);
    let run = project.rollout(&["run", "job.yaml", "--ca-bundle", "bundle.pem"]);
    let _ended = run.wait(DEADLINE).expect_code(ExitCode::Success);
    let trial = project.results("bundle").trial("a", "t");
    let text = |path: &str| fs::read_to_string(trial.directory.join(path)).expect(path);
    assert_eq!(text("command/stdout.txt"), "/rollout/ca-bundle.pem /own.pem []\n");
    assert_eq!(text("artifacts/app/seen.pem"), bundle);
    assert_eq!(text("logs/verifier/seen.pem"), bundle);
    assert_nothing_left(&project);
}

#[test]
fn ca_bundle_that_cannot_be_used_is_refused_before_anything_starts() {
    let project = project().write("job.yaml", BUNDLE_JOB).write("text.pem", "no certificate\n");
    let store = ["--store", "store"];
    let commands: [&[&str]; 5] = [
        &["run", "job.yaml"],
        &["tree", "run", "tree.yaml"],
        &["worker", "--nats", "nats://127.0.0.1:1", store[0], store[1]],
        &["serve"],
        &["up"],
    ];
    for command in commands {
        for (file, why) in [("none.pem", "No such file"), ("text.pem", "no certificate in PEM")] {
            let arguments = [command, &["--ca-bundle", file]].concat();
            let refused = project.rollout(&arguments).wait(DEADLINE).expect_code(ExitCode::Usage);
            let _named =
                refused.expect_stderr("--ca-bundle").expect_stderr(file).expect_stderr(why);
        }
    }
    let mut of_variable = project.command(&["run", "job.yaml"]);
    of_variable.env("ROLLOUT_CA_BUNDLE", "none.pem");
    let refused = project.start(of_variable).wait(DEADLINE).expect_code(ExitCode::Usage);
    let _named = refused.expect_stderr("none.pem");
    assert!(!project.path().join("jobs").exists(), "a run was started");
}

const PROXY_JOB: &str = r#"
name: proxies
environment: {type: docker, force_build: true}
agents:
  - name: a
    execute: cat /of-build; echo "$HTTP_PROXY $no_proxy"; echo "$http_proxy" >&2
datasets: [{path: tasks}]
"#;

/// Fails if a file of a directory contains `text`.
fn assert_nowhere(directory: &Path, text: &str) {
    for entry in fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        let kind = fs::symlink_metadata(&path).expect("there").file_type();
        if kind.is_dir() {
            assert_nowhere(&path, text);
        } else if kind.is_file() {
            let bytes = fs::read(&path).expect("readable");
            let is_text = |part: &[u8]| part == text.as_bytes();
            assert!(!bytes.windows(text.len()).any(is_text), "{} has it", path.display());
        }
    }
}

#[test]
fn environments_have_proxies_of_docker_whose_login_is_recorded_nowhere() {
    let Some(_engine) = DockerEngine::available() else { return };
    let project = project().write("job.yaml", PROXY_JOB);
    project.write_small_task("[ -n \"$HTTP_PROXY\" ] && echo 1 > /logs/verifier/reward.txt\n");
    let dockerfile = "FROM debian:bookworm-slim\nRUN echo \"${#HTTP_PROXY}\" > /of-build\n";
    project.write_file("tasks/t/environment/Dockerfile", dockerfile);
    // Beside the project, whose files must not have the password.
    let config = tempfile::tempdir().expect("a directory");
    let entry =
        "{\"httpProxy\": \"http://me:hunter2hunter2@p.test:1\", \"noProxy\": \"corp.test\"}";
    let text = format!("{{\"proxies\": {{\"default\": {entry}}}}}");
    fs::write(config.path().join("config.json"), text).expect("written");
    project.set_variable("DOCKER_CONFIG", config.path().to_str().expect("UTF-8"));

    let run = project.rollout(&["run", "job.yaml"]);
    let _ended = run.wait(DEADLINE).expect_code(ExitCode::Success);
    let trial = project.results("proxies").trial("a", "t");
    assert_eq!(trial.reward(), Some(1.0), "{:#}", trial.result);
    let text = |path: &str| fs::read_to_string(trial.directory.join(path)).expect(path);
    let length = "http://me:hunter2hunter2@p.test:1".len();
    let masked = "http://[redacted:HTTP_PROXY]@p.test:1";
    let stdout = text("command/stdout.txt");
    let first = format!("{length}\n{masked} corp.test,localhost,127.0.0.1,::1");
    assert!(stdout.starts_with(&first), "{stdout}");
    assert_eq!(text("command/stderr.txt"), format!("{masked}\n"));
    assert_nowhere(project.path(), "hunter2hunter2");

    let of_job = ["--set", "environment.proxy.http=http://other.test:2", "--name", "other"];
    let arguments = [["run", "job.yaml"].as_slice(), &of_job].concat();
    let run = project.rollout(&arguments).wait(DEADLINE);
    let _ended = run.expect_code(ExitCode::Success);
    let trial = project.results("other").trial("a", "t");
    let stdout = fs::read_to_string(trial.directory.join("command/stdout.txt")).expect("read");
    let expected = "http://other.test:2 corp.test";
    assert!(stdout.lines().nth(1).is_some_and(|line| line.starts_with(expected)), "{stdout}");
    assert_nothing_left(&project);
}
