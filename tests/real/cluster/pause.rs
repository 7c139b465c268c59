//! A run that is paused and continued while its trials run.

use rollout_protocol::exit::ExitCode;
use rollout_tests::live_counter::LiveCounter;
use rollout_tests::load::Load;
use rollout_tests::wait;
use serde_json::Value;

use crate::cluster::{DEADLINE, assert_no_leaks, assert_undisturbed, cluster};

#[test]
fn pause_holds_new_trials_back_until_the_run_is_resumed() {
    let Some(cluster) = cluster() else { return };
    let counter = LiveCounter::start();
    let load = Load { at_once: 4, ..Load::new("paused", 16, (0.5, 1.0)) };
    load.write(&cluster.project, &counter);
    let worker = cluster.worker("a", 3).started();
    let mut coordinator = cluster.coordinator(&load.file()).started();
    let run = cluster.project.results("paused");
    wait::until(DEADLINE, "some results", || run.trial_count() >= 4);
    let command = |arguments: &[&str]| cluster.command(arguments).wait(DEADLINE);

    let paused = command(&["pause", "jobs/paused", "--json"]).expect_code(ExitCode::Success);
    let receipt: Value = serde_json::from_str(&paused.stdout).expect("a receipt");
    assert!(receipt["named"].as_u64().is_some_and(|left| left >= 1), "{receipt}");
    // Those that the worker has taken may not have their agents yet.
    let begun_at_most = counter.observed().len() + 3;
    let status = || {
        let status = cluster.project.rollout(&["status", "jobs/paused", "--json"]).wait(DEADLINE);
        serde_json::from_str::<Value>(&status.stdout).expect("a document")
    };
    wait::until(DEADLINE, "the running trials to end", || {
        status()["counts"]["running"] == 0 && run.trial_count() == counter.observed().len()
    });
    let status = status();
    assert_eq!((&status["paused"], &status["state"]), (&true.into(), &"running".into()));
    let seen = counter.observed().len();
    assert!(seen <= begun_at_most && seen < 16, "nothing begins in a pause: {seen}");

    let id = status["run"].as_str().expect("an id").to_owned();
    let resumed = command(&["continue", &id]).expect_code(ExitCode::Success);
    assert!(resumed.stdout.contains("continued"), "{}", resumed.stdout);
    let _ended = coordinator.wait(DEADLINE).expect_code(ExitCode::Success);
    assert_eq!(counter.repeated(), 0, "{:?}", counter.executions());
    assert_undisturbed(&cluster, &load);
    let events = cluster.project.rollout(&["events", "jobs/paused"]).wait(DEADLINE).stdout;
    assert!(events.contains("run_paused") && events.contains("run_continued"), "{events}");

    let over = command(&["pause", "jobs/paused"]).expect_code(ExitCode::Config);
    assert!(over.stderr.contains("does not run"), "{}", over.stderr);
    let alone = cluster.project.rollout(&["pause", "jobs/paused"]).wait(DEADLINE);
    assert!(alone.expect_code(ExitCode::Config).stderr.contains("--nats"));
    assert_no_leaks(&cluster, &["paused"], [worker]);
}
