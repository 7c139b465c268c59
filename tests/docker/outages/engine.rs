//! Outages of the Docker engine while trials run on it: paused, killed, shut down.

use rollout_tests::test_engine::TestEngine;

use crate::outages::{
    DEADLINE, OutageJob, assert_unharmed, events_of_kind, project, start, wait_out_outage,
    wait_until_settled,
};

/// Runs a job during which `take` makes the engine unavailable and `bring` restores it.
fn assert_engine_outage_harmless(take: impl Fn(&mut TestEngine), bring: impl Fn(&mut TestEngine)) {
    let Some(mut engine) = TestEngine::start() else { return };
    let project = project();
    let job = OutageJob::docker();
    job.write(&project);
    let mut run = start(&project, &engine);
    wait_until_settled(&run, 2);
    take(&mut engine);
    wait_out_outage(&mut run);
    bring(&mut engine);
    let ended = run.wait(DEADLINE);
    let parked = events_of_kind(&ended.stdout, "trial_parked");
    let _ended = assert_unharmed(ended, &project.results("outage"), job.trials);
    assert!(parked.iter().any(|event| event["dependency"] == "container_engine"), "{parked:?}");
    assert_eq!(engine.leaked_objects(), Vec::<String>::new());
}

#[test]
fn engine_paused_and_resumed_costs_no_trial() {
    assert_engine_outage_harmless(TestEngine::pause, TestEngine::resume);
}

#[test]
fn engine_killed_and_restarted_costs_no_trial() {
    assert_engine_outage_harmless(TestEngine::kill, TestEngine::ensure_started);
}

#[test]
fn engine_shut_down_and_restarted_costs_no_trial() {
    assert_engine_outage_harmless(TestEngine::terminate, TestEngine::ensure_started);
}
