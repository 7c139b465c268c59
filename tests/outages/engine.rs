//! A Docker engine that stops, dies and ends in order while trials run on it.

use rollout_tests::own_engine::OwnEngine;

use crate::{DEADLINE, Job, assert_unharmed, events, pass, project, settled, start};

/// Runs a job during which the engine is taken away and brought back.
fn away(take: impl Fn(&mut OwnEngine), bring: impl Fn(&mut OwnEngine)) {
    let Some(mut engine) = OwnEngine::start() else { return };
    let project = project();
    let job = Job::docker();
    job.write(&project);
    let mut run = start(&project, &engine);
    settled(&run, 2);
    take(&mut engine);
    pass(&mut run);
    bring(&mut engine);
    let ended = run.wait(DEADLINE);
    let parked = events(&ended.stdout, "trial_parked");
    let _ended = assert_unharmed(ended, &project.results("outage"), job.trials);
    assert!(parked.iter().any(|event| event["dependency"] == "container_engine"), "{parked:?}");
    assert_eq!(engine.left(), Vec::<String>::new());
}

#[test]
fn engine_paused_and_resumed_costs_no_trial() {
    away(OwnEngine::pause, OwnEngine::resume);
}

#[test]
fn engine_killed_and_restarted_costs_no_trial() {
    away(OwnEngine::kill, OwnEngine::go);
}

#[test]
fn engine_shut_down_and_restarted_costs_no_trial() {
    away(OwnEngine::terminate, OwnEngine::go);
}
