//! Runs over a real nats-server with workers in separate processes.

mod bench;
mod cancel;
mod catalog;
mod chaos;
mod control;
mod coordinator_death;
mod disk_faults;
mod ended_runs;
mod example;
mod executor;
mod formats;
mod hints;
mod kubernetes;
mod large_logs;
mod limits;
mod live_events;
mod live_output;
mod live_view;
mod materialize;
mod metrics;
mod ownership;
mod parity;
mod pause;
mod placement;
mod pool_sharing;
mod replicas;
mod retry;
mod s3;
mod search;
mod server_outage;
mod traces;
mod upgrade;
mod worker_death;
mod worker_membership;

use std::time::Duration;

use rollout_tests::audit;
use rollout_tests::cluster::{Cluster, ClusterMember};
use rollout_tests::leak_check;
use rollout_tests::load::Load;
use rollout_tests::project::Project;

/// Longest duration of a run on a busy machine with two processors.
const DEADLINE: Duration = Duration::from_secs(180);

/// A lease short enough for a test to wait for.
const LEASE: Duration = Duration::from_secs(4);

/// Longest time that an idle worker may take to stop.
const DRAIN_DEADLINE: Duration = Duration::from_secs(30);

/// A cluster with a short lease; without a nats-server, the test is ignored.
fn cluster() -> Option<Cluster> {
    let project = Project::new(env!("CARGO_BIN_EXE_rollout-under-test"));
    Cluster::new(project).map(|cluster| cluster.with_lease(LEASE))
}

/// Fails unless a load's results equal those of an undisturbed run.
#[track_caller]
fn assert_undisturbed(cluster: &Cluster, load: &Load) {
    let results = cluster.project.results(&load.name);
    assert_eq!(audit::differences(load, &results), Vec::<String>::new());
}

/// Drains the workers, and fails if anything of the runs is left.
#[track_caller]
fn assert_no_leaks(
    cluster: &Cluster,
    runs: &[&str],
    workers: impl IntoIterator<Item = ClusterMember>,
) {
    for mut worker in workers {
        if worker.is_running() {
            let ended = worker.terminate(DRAIN_DEADLINE);
            assert!(ended.status.success(), "{}: {}", worker.name, ended.stderr);
        }
    }
    let results = runs.iter().map(|run| cluster.project.results(run));
    let known = results.flat_map(|r| audit::executions(&audit::settlements(&r)));
    let known: Vec<_> = known.collect();
    let left = leak_check::cluster_leaks(cluster, &known, leak_check::CLEANUP_DEADLINE);
    assert_eq!(left, Vec::<String>::new());
    assert_eq!(cluster.host_files(), Vec::<std::path::PathBuf>::new());
}
