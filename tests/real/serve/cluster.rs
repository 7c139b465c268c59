//! The daemon with workers in processes of their own.

use rollout_protocol::exit::ExitCode;
use rollout_tests::cluster::Cluster;
use rollout_tests::wait;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::serve::{DEADLINE, DaemonProcess, project, submission, submitted};

#[test]
fn trials_on_workers_outlive_the_daemon() {
    let project = project().tasks(["slow/second"], &[]);
    let Some(cluster) = Cluster::new(project) else { return };
    let project = &cluster.project;
    let worker = cluster.worker("a", 2).started();
    let (url, store) = (cluster.server.url(), cluster.store().display().to_string());
    let options = ["--nats", &url, "--store", &store];
    let mut daemon = DaemonProcess::start(project, &options);
    let id = submitted(&daemon.client, &submission(project, 12));
    wait::until(DEADLINE, "a trial has ended", || {
        let run = daemon.client.get(&format!("/v1/runs/{id}")).expect(200).json();
        run["progress"]["settled"].as_u64() > Some(0)
    });
    daemon.process.signal(Signal::KILL);
    let _killed = daemon.process.wait(DEADLINE);
    let mut daemon = DaemonProcess::start(project, &options);
    let run = daemon.wait_for(&id, &["completed"]);
    assert_eq!(run["progress"]["completed"], json!(12), "{run:#}");
    let items = daemon.client.get(&format!("/v1/runs/{id}/items")).expect(200).json();
    let items = items["items"].as_array().expect("items").clone();
    // An offer that no worker had taken before the kill is made again, under another number.
    let offered_again = items.iter().filter(|item| item["tries"] != json!(1)).count();
    assert!(offered_again <= 2, "{items:#?}");
    daemon.process.signal(Signal::TERM);
    let _ended = daemon.process.wait(DEADLINE);
    drop(worker);
}

#[test]
fn run_deleted_leaves_nothing_that_garbage_collection_asks_about() {
    let project = project().tasks(["slow/second"], &[]);
    let Some(cluster) = Cluster::new(project) else { return };
    let project = &cluster.project;
    let worker = cluster.worker("a", 2).started();
    let (url, store) = (cluster.server.url(), cluster.store().display().to_string());
    let daemon = DaemonProcess::start(project, &["--nats", &url, "--store", &store]);
    let id = submitted(&daemon.client, &submission(project, 2));
    let _run = daemon.wait_for(&id, &["completed"]);
    let gc = |arguments: &[&str]| {
        let ended = project.rollout(&[arguments, &["--json"]].concat()).wait(DEADLINE);
        ended.expect_code(ExitCode::Success).stdout
    };
    let queue = ["gc", "--queue", "--nats", &url, "--lock-age", "0s", "--dry-run"];
    let before: Value = serde_json::from_str(&gc(&queue)).expect("a document");
    assert_eq!(before["queue"]["lock_entries"].as_array().map(Vec::len), Some(1), "{before}");
    let deleted = daemon.client.send("DELETE", &format!("/v1/runs/{id}"), &[], b"");
    let _deleted = deleted.expect("an answer").expect(204);
    let after: Value = serde_json::from_str(&gc(&queue)).expect("a document");
    let nothing = json!({"messages": 0, "runs": [], "lock_entries": []});
    assert_eq!(after["queue"], nothing, "{after}");
    // The store of the worker and the daemon stays, with what is too young.
    let collected: Value =
        serde_json::from_str(&gc(&["gc", "--store", &store])).expect("a document");
    assert_eq!((&collected["kept_runs"], &collected["store_removed"]), (&json!(0), &json!(false)));
    daemon.stop();
    drop(worker);
}
