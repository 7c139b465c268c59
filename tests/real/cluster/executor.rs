//! The contract of executors, on workers of other processes.

use std::sync::Arc;

use rollout_coordinator::executor::RunExecutor;
use rollout_tests::cluster::Cluster;
use rollout_tests::executor::{self, JOB, contract};
use rollout_tests::project::Project;

use crate::cluster::{LEASE, assert_no_leaks};

#[test]
fn executor_over_nats_passes_contract() {
    let program = env!("CARGO_BIN_EXE_rollout-under-test");
    let project = executor::write_job(Project::new(program));
    let Some(cluster) = Cluster::new(project).map(|cluster| cluster.with_lease(LEASE)) else {
        return;
    };
    let worker = cluster.worker("a", 3).started();
    let url = cluster.server.url();
    let request =
        executor::request(&cluster.project, program, &cluster.store(), Some((&url, LEASE)));
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let executor = RunExecutor::open(request).await.expect("an executor");
        let plan = Arc::clone(executor.plan());
        contract::run_all(&executor, &plan).await;
        let outcome = executor.finish().await.expect("finished");
        assert!(!outcome.cancelled, "every trial of the plan is settled");
    });
    assert_no_leaks(&cluster, &[JOB], [worker]);
}
