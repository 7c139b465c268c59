//! Limits of a search over all workers, as who sees every command counts them.

use std::path::PathBuf;

use rollout_protocol::exit::ExitCode;
use rollout_tests::cluster::Cluster;
use rollout_tests::project::Project;
use rollout_tests::search::{self, Search};
use rollout_tests::wait;
use rollout_tests::witness::Witness;

use crate::{DEADLINE, LEASE, LEAVE};

#[test]
fn search_limits_hold_over_workers_and_coordinator_kills() {
    let (llm, sweeps) = (Witness::start(), Witness::start());
    let search = Search::counted(&llm, &sweeps)
        .with("bash search/ideas", "sleep 2\n      bash search/ideas")
        .limited("{sweep_max_parallel: 1, llm_max_inflight: 1, llm_rate_limit: 120}");
    let project = search.write(Project::new(env!("CARGO_BIN_EXE_rollout-under-test")));
    let Some(cluster) = Cluster::new(project).map(|cluster| cluster.lease(LEASE)) else { return };
    let workers = ["a", "b"].map(|name| cluster.worker(name, 3).started());
    let mut coordinator = cluster.search(&search.file).with(&["--runs-root", "runs"]).started();
    wait::until(DEADLINE, "the command for ideas", || llm.running() > 0);
    coordinator.kill();
    coordinator.start();
    for _ in 0..3 {
        let before = sweeps.seen().len();
        wait::until(DEADLINE, "a sweep", || sweeps.running() > 0 && sweeps.seen().len() > before);
        coordinator.kill();
        coordinator.start();
    }
    let _ended = coordinator.wait(DEADLINE).expect(ExitCode::Success);
    assert_eq!(sweeps.most(), 1, "{:#?}", sweeps.seen());
    assert_eq!(llm.most(), 1, "{:#?}", llm.seen());
    let directory = search.directory(&cluster.project, "runs");
    assert_eq!(search::leftovers(&directory), Vec::<String>::new());
    for mut worker in workers {
        let ended = worker.terminate(LEAVE);
        assert!(ended.status.success(), "{}: {}", worker.name, ended.stderr);
    }
    assert_eq!(cluster.kept(), Vec::<PathBuf>::new());
}
