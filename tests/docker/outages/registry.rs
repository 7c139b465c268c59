//! Outages of the image registry while images are pulled.

use rollout_tests::test_engine::TestEngine;
use rollout_tests::test_registry::TestRegistry;

use crate::outages::{
    DEADLINE, OutageJob, assert_unharmed, events_of_kind, project, start, wait_out_outage,
    wait_until_settled,
};

#[test]
fn registry_outage_costs_no_trial() {
    let Some(engine) = TestEngine::start() else { return };
    let project = project();
    let Some(mut registry) = TestRegistry::start(&project.path().join("registry")) else { return };
    let task = format!("[environment]\ndocker_image = \"{}/task:@N@\"\n", registry.address());
    let job = OutageJob { task, ..OutageJob::docker() };
    job.write(&project);
    push(&engine, &registry, job.trials);
    let mut run = start(&project, &engine);
    wait_until_settled(&run, 2);
    registry.kill();
    wait_out_outage(&mut run);
    registry.ensure_started();
    let ended = run.wait(DEADLINE);
    let parked = events_of_kind(&ended.stdout, "trial_parked");
    let _ended = assert_unharmed(ended, &project.results("outage"), job.trials);
    assert!(parked.iter().any(|event| event["dependency"] == "image_registry"), "{parked:?}");
    assert_eq!(engine.leaked_objects(), Vec::<String>::new());
}

#[test]
fn image_missing_in_registry_fails_at_once() {
    let Some(engine) = TestEngine::start() else { return };
    let project = project();
    let Some(registry) = TestRegistry::start(&project.path().join("registry")) else { return };
    let task = format!("[environment]\ndocker_image = \"{}/none:@N@\"\n", registry.address());
    let job = OutageJob { task, trials: 1, ..OutageJob::docker() };
    job.write(&project);
    let ended = start(&project, &engine).wait(DEADLINE);
    assert_eq!(events_of_kind(&ended.stdout, "trial_parked").len(), 0, "{}", ended.stdout);
    let results = project.results("outage");
    let trial = &results.trials()[0];
    assert_eq!(trial.error(), Some("environment_image_pull_failed"));
    assert_eq!(trial.result["error"]["code"], "refused");
}

/// Pushes an image for each task to the registry, and removes it from the engine.
pub(crate) fn push(engine: &TestEngine, registry: &TestRegistry, trials: u32) {
    for number in 1..=trials {
        let name = format!("{}/task:{number}", registry.address());
        engine.docker(&["tag", "debian:bookworm-slim", &name]);
        engine.docker(&["push", "-q", &name]);
        engine.docker(&["rmi", &name]);
    }
}
