//! Runs whose blobs are in S3, on a server in the test process.

use std::fs;
use std::process::Command;

use rollout_protocol::exit::ExitCode;
use rollout_tests::program::RunningProgram;
use rollout_tests::project::Project;
use rollout_tests::s3_server::S3Server;

use crate::e2e::{DEADLINE, assert_adds_up, project};

fn small_project() -> Project {
    project().tasks(["faults/passes"], &[]).job("faults.yaml", &[("PROVIDER", "process")])
}

fn start(project: &Project, arguments: &[&str]) -> RunningProgram {
    project.start(with_key(project.command(arguments)))
}

fn with_key(mut command: Command) -> Command {
    command.envs(S3Server::environment());
    command
}

#[test]
fn run_with_blobs_in_s3_resumes_and_exports_without_naming_it() {
    let (server, project) = (S3Server::start(), small_project());
    let url = server.store_url("team/runs");
    let ended = start(&project, &["run", "job.yaml", "--store", &url]).wait(DEADLINE);
    let results = project.results("faults");
    assert_adds_up(&results, 1);
    assert!(ended.stderr.is_empty() || !ended.stderr.contains("warn"), "{}", ended.stderr);
    assert!(!project.path().join("jobs/.rollout/blobs").exists(), "no local blobs");
    let reference = fs::read_to_string(results.path().join("store.json")).expect("written");
    assert!(reference.contains(&url), "{reference}");
    assert!(!reference.contains("secret"), "{reference}");

    let task_files = fs::read_to_string(results.trials()[0].directory.join("result.json"));
    let task_files = task_files.expect("written");
    fs::remove_dir_all(&results.trials()[0].directory).expect("removable");
    let again = start(&project, &["run", "job.yaml"]).wait(DEADLINE);
    assert_eq!(again.status.code(), ended.status.code(), "{}", again.stderr);
    let restored = fs::read_to_string(results.trials()[0].directory.join("result.json"));
    assert_eq!(restored.expect("written again"), task_files);

    let arguments = ["export", "jobs/faults", "--format", "jsonl"];
    let exported = start(&project, &arguments).wait(DEADLINE).expect_code(ExitCode::Success);
    assert!(exported.stdout.contains("passes"), "{}", exported.stdout);
}

