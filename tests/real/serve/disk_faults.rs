//! The daemon on a disk that takes no writes.

use rollout_tests::read_only_mount::ReadOnlyMount;
use rollout_tests::wait;
use serde_json::json;

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
