//! Trials that fit on no worker, in fixed and in elastic pools.

use std::fs;

use rollout_protocol::exit::ExitCode;
use rollout_tests::cluster::Cluster;
use rollout_tests::live_counter::LiveCounter;
use rollout_tests::load::Load;
use rollout_tests::metrics;
use rollout_tests::net::free_port;
use rollout_tests::wait;

use crate::cluster::{DEADLINE, assert_no_leaks, assert_undisturbed, cluster};

#[test]
fn unplaceable_trial_fails_and_blocks_no_other() {
    let Some(cluster) = cluster() else { return };
    let (counter, load) = (LiveCounter::start(), Load::new("large", 5, (0.5, 1.0)));
    load.write(&cluster.project, &counter);
    let toml = cluster.project.path().join("tasks-large").join(load.task(2)).join("task.toml");
    fs::write(toml, "version = \"1.0\"\n[environment]\ncpus = 64\n").expect("a file");
    let worker = cluster.worker("a", 2).with_arguments(&["--cpus", "2"]).started();
    let coordinator =
        cluster.coordinator(&load.file()).with_arguments(&["--unplaceable-timeout", "5s"]);
    let ended = coordinator.started().wait(DEADLINE).expect_code(ExitCode::Infrastructure);
    let output = format!("{}{}", ended.stdout, ended.stderr);
    assert!(output.contains("64") && output.contains("cpu"), "the reason is missing: {output}");
    let results = cluster.project.results("large");
    assert_eq!((results.count("completed_trials"), results.count("failed_trials")), (4, 1));
    let large = results.trial("busy", &load.task(2));
    assert_eq!(large.error(), Some("environment_resource_allocation_failed"));
    assert_eq!(large.result["error"]["code"], "unplaceable");
    assert!(large.message().contains("64"), "{}", large.message());
    assert_eq!(counter.executions().get(&load.task(2)), None);
    assert_no_leaks(&cluster, &["large"], [worker]);
}

/// Sets the pool up, and declares whether it is elastic.
fn set_up(cluster: &Cluster, elastic: &str) {
    let store = cluster.store();
    let store = store.to_str().expect("a test's path is plain");
    let setup = cluster.command(&["setup", "--store", store, "--elastic", elastic]);
    let _ended = setup.wait(DEADLINE).expect_code(ExitCode::Success);
}

/// Makes a task of the load need a worker with four processors, because of its size class `c1`.
fn enlarge(cluster: &Cluster, load: &Load, number: u32) {
    let task = cluster.project.path().join(format!("tasks-{}", load.name)).join(load.task(number));
    let toml = "version = \"1.0\"\n[environment]\ncpus = 2\n";
    fs::write(task.join("task.toml"), toml).expect("a file");
}

#[test]
fn trials_of_elastic_pool_wait_for_worker_of_their_size() {
    let Some(cluster) = cluster() else { return };
    let (counter, load) = (LiveCounter::start(), Load::new("growing", 5, (0.3, 0.6)));
    load.write(&cluster.project, &counter);
    enlarge(&cluster, &load, 2);
    set_up(&cluster, "yes");
    let port = free_port();
    let coordinator = cluster.coordinator(&load.file());
    let listen = format!("127.0.0.1:{port}");
    let mut coordinator = coordinator.with_arguments(&["--listen", &listen]).started();
    let count = |name: &str, class: &str| {
        let samples = metrics::scrape(port)?;
        Some(samples.sum(name, &format!("size_class=\"{class}\"")))
    };
    // An autoscaler sees all trials before there is a worker.
    let pending = || [count("rollout_trials_pending", "c0"), count("rollout_trials_pending", "c1")];
    wait::until(DEADLINE, "the pending trials", || pending() == [Some(4.0), Some(1.0)]);

    let small = cluster.worker("small", 2).with_arguments(&["--cpus", "1"]).started();
    let waiting = || count("rollout_trials_waiting_for_worker", "c1");
    wait::until(DEADLINE, "the small trials", || pending() == [Some(0.0), Some(1.0)]);
    wait::until(DEADLINE, "the wait for a large worker", || waiting() == Some(1.0));
    coordinator.wait_for_stderr("the pool is elastic, so they wait", DEADLINE);
    let status = |format: &[&str]| {
        let command = [&["status", "jobs/growing"], format].concat();
        cluster.project.rollout(&command).wait(DEADLINE).expect_code(ExitCode::Success).stdout
    };
    let text = status(&[]);
    assert!(text.contains("1 for a worker with 2 cpus") && text.contains("elastic"), "{text}");
    let document: serde_json::Value = serde_json::from_str(&status(&["--json"])).expect("JSON");
    let shown = &document["waiting_for_worker"][0];
    assert_eq!((&shown["class"], &shown["items"]), (&"c1".into(), &1.into()), "{document}");
    assert!(shown["timeout_sec"].is_null(), "{document}");
    assert!(shown["reason"].as_str().is_some_and(|reason| reason.contains("cpus")), "{document}");

    let large = cluster.worker("large", 1).with_arguments(&["--cpus", "4"]).started();
    let _ended = coordinator.wait(DEADLINE).expect_code(ExitCode::Success);
    assert!(!status(&[]).contains("elastic"), "nothing waits any more");
    assert!(!cluster.project.path().join("jobs/growing/waiting.json").exists());
    assert_undisturbed(&cluster, &load);
    assert_no_leaks(&cluster, &["growing"], [small, large]);
}

#[test]
fn trial_of_elastic_pool_fails_after_longest_wait() {
    let Some(cluster) = cluster() else { return };
    let (counter, load) = (LiveCounter::start(), Load::new("bounded", 3, (0.3, 0.6)));
    load.write(&cluster.project, &counter);
    enlarge(&cluster, &load, 2);
    set_up(&cluster, "3s");
    let small = cluster.worker("small", 2).with_arguments(&["--cpus", "1"]).started();
    let mut coordinator = cluster.coordinator(&load.file()).started();
    let _ended = coordinator.wait(DEADLINE).expect_code(ExitCode::Infrastructure);
    let results = cluster.project.results("bounded");
    assert_eq!(results.trial("busy", &load.task(2)).result["error"]["code"], "unplaceable");
    assert_eq!(results.count("completed_trials"), 2);
    assert_no_leaks(&cluster, &["bounded"], [small]);
}
