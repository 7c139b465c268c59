//! Everything that a run needs, away one after the other.

use rollout_protocol::exit::ExitCode;
use rollout_tests::cluster::Cluster;
use rollout_tests::own_engine::OwnEngine;
use rollout_tests::own_registry::OwnRegistry;

use crate::registry::push;
use crate::store::Blobs;
use crate::{DEADLINE, Job, assert_unharmed, events, pass, project, settled};

#[test]
fn outage_of_each_service_in_turn_costs_no_trial() {
    let Some(mut engine) = OwnEngine::start() else { return };
    let Some(mut cluster) = Cluster::new(project()) else { return };
    let Some(mut registry) = OwnRegistry::start(&cluster.project.path().join("registry")) else {
        return;
    };
    let task = format!("[environment]\ndocker_image = \"{}/task:@N@\"\n", registry.address());
    let job = Job { task, trials: crate::trials().max(16), ..Job::docker() };
    job.write(&cluster.project);
    push(&engine, &registry, job.trials);
    let mut worker = cluster
        .worker("a", 4)
        .set("--provider", "docker")
        .variable("DOCKER_HOST", &engine.host())
        .started();
    let mut coordinator = cluster.coordinator("job.yaml").with(&["--json"]).started();

    settled(coordinator.run(), 2);
    engine.pause();
    pass(coordinator.run());
    engine.resume();
    settled(coordinator.run(), 4);
    engine.kill();
    pass(coordinator.run());
    engine.go();
    settled(coordinator.run(), 6);
    registry.kill();
    pass(coordinator.run());
    registry.go();
    settled(coordinator.run(), 8);
    cluster.server.kill();
    pass(coordinator.run());
    cluster.server.go();
    settled(coordinator.run(), 10);
    let blobs = Blobs::of(&cluster.project, "store");
    blobs.take();
    pass(coordinator.run());
    blobs.bring();

    let ended = coordinator.wait(DEADLINE);
    let ended = assert_unharmed(ended, &cluster.project.results("outage"), job.trials);
    for told in ["the NATS server gives no answer", "the NATS server answers again"] {
        let is_told = |event: &serde_json::Value| event.to_string().contains(told);
        assert!(events(&ended.stdout, "warning").iter().any(is_told), "{told}");
    }
    let _left = worker.terminate(DEADLINE).expect(ExitCode::Success);
    assert_eq!(engine.left(), Vec::<String>::new());
    assert_eq!(cluster.kept(), Vec::<std::path::PathBuf>::new());
}
