//! The daemon with workers in processes of their own.

use rollout_tests::cluster::Cluster;
use rollout_tests::wait;
use rustix::process::Signal;
use serde_json::json;

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
