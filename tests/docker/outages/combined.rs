//! Outages of every service that a run over workers needs, one after the other: those of the engine in
//! one run, those of the other services in another one beside it.

use rollout_protocol::exit::ExitCode;
use rollout_tests::cluster::{Cluster, ClusterMember};
use rollout_tests::program::ProgramExit;
use rollout_tests::test_engine::TestEngine;
use rollout_tests::test_registry::TestRegistry;

use crate::outages::registry::push;
use crate::outages::store::BlobDirectory;
use crate::outages::{
    DEADLINE, OutageJob, assert_unharmed, events_of_kind, project, wait_out_outage,
    wait_until_settled,
};

/// A run over a worker with an engine, a registry and a NATS server of its own. The services end last.
struct ClusterRun {
    worker: ClusterMember,
    coordinator: ClusterMember,
    engine: TestEngine,
    cluster: Cluster,
    registry: TestRegistry,
    trials: u32,
}

impl ClusterRun {
    /// Starts it; without one of the services, the test is ignored.
    fn start() -> Option<Self> {
        let engine = TestEngine::start()?;
        let cluster = Cluster::new(project())?;
        let registry = TestRegistry::start(&cluster.project.path().join("registry"))?;
        let task = format!("[environment]\ndocker_image = \"{}/task:@N@\"\n", registry.address());
        let job =
            OutageJob { task, trials: crate::outages::trials().max(16), ..OutageJob::docker() };
        job.write(&cluster.project);
        push(&engine, &registry, job.trials);
        let worker = cluster
            .worker("a", 4)
            .with_option("--provider", "docker")
            .with_variable("DOCKER_HOST", &engine.host())
            .started();
        let coordinator = cluster.coordinator("job.yaml").with_arguments(&["--json"]).started();
        let trials = job.trials;
        Some(Self { engine, cluster, registry, worker, coordinator, trials })
    }

    /// Waits until so many trials are settled.
    #[track_caller]
    fn settled(&mut self, count: usize) {
        wait_until_settled(self.coordinator.process(), count);
    }

    /// Waits for the length of an outage.
    fn wait_out(&mut self) {
        wait_out_outage(self.coordinator.process());
    }

    /// Fails unless every trial passes on its first attempt, and nothing is left behind.
    fn assert_unharmed(mut self) -> ProgramExit {
        let ended = self.coordinator.wait(DEADLINE);
        let ended = assert_unharmed(ended, &self.cluster.project.results("outage"), self.trials);
        let _left = self.worker.terminate(DEADLINE).expect_code(ExitCode::Success);
        assert_eq!(self.engine.leaked_objects(), Vec::<String>::new());
        assert_eq!(self.cluster.host_files(), Vec::<std::path::PathBuf>::new());
        ended
    }
}

#[test]
fn outages_of_engine_in_turn_cost_no_trial_of_workers() {
    let Some(mut run) = ClusterRun::start() else { return };
    run.settled(2);
    run.engine.pause();
    run.wait_out();
    run.engine.resume();
    run.settled(4);
    run.engine.kill();
    run.wait_out();
    run.engine.ensure_started();
    let _ended = run.assert_unharmed();
}

#[test]
fn outages_of_other_services_in_turn_cost_no_trial_of_workers() {
    let Some(mut run) = ClusterRun::start() else { return };
    run.settled(2);
    run.registry.kill();
    run.wait_out();
    run.registry.ensure_started();
    run.settled(4);
    run.cluster.server.kill();
    run.wait_out();
    run.cluster.server.ensure_started();
    run.settled(6);
    let blobs = BlobDirectory::in_project(&run.cluster.project, "store");
    blobs.hide();
    run.wait_out();
    blobs.restore();
    let ended = run.assert_unharmed();
    for warning in ["the NATS server gives no answer", "the NATS server answers again"] {
        let is_told = |event: &serde_json::Value| event.to_string().contains(warning);
        assert!(events_of_kind(&ended.stdout, "warning").iter().any(is_told), "{warning}");
    }
}
