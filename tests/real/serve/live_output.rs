//! Output of trials on workers, followed over HTTP.

use rollout_tests::cluster::Cluster;
use rollout_tests::live_output::{assert_followed, write_talking_job};
use rollout_tests::project::Project;
use rollout_tests::wait;
use serde_json::{Value, json};

use crate::serve::{DEADLINE, DaemonProcess, project, submitted};

/// The talking job, as another host submits it.
fn talking_job(project: &Project) -> Value {
    write_talking_job(project);
    let text = std::fs::read_to_string(project.path().join("job.yaml")).expect("a job");
    let tasks = format!("path: {}", project.path().join("tasks").display());
    assert!(text.contains("path: tasks") && text.contains("${TOKEN:-none}"), "{text}");
    json!({ "document": text.replace("path: tasks", &tasks).replace("${TOKEN:-none}", "none") })
}

/// Follows the output of the trial from its plan to its end. Sizes of chunks are left out.
fn follow(daemon: &DaemonProcess, id: &str, more: &str) -> impl Iterator<Item = String> + use<> {
    let item = format!("/v1/runs/{id}/items/talker");
    wait::until(DEADLINE, "a plan", || daemon.client.get(&item).status == 200);
    let lines = daemon.client.follow(&format!("{item}/logs?follow=true{more}"), &[]);
    let is_size = |line: &String| !line.is_empty() && line.bytes().all(|b| b.is_ascii_hexdigit());
    // The chunk of size 0 is the last one.
    lines.take_while(|line| line != "0").filter(move |line| !is_size(line))
}

/// Takes lines up to one of them, which is to be sent before the trial has ended.
fn take_until(lines: &mut impl Iterator<Item = String>, last: &str) -> Vec<String> {
    let mut taken: Vec<String> = Vec::new();
    while taken.last().is_none_or(|line| line != last) {
        taken.push(lines.next().expect("output until the trial is settled"));
    }
    taken
}

fn start(cluster: &Cluster, options: &[&str]) -> DaemonProcess {
    let (url, store) = (cluster.server.url(), cluster.store().display().to_string());
    let nats = ["--allow-provider-settings", "--nats", &url, "--store", &store];
    DaemonProcess::start(&cluster.project, &[&nats[..], options].concat())
}

#[test]
fn output_of_trial_on_worker_is_sent_while_it_is_written() {
    let Some(cluster) = Cluster::new(project()) else { return };
    let worker = cluster.worker("a", 1).started();
    let daemon = start(&cluster, &[]);
    let id = submitted(&daemon.client, &talking_job(&cluster.project));
    let mut lines = follow(&daemon, &id, "");
    let mut received = take_until(&mut lines, "line 9 of none.");
    let items = format!("/v1/runs/{id}/items");
    let item = &daemon.client.get(&items).expect(200).json()["items"][0];
    let log = daemon.process.stderr();
    assert_eq!(item["state"], json!("running"), "sent while the trial runs: {item:#}\n{log}");
    received.extend(lines);
    assert_followed(&received.join("\n"), "none");
    let selected = follow(&daemon, &id, "&name=logs/verifier");
    let selected: Vec<String> = selected.filter(|line| !line.is_empty()).collect();
    assert_eq!(selected.last().map(String::as_str), Some("tested"), "{selected:?}");
    assert!(!selected.iter().any(|line| line.starts_with("line ")), "{selected:?}");
    daemon.wait_for(&id, &["completed"]);
    daemon.stop();
    drop(worker);
}

#[test]
fn followed_output_goes_on_after_an_outage_of_the_server() {
    let Some(mut cluster) = Cluster::new(project()) else { return };
    let worker = cluster.worker("a", 1).started();
    let daemon = start(&cluster, &[]);
    let id = submitted(&daemon.client, &talking_job(&cluster.project));
    let mut lines = follow(&daemon, &id, "");
    let mut received = take_until(&mut lines, "line 3 of none.");
    cluster.server.kill();
    cluster.server.ensure_started();
    received.extend(lines);
    assert_followed(&received.join("\n"), "none");
    daemon.wait_for(&id, &["completed"]);
    daemon.stop();
    drop(worker);
}