#[test]
fn gc_of_store_in_s3_collects_removed_run_and_then_store() {
    let (server, project) = (S3Server::start(), small_project());
    let url = server.store_url("team");
    for name in ["one", "two"] {
        let arguments = ["run", "job.yaml", "--store", &url, "--name", name];
        let _ended = start(&project, &arguments).wait(DEADLINE).expect_code(ExitCode::Success);
    }
    let gc = |more: &[&str]| {
        let arguments = [&["gc", "--store", &url, "--grace", "0"], more].concat();
        start(&project, &arguments).wait(DEADLINE)
    };
    let kept = gc(&[]).expect_code(ExitCode::Success);
    assert!(kept.stdout.contains("removed 0 blobs"), "{}", kept.stdout);
    fs::remove_dir_all(project.results("one").path()).expect("removable");
    let _refused = gc(&[]).expect_code(ExitCode::Config).expect_stderr("jobs/one");
    let forced = gc(&["--force", "--json"]).expect_code(ExitCode::Success);
    assert!(!forced.stdout.contains(r#""removed":{"blobs":0"#), "{}", forced.stdout);
    let verify = ["blob", "verify", "--run", "jobs/two"];
    let _whole = start(&project, &verify).wait(DEADLINE).expect_code(ExitCode::Success);
    fs::remove_dir_all(project.results("two").path()).expect("removable");
    let last = gc(&["--force", "--remove-store"]).expect_code(ExitCode::Success);
    assert!(last.stdout.contains("removed the blob store"), "{}", last.stdout);
    assert!(!server.bucket().join("team/store.json").exists());
}

#[test]
fn store_that_refuses_or_is_silent_is_named_before_anything_starts() {
    let (server, project) = (S3Server::start(), small_project());
    let url = server.store_url("a");
    let run = |url: &str, secret: &str| {
        let mut command = with_key(project.command(&["run", "job.yaml", "--store", url]));
        command.env("AWS_SECRET_ACCESS_KEY", secret);
        project.start(command).wait(DEADLINE)
    };
    let wrong_key = run(&url, "wrong").expect_code(ExitCode::Config);
    let no_bucket = url.replace("s3://bucket/", "s3://other-bucket/");
    let no_bucket = run(&no_bucket, rollout_tests::s3_server::S3_SECRET);
    let no_bucket = no_bucket.expect_code(ExitCode::Config);
    let port = rollout_tests::net::free_port();
    let silent = run(&server.store_url_at(port, "a"), "any").expect_code(ExitCode::OutOfReach);
    let expected = [
        (wrong_key, "SignatureDoesNotMatch", "AWS_ACCESS_KEY_ID"),
        (no_bucket, "NoSuchBucket", "check the bucket"),
        (silent, "no answer", "check that the service runs"),
    ];
    for (ended, cause, hint) in expected {
        for text in [cause, hint, "s3://"] {
            assert!(ended.stderr.contains(text), "no {text:?} in {}", ended.stderr);
        }
        assert!(!ended.stderr.contains("rollout-test-secret"), "{}", ended.stderr);
    }
    assert!(!project.path().join("jobs/faults").exists(), "nothing was started");
}

/// A command without keys and profiles, whose machine's provider of credentials is at `metadata`.
fn start_without_key(project: &Project, url: &str, metadata: Option<u16>) -> RunningProgram {
    let mut command = project.command(&["run", "job.yaml", "--store", url]);
    for (name, _) in S3Server::environment() {
        command.env_remove(name);
    }
    for file in ["AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"] {
        command.env(file, project.path().join("no-such-file"));
    }
    match metadata {
        None => command.env("AWS_EC2_METADATA_DISABLED", "true"),
        Some(port) => {
            command.env("AWS_EC2_METADATA_SERVICE_ENDPOINT", format!("http://127.0.0.1:{port}"))
        }
    };
    project.start(command)
}

#[test]
fn store_without_credentials_is_refused_with_hint() {
    let (server, project) = (S3Server::start(), small_project());
    // The server refuses requests for credentials, as a machine does that may not have any.
    for (metadata, cause) in
        [(None, "there are no credentials"), (Some(server.port()), "cannot load credentials")]
    {
        let ended = start_without_key(&project, &server.store_url("a"), metadata).wait(DEADLINE);
        let ended = ended.expect_code(ExitCode::Config).expect_stderr(cause);
        let ended = ended.expect_stderr("AWS_ACCESS_KEY_ID");
        assert!(!ended.stderr.contains("WARN"), "no messages of the client: {}", ended.stderr);
    }
    assert!(!project.path().join("jobs/faults").exists(), "nothing was started");
}

#[test]
fn resumed_run_refuses_emptied_and_other_store_at_its_place() {
    let (server, project) = (S3Server::start(), small_project());
    let url = server.store_url("runs");
    let _ended = start(&project, &["run", "job.yaml", "--store", &url]).wait(DEADLINE);
    fs::remove_dir_all(server.bucket().join("runs")).expect("removable");
    let emptied = start(&project, &["run", "job.yaml"]).wait(DEADLINE);
    let emptied = emptied.expect_code(ExitCode::Failure);
    assert!(emptied.stderr.contains("there is no blob store at s3://"), "{}", emptied.stderr);
    assert!(!server.bucket().join("runs").exists(), "nothing was made in its place");

    let arguments = ["run", "job.yaml", "--name", "second", "--store", &url];
    let _another_store = start(&project, &arguments).wait(DEADLINE);
    let other = start(&project, &["run", "job.yaml"]).wait(DEADLINE);
    let other = other.expect_code(ExitCode::Failure);
    assert!(other.stderr.contains("it has the identity"), "{}", other.stderr);
}
