//! What runs leave on the server.

use rollout_protocol::exit::ExitCode;
use rollout_tests::cluster::Cluster;
use rollout_tests::live_counter::LiveCounter;
use rollout_tests::load::Load;
use serde_json::{Value, json};

use crate::cluster::{DEADLINE, assert_no_leaks, cluster};

/// Removes what runs have left on the server.
fn gc(cluster: &Cluster, lock_age: &str) -> Value {
    let arguments = ["gc", "--queue", "--lock-age", lock_age, "--json"];
    let ended = cluster.command(&arguments).wait(DEADLINE).expect_code(ExitCode::Success);
    let document: Value = serde_json::from_str(&ended.stdout).expect("a document");
    document["queue"].clone()
}

#[test]
fn completed_run_leaves_no_message_and_gc_removes_its_old_lock_entry() {
    let Some(cluster) = cluster() else { return };
    let counter = LiveCounter::start();
    let load = Load { at_once: 2, ..Load::new("done", 6, (0.1, 0.2)) };
    load.write(&cluster.project, &counter);
    let worker = cluster.worker("a", 2).started();
    let mut coordinator = cluster.coordinator(&load.file()).started();
    let ended = coordinator.wait(DEADLINE).expect_code(ExitCode::Success);
    assert!(!ended.stderr.contains("Docker"), "the run needs no engine: {}", ended.stderr);
    let doctor = cluster.command(&["doctor"]).wait(DEADLINE).expect_code(ExitCode::Success);
    for stream in ["ROLLOUT_WORK", "ROLLOUT_REPORTS"] {
        let empty = format!("{stream}: 0 messages, 0 bytes");
        assert!(doctor.stdout.contains(&empty), "{}", doctor.stdout);
    }
    let kept = json!({"messages": 0, "runs": [], "lock_entries": []});
    assert_eq!(gc(&cluster, "30d"), kept);
    let removed = gc(&cluster, "0s");
    assert_eq!(removed["lock_entries"].as_array().map(Vec::len), Some(1), "{removed}");
    assert_eq!(gc(&cluster, "0s"), kept);
    assert_no_leaks(&cluster, &["done"], [worker]);
}
