//! One pool of slots for the runs of all users.

use rollout_protocol::Timestamp;
use rollout_tests::results::Results;
use serde_json::json;

use crate::serve::{DaemonProcess, project, submission, submitted};

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
    let jobs = project.path().join("state/jobs");
    let runs = [&large, &urgent].map(|id| Results::new(jobs.join(id)));
    daemon.stop();
    assert_eq!(most_at_once(&runs), 2);
}

/// The largest number of trials whose environments existed at the same time.
fn most_at_once(runs: &[Results]) -> i32 {
    let mut changes = Vec::new();
    for trial in runs.iter().flat_map(Results::trials) {
        let time = |key: &str| -> Timestamp {
            let text = trial.result["timestamps"][key].as_str().expect("a time");
            text.parse().expect("a time")
        };
        changes.extend([(time("environment_setup_started_at"), 1), (time("ended_at"), -1)]);
    }
    // At the same moment one ends before another begins.
    changes.sort();
    let counts = changes.iter().scan(0, |count, (_, change)| {
        *count += change;
        Some(*count)
    });
    counts.max().unwrap_or_default()
}
