//! Outages of every service that a run needs, one after the other.

use rollout_protocol::exit::ExitCode;
use rollout_tests::cluster::Cluster;
use rollout_tests::test_engine::TestEngine;
use rollout_tests::test_registry::TestRegistry;

use crate::outages::registry::push;
use crate::outages::store::BlobDirectory;
use crate::outages::{
    DEADLINE, OutageJob, assert_unharmed, events_of_kind, project, wait_out_outage,
    wait_until_settled,
};

#[test]
fn outage_of_each_service_in_turn_costs_no_trial() {
    let Some(mut engine) = TestEngine::start() else { return };
    let Some(mut cluster) = Cluster::new(project()) else { return };
    let Some(mut registry) = TestRegistry::start(&cluster.project.path().join("registry")) else {
        return;
    };
    let task = format!("[environment]\ndocker_image = \"{}/task:@N@\"\n", registry.address());
    let job = OutageJob { task, trials: crate::outages::trials().max(16), ..OutageJob::docker() };
    job.write(&cluster.project);
    push(&engine, &registry, job.trials);
    let mut worker = cluster
        .worker("a", 4)
        .with_option("--provider", "docker")
        .with_variable("DOCKER_HOST", &engine.host())
        .started();
    let mut coordinator = cluster.coordinator("job.yaml").with_arguments(&["--json"]).started();

    wait_until_settled(coordinator.process(), 2);
    engine.pause();
    wait_out_outage(coordinator.process());
    engine.resume();
    wait_until_settled(coordinator.process(), 4);
    engine.kill();
    wait_out_outage(coordinator.process());
    engine.ensure_started();
    wait_until_settled(coordinator.process(), 6);
    registry.kill();
    wait_out_outage(coordinator.process());
    registry.ensure_started();
    wait_until_settled(coordinator.process(), 8);
    cluster.server.kill();
    wait_out_outage(coordinator.process());
    cluster.server.ensure_started();
    wait_until_settled(coordinator.process(), 10);
    let blobs = BlobDirectory::in_project(&cluster.project, "store");
    blobs.hide();
    wait_out_outage(coordinator.process());
    blobs.restore();

    let ended = coordinator.wait(DEADLINE);
    let ended = assert_unharmed(ended, &cluster.project.results("outage"), job.trials);
    for warning in ["the NATS server gives no answer", "the NATS server answers again"] {
        let is_told = |event: &serde_json::Value| event.to_string().contains(warning);
        assert!(events_of_kind(&ended.stdout, "warning").iter().any(is_told), "{warning}");
    }
    let _left = worker.terminate(DEADLINE).expect_code(ExitCode::Success);
    assert_eq!(engine.leaked_objects(), Vec::<String>::new());
    assert_eq!(cluster.host_files(), Vec::<std::path::PathBuf>::new());
}
