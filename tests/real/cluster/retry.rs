//! `rollout retry` of a run whose coordinator runs.

use std::net::{Ipv4Addr, TcpListener};

use rollout_protocol::exit::ExitCode;
use rollout_tests::audit;
use rollout_tests::cluster::Cluster;
use rollout_tests::live_counter::LiveCounter;
use rollout_tests::load::Load;
use rollout_tests::net::free_port;
use rollout_tests::wait;
use serde_json::Value;

use crate::cluster::{DEADLINE, assert_no_leaks, assert_undisturbed, cluster};

/// The document that a command prints.
fn receipt(cluster: &Cluster, arguments: &[&str]) -> Value {
    let ended = cluster.command(&[arguments, &["--json"]].concat()).wait(DEADLINE);
    let ended = ended.expect_code(ExitCode::Success);
    serde_json::from_str(&ended.stdout).expect("a receipt")
}

#[test]
fn retry_of_failed_trial_runs_it_again_within_the_session() {
    let Some(cluster) = cluster() else { return };
    let (counter, port) = (LiveCounter::start(), free_port());
    let load = Load { at_once: 2, ..Load::new("retried", 10, (1.0, 1.5)) };
    load.write(&cluster.project, &counter);
    load.fail_without_listener(&cluster.project, 1, port);
    let worker = cluster.worker("a", 2).started();
    let mut coordinator = cluster.coordinator(&load.file()).started();
    let results = cluster.project.results("retried");
    let has_result =
        |number: u32| results.trials().iter().any(|t| t.name.contains(&load.task(number)));
    wait::until(DEADLINE, "the failure", || has_result(1) && has_result(2));
    assert_ne!(results.trial("busy", &load.task(1)).error(), None);
    let status = cluster.project.rollout(&["status", "jobs/retried", "--json"]).wait(DEADLINE);
    let status: Value = serde_json::from_str(&status.stdout).expect("a document");
    let run = status["run"].as_str().expect("an id").to_owned();

    let _listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).expect("the port");
    let retried = receipt(&cluster, &["retry", &run, "--failed"]);
    assert_eq!((&retried["named"], &retried["reopened"]), (&1.into(), &1.into()), "{retried}");
    // It is pending or runs now.
    let again = receipt(&cluster, &["retry", &run, "--failed"]);
    assert_eq!(again["reopened"], 0, "{again}");
    let named = receipt(&cluster, &["retry", "jobs/retried", "--trial", &load.trial(1)]);
    assert_eq!((&named["named"], &named["reopened"]), (&1.into(), &0.into()), "{named}");
    let address = format!("{}#{run}", cluster.server.url());
    let passed = cluster.project.command(&["retry", &address, "--json", "--trial", &load.trial(2)]);
    let passed = cluster.project.start(passed).wait(DEADLINE).expect_code(ExitCode::Success);
    assert!(passed.stdout.contains(r#""reopened": 1"#), "{}", passed.stdout);
    let unknown = cluster.command(&["retry", &run, "--trial", "busy/tasks-retried/none__1"]);
    let unknown = unknown.wait(DEADLINE).expect_code(ExitCode::Config);
    assert!(unknown.stderr.contains("no settled trial"), "{}", unknown.stderr);

    let _ended = coordinator.wait(DEADLINE).expect_code(ExitCode::Success);
    let executions = counter.executions();
    assert_eq!([1, 2, 3].map(|number| executions[&load.task(number)]), [2, 2, 1]);
    assert_eq!((counter.repeated(), counter.killed()), (2, 0), "{executions:?}");
    assert_undisturbed(&cluster, &load);
    let settled = audit::settlements(&results);
    assert_eq!(settled.len(), 10, "a record for each trial");
    assert_eq!(audit::superseded(&settled), [("reported".to_owned(), 2)].into());
    let events = cluster.project.rollout(&["events", "jobs/retried"]).wait(DEADLINE).stdout;
    assert_eq!(events.matches("trial_reopened").count(), 2, "{events}");

    // Another session reads the same results from the journal.
    let of_trials = |job: Value| ["results", "agents", "datasets"].map(|key| job[key].clone());
    let before = of_trials(results.job());
    let mut coordinator = cluster.coordinator(&load.file()).started();
    let _ended = coordinator.wait(DEADLINE).expect_code(ExitCode::Success);
    assert_eq!((of_trials(results.job()), counter.repeated()), (before, 2));
    assert_eq!(audit::settlements(&results).len(), 10);
    let over = cluster.command(&["retry", &address, "--failed"]).wait(DEADLINE);
    assert!(over.expect_code(ExitCode::Config).stderr.contains("does not run"));
    assert_no_leaks(&cluster, &["retried"], [worker]);
}

#[test]
fn retried_trial_is_pending_for_the_next_coordinator_after_a_kill() {
    let Some(cluster) = cluster() else { return };
    let (counter, port) = (LiveCounter::start(), free_port());
    let load = Load { at_once: 2, ..Load::new("retried", 6, (1.0, 1.5)) };
    load.write(&cluster.project, &counter);
    load.fail_without_listener(&cluster.project, 1, port);
    let worker = cluster.worker("a", 2).started();
    let mut coordinator = cluster.coordinator(&load.file()).started();
    let results = cluster.project.results("retried");
    wait::until(DEADLINE, "a failure", || results.trials().iter().any(|t| t.error().is_some()));
    let _paused = receipt(&cluster, &["pause", "jobs/retried"]);
    let retried = receipt(&cluster, &["retry", "jobs/retried", "--infra"]);
    let others = receipt(&cluster, &["retry", "jobs/retried", "--failed"]);
    let reopened = |receipt: &Value| receipt["reopened"].as_u64();
    assert_eq!(reopened(&retried).zip(reopened(&others)).map(|(a, b)| a + b), Some(1));
    let _killed = coordinator.kill();
    let _listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).expect("the port");
    coordinator.start();
    let _ended = coordinator.wait(DEADLINE).expect_code(ExitCode::Success);
    assert_undisturbed(&cluster, &load);
    assert_eq!(counter.executions()[&load.task(1)], 2);
    assert_eq!((counter.repeated(), audit::settlements(&results).len()), (1, 6));
    assert_no_leaks(&cluster, &["retried"], [worker]);
}
