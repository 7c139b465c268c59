//! `rollout export` of runs on a server.

use std::fs;

use rollout_protocol::digest::Digest;
use rollout_protocol::exit::ExitCode;
use rollout_protocol::limits::ARCHIVE_DEPTH;
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

#[test]
fn path_too_deep_for_an_archive_is_counted_and_a_lost_blob_is_told_without_its_place() {
    let project = project().tasks(["slow/second"], &[]);
    let daemon = DaemonProcess::start(&project, &[]);
    // The deepest path that the archive of the logs takes. Harbor's layout has one more level.
    let deep = format!("/logs/agent/{}", "d/".repeat(ARCHIVE_DEPTH - 3));
    let execute = format!("mkdir -p {deep}; echo kept | tee {deep}file >/logs/agent/note.txt");
    let mut request = submission(&project, 1);
    request["document"]["agents"] = json!([{ "name": "deep", "execute": execute }]);
    let id = submitted(&daemon.client, &request);
    daemon.wait_for(&id, &["completed"]);
    let path = format!("/v1/runs/{id}/export?format=harbor");
    for _again in 0..2 {
        let answer = daemon.client.get(&path).expect(200);
        assert_eq!(answer.header("x-rollout-paths-left-out"), Some("1"), "{:?}", answer.headers);
        assert!(String::from_utf8_lossy(&answer.body).contains("agent/note.txt"), "{path}");
    }

    let item = format!("/v1/runs/{id}/items/deep");
    let listed = daemon.client.get(&format!("{item}/artifacts")).expect(200).json();
    let name = listed["artifacts"][0]["path"].as_str().expect("an artifact");
    let artifact = format!("{item}/artifact?path={name}");
    let digest = Digest::sha256(&daemon.client.get(&artifact).expect(200).body).hex();
    let blobs = project.path().join("state/jobs/.rollout/blobs/blobs");
    fs::remove_file(blobs.join(&digest[..2]).join(&digest[2..])).expect("removed");
    let failed = daemon.client.get(&artifact).expect(500);
    assert_eq!(failed.json()["type"], "urn:rollout:problem:internal");
    for text in [failed.text(), daemon.client.get(&path).text()] {
        assert!(!text.contains(&project.path().display().to_string()), "{text}");
    }
    daemon.stop();
}
