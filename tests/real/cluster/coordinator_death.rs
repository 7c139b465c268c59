//! A coordinator that is killed in the middle of its run.

use rollout_protocol::exit::ExitCode;
use rollout_tests::live_counter::LiveCounter;
use rollout_tests::load::Load;
use rollout_tests::wait;

use crate::cluster::{DEADLINE, assert_no_leaks, assert_undisturbed, cluster};

#[test]
fn coordinator_kill_keeps_running_trials() {
    let Some(cluster) = cluster() else { return };
    let counter = LiveCounter::start();
    let load = Load { at_once: 8, ..Load::new("half", 24, (1.5, 2.5)) };
    load.write(&cluster.project, &counter);
    let workers = ["a", "b"].map(|name| cluster.worker(name, 3).started());
    let mut coordinator = cluster.coordinator(&load.file()).started();
    let results = cluster.project.results("half");
    wait::until(DEADLINE, "half of the results", || results.trial_count() >= 12);
    let ended = coordinator.kill().expect("it ran");
    assert_eq!(ended.status.code(), None, "killed by the test: {}", ended.stderr);

    let settled = results.trials();
    wait::until(DEADLINE, "the workers to finish", || counter.running() == 0);
    let seen = counter.observed().len();
    assert!(seen > settled.len(), "{seen} executions, {} settled", settled.len());
    assert_eq!(counter.killed(), 0, "only the coordinator was killed");

    coordinator.start();
    let _ended = coordinator.wait(DEADLINE).expect_code(ExitCode::Success);
    assert_eq!(counter.repeated(), 0, "{:?}", counter.executions());
    assert_undisturbed(&cluster, &load);
    for trial in settled {
        let now = results.trials().into_iter().find(|now| now.name == trial.name);
        assert_eq!(now.map(|now| now.result), Some(trial.result), "{} was settled", trial.name);
    }
    assert_no_leaks(&cluster, &["half"], workers);
}
