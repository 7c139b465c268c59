//! Limits of a search over all workers, counted by a server to which every command connects.

use std::path::PathBuf;

use rollout_protocol::exit::ExitCode;
use rollout_tests::cluster::Cluster;
use rollout_tests::live_counter::LiveCounter;
use rollout_tests::project::Project;
use rollout_tests::search::{self, ExampleSearch};
use rollout_tests::wait;

use crate::cluster::{DEADLINE, DRAIN_DEADLINE, LEASE};

#[test]
fn search_limits_hold_over_workers_and_coordinator_kills() {
    let (llm, sweeps) = (LiveCounter::start(), LiveCounter::start());
    let search = ExampleSearch::with_command_counters(&llm, &sweeps)
        .with_replacement("bash search/ideas", "sleep 2\n      bash search/ideas")
        .with_limits("{sweep_max_parallel: 1, llm_max_inflight: 1, llm_rate_limit: 120}");
    let project = search.write(Project::new(env!("CARGO_BIN_EXE_rollout-under-test")));
    let Some(cluster) = Cluster::new(project).map(|cluster| cluster.with_lease(LEASE)) else {
        return;
    };
    let workers = ["a", "b"].map(|name| cluster.worker(name, 3).started());
    let mut coordinator =
        cluster.search(&search.file).with_arguments(&["--runs-root", "runs"]).started();
    wait::until(DEADLINE, "the command for ideas", || llm.running() > 0);
    coordinator.kill();
    coordinator.start();
    for _ in 0..3 {
        let before = sweeps.observed().len();
        wait::until(DEADLINE, "a sweep", || {
            sweeps.running() > 0 && sweeps.observed().len() > before
        });
        coordinator.kill();
        coordinator.start();
    }
    let _ended = coordinator.wait(DEADLINE).expect_code(ExitCode::Success);
    assert_eq!(sweeps.peak(), 1, "{:#?}", sweeps.observed());
    assert_eq!(llm.peak(), 1, "{:#?}", llm.observed());
    let directory = search.directory(&cluster.project, "runs");
    assert_eq!(search::leaked_files(&directory), Vec::<String>::new());
    for mut worker in workers {
        let ended = worker.terminate(DRAIN_DEADLINE);
        assert!(ended.status.success(), "{}: {}", worker.name, ended.stderr);
    }
    assert_eq!(cluster.host_files(), Vec::<PathBuf>::new());
}
