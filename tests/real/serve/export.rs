//! `rollout export` of runs on a server.

use std::fs;

use rollout_protocol::exit::ExitCode;
use rollout_tests::project::Project;
use serde_json::{Value, json};

use crate::serve::{DEADLINE, DaemonProcess, project, submission, submitted};

/// Checks that an export names neither the server's directory nor one for the export.
#[track_caller]
fn assert_no_directory(daemon: &DaemonProcess, path: &str, project: &Project) {
    let archive = daemon.client.get(path).expect(200).body;
    let has = |text: &str| archive.windows(text.len()).any(|found| found == text.as_bytes());
    let state = project.path().join("state").display().to_string();
    assert!(!has(&state) && !has(".tmp-export"), "{}", String::from_utf8_lossy(&archive));
    assert!(has("result.json") && has("\"trial_uri\""), "the documents of Harbor");
}

#[test]
fn export_of_a_run_on_a_server_equals_that_of_its_directory() {
    let project = project().tasks(["slow/second"], &[]);
    let daemon = DaemonProcess::start(&project, &[]);
    let id = submitted(&daemon.client, &submission(&project, 2));
    let early = format!("/v1/runs/{id}/export?format=csv");
    let early = daemon.client.get(&early);
    assert!(matches!(early.status, 200 | 409), "{}", early.text());
    daemon.wait_for(&id, &["completed"]);
    let url = format!("{}/v1/runs/{id}", daemon.url());
    let directory = format!("state/jobs/{id}");
    let export = |from: &str, more: &[&str]| {
        let words = [&["export", from, "--format"], more].concat();
        project.rollout(&words).wait(DEADLINE)
    };
    for format in ["jsonl", "csv", "traces-jsonl"] {
        let local = export(&directory, &[format]).expect_code(ExitCode::Success);
        let remote = export(&url, &[format]).expect_code(ExitCode::Success);
        assert!(!local.stdout.is_empty());
        assert_eq!(remote.stdout, local.stdout, "{format}");
    }
    for (format, place) in [("jsonl", "out.jsonl"), ("parquet", "out.parquet"), ("tables", "t")] {
        let more = [format, "--out", place];
        let remote = export(&url, &more).expect_code(ExitCode::Success);
        assert_eq!(remote.stdout, format!("{place}\n"));
        let again = export(&url, &more).expect_code(ExitCode::Usage);
        let _again = again.expect_stderr("already exists");
        let other = format!("local-{place}");
        let _local = export(&directory, &[format, "--out", &other]).expect_code(ExitCode::Success);
        let read = |name: &str| {
            let path = project.path().join(name);
            let path = if path.is_dir() { path.join("trials.jsonl") } else { path };
            fs::read(path).expect("a file")
        };
        assert_eq!(read(place), read(&other), "{format}");
    }
    let remote = export(&url, &["harbor", "--out", "harbor"]).expect_code(ExitCode::Success);
    let job = project.path().join(remote.stdout.trim());
    let result: Value =
        serde_json::from_slice(&fs::read(job.join("result.json")).expect("a file")).expect("JSON");
    assert!(result.is_object(), "{result:#}");
    let left = fs::read_dir(project.path().join("harbor")).expect("a directory").count();
    assert_eq!(left, 1, "nothing else stays");
    assert_no_directory(&daemon, &format!("/v1/runs/{id}/export?format=harbor"), &project);
    // No agent of the run has called a model.
    let remote = export(&url, &["atif", "--out", "atif"]).expect_code(ExitCode::Success);
    let _remote = remote.expect_stderr("have no trajectory");
    assert!(project.path().join("atif").is_dir());
    let more = ["sft", "--min-reward", "-1"];
    let remote = export(&url, &more).expect_code(ExitCode::Success);
    assert_eq!(remote.stdout, "");
    let _remote = remote.expect_stderr("have no trajectory");

    let refused = export(&url, &["csv", "--min-reward", "1"]).expect_code(ExitCode::Usage);
    let _refused = refused.expect_stderr("--min-reward");
    let refused = export(&url, &["csv", "--store", "s"]).expect_code(ExitCode::Usage);
    let _refused = refused.expect_stderr("--store");
    let unknown = daemon.client.get(&format!("/v1/runs/{id}/export?format=xml")).expect(400);
    assert_eq!(unknown.json()["type"], json!("urn:rollout:problem:bad-request"));
    let left = fs::read_dir(project.path().join("state/datasets")).expect("a directory").count();
    assert_eq!(left, 0, "the server keeps no copy");
}
