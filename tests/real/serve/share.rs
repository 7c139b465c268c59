//! One pool of slots for the runs of all users.

use serde_json::json;

use crate::{DaemonProcess, project, submission, submitted};

#[test]
fn urgent_run_overtakes_a_large_one_and_slots_are_never_exceeded() {
    let project = project().tasks(["slow/second"], &[]);
    let options = ["--slots", "2", "--max-running", "3"];
    let daemon = DaemonProcess::start(&project, &options);
    let mut large = submission(&project, 60);
    large["document"]["n_concurrent_trials"] = json!(20);
    let large = submitted(&daemon.client, &large);
    daemon.wait_for(&large, &["running"]);
    let mut urgent = submission(&project, 4);
    urgent["priority"] = json!(10);
    let urgent = submitted(&daemon.client, &urgent);
    let run = daemon.wait_for(&urgent, &["completed"]);
    assert_eq!(run["progress"]["completed"], json!(4), "{run:#}");
    let run = daemon.client.get(&format!("/v1/runs/{large}")).expect(200).json();
    let settled = run["progress"]["settled"].as_u64().expect("a number");
    assert!(settled < 40, "the large run had most slots: {run:#}");
    let running = run["progress"]["running"].as_u64().expect("a number");
    assert!(running <= 2, "{run:#}");
    daemon.stop();
}
