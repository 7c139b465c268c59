//! The daemon on a disk that takes no writes.

use std::time::Instant;

use rollout_tests::read_only_mount::ReadOnlyMount;
use rollout_tests::wait;
use serde_json::{Value, json};

use crate::serve::farms::{self, farm_project, farm_request, group, opened};
use crate::serve::{DEADLINE, DaemonProcess, project, submission, submitted};

#[test]
fn daemon_on_read_only_disk_is_not_ready_and_begins_no_run_until_it_can_write() {
    let project = project().tasks(["slow/second"], &[]);
    let daemon = DaemonProcess::start(&project, &["--max-running", "1"]);
    let first = submitted(&daemon.client, &submission(&project, 6));
    let second = submitted(&daemon.client, &submission(&project, 2));
    daemon.wait_for(&first, &["running"]);
    let Some(mount) = ReadOnlyMount::over(&project.path().join("state/runs")) else { return };
    wait::until(DEADLINE, "the daemon to notice", || daemon.client.get("/readyz").status == 503);
    let reason = daemon.client.get("/readyz").text();
    assert!(reason.contains("Read-only file system"), "{reason}");
    assert!(!reason.contains("state/runs"), "{reason}");
    assert_eq!(daemon.client.get("/healthz").status, 200);
    // Its results are in its run directory; only its record cannot be written.
    daemon.wait_for(&first, &["completed"]);
    let refused = daemon.client.post("/v1/runs", &[], &submission(&project, 1));
    assert_eq!(refused.status, 503, "{}", refused.text());
    assert!(refused.text().contains("problem:state-directory"), "{}", refused.text());
    let waits = daemon.client.get(&format!("/v1/runs/{second}")).expect(200).json();
    assert_eq!(waits["state"], json!("queued"), "{waits:#}");

    drop(mount);
    daemon.wait_for(&second, &["completed"]);
    assert_eq!(daemon.client.get("/readyz").status, 200);
    let stderr = daemon.process.stderr();
    assert_eq!(stderr.matches("cannot note the end of a session").count(), 1, "{stderr}");
    let record = project.path().join("state/runs").join(format!("{first}.json"));
    let record = std::fs::read_to_string(record).expect("a record");
    assert!(record.contains("\"outcome\": \"completed\""), "{record}");
}

#[test]
fn run_and_farm_on_read_only_disk_are_failed_with_the_cause_and_go_on_when_it_takes_writes() {
    let project = farm_project();
    let daemon = DaemonProcess::start(&project, &["--slots", "8"]);
    let client = &daemon.client;
    let request = farm_request(&project, "sleep 8; echo done >answer.txt");
    let farm = opened(client, &request);
    let _admitted = client.post(&format!("{farm}/groups"), &[], &group("g", 2)).expect(201);
    let run = submitted(client, &json!({ "name": "kept", "document": request["document"] }));
    daemon.wait_for(&run, &["running"]);
    farms::wait_for(client, &farm, "running");
    let began = Instant::now();
    let Some(mount) = ReadOnlyMount::over(&project.path().join("state/jobs")) else { return };
    // Their sessions wait for a minute, or have ended because they were about to open files.
    for view in [daemon.wait_for(&run, &["failed"]), farms::wait_for(client, &farm, "failed")] {
        let is_temporary = &view["failure"]["is_temporary"];
        assert_eq!((&view["is_final"], is_temporary), (&json!(false), &json!(true)), "{view:#}");
        let message = view["failure"]["message"].as_str().unwrap_or_default();
        assert!(message.contains("Read-only file system"), "{view:#}");
    }
    assert_eq!(client.get("/readyz").status, 503);

    drop(mount);
    let ended = daemon.wait_for(&run, &["completed"]);
    assert_eq!((&ended["failure"], &ended["progress"]["completed"]), (&Value::Null, &json!(1)));
    let mut held = Value::Null;
    wait::until(DEADLINE, "the group", || {
        held = client.get(&format!("{farm}/groups/g")).expect(200).json();
        held["end"] == "complete"
    });
    assert_eq!(held["usable"], json!(2), "{held:#}");
    farms::wait_for(client, &farm, "running");
    let stderr = daemon.process.stderr();
    let most = 1 + usize::try_from(began.elapsed().as_secs() / 60).expect("minutes");
    for warning in ["run.lock.json", "manifest.json", "captured output", "cannot be spooled"] {
        let lines = stderr.lines().filter(|line| line.contains(warning)).count();
        assert!(lines <= most, "{lines} of {warning}: {stderr}");
    }
}
