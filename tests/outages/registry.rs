//! An image registry that is away when images are pulled.

use rollout_tests::own_engine::OwnEngine;
use rollout_tests::own_registry::OwnRegistry;

use crate::{DEADLINE, Job, assert_unharmed, events, pass, project, settled, start};

#[test]
fn registry_outage_costs_no_trial() {
    let Some(engine) = OwnEngine::start() else { return };
    let project = project();
    let Some(mut registry) = OwnRegistry::start(&project.path().join("registry")) else { return };
    let task = format!("[environment]\ndocker_image = \"{}/task:@N@\"\n", registry.address());
    let job = Job { task, ..Job::docker() };
    job.write(&project);
    push(&engine, &registry, job.trials);
    let mut run = start(&project, &engine);
    settled(&run, 2);
    registry.kill();
    pass(&mut run);
    registry.go();
    let ended = run.wait(DEADLINE);
    let parked = events(&ended.stdout, "trial_parked");
    let _ended = assert_unharmed(ended, &project.results("outage"), job.trials);
    assert!(parked.iter().any(|event| event["dependency"] == "image_registry"), "{parked:?}");
    assert_eq!(engine.left(), Vec::<String>::new());
}

#[test]
fn image_missing_in_registry_fails_at_once() {
    let Some(engine) = OwnEngine::start() else { return };
    let project = project();
    let Some(registry) = OwnRegistry::start(&project.path().join("registry")) else { return };
    let task = format!("[environment]\ndocker_image = \"{}/none:@N@\"\n", registry.address());
    let job = Job { task, trials: 1, ..Job::docker() };
    job.write(&project);
    let ended = start(&project, &engine).wait(DEADLINE);
    assert_eq!(events(&ended.stdout, "trial_parked").len(), 0, "{}", ended.stdout);
    let results = project.results("outage");
    let trial = &results.trials()[0];
    assert_eq!(trial.error(), Some("environment_image_pull_failed"));
    assert_eq!(trial.result["error"]["code"], "refused");
}

/// Gives the registry an image for each task, none of which the engine keeps.
pub(crate) fn push(engine: &OwnEngine, registry: &OwnRegistry, trials: u32) {
    for number in 1..=trials {
        let name = format!("{}/task:{number}", registry.address());
        engine.docker(&["tag", "debian:bookworm-slim", &name]);
        engine.docker(&["push", "-q", &name]);
        engine.docker(&["rmi", &name]);
    }
}
