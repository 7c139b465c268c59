//! Hints of runs on workers that name a command: run as printed, each does what it says.

use std::path::PathBuf;

use rollout_protocol::exit::ExitCode;
use rollout_tests::cluster::Cluster;
use rollout_tests::live_counter::LiveCounter;
use rollout_tests::load::Load;
use rollout_tests::project::Project;
use rollout_tests::results::{Results, json};
use rollout_tests::search::ExampleSearch;
use rollout_tests::{audit, leak_check, wait};

use crate::cluster::{
    DEADLINE, DRAIN_DEADLINE, LEASE, assert_no_leaks, assert_undisturbed, cluster,
};

#[test]
fn hint_of_run_on_workers_resumes_it_on_them() {
    for names_server in [true, false] {
        let Some(cluster) = cluster() else { return };
        let counter = LiveCounter::start();
        let load = Load { at_once: 2, ..Load::new("hinted", 8, (0.5, 1.0)) };
        load.write(&cluster.project, &counter);
        let worker = cluster.worker("a", 2).started();
        let coordinator = cluster.coordinator(&load.file());
        let mut coordinator = match names_server {
            true => coordinator.started(),
            false => {
                let coordinator = coordinator.without_option("--nats");
                coordinator.with_variable("ROLLOUT_NATS_URL", &cluster.server.url()).started()
            }
        };
        let results = cluster.project.results("hinted");
        wait::until(DEADLINE, "a result", || results.trial_count() > 0);
        let stopped = coordinator.terminate(DEADLINE).expect_code(ExitCode::Cancelled);
        let resumed = cluster.paste(&stopped.hinted_command()).wait(DEADLINE);
        let _ended = resumed.expect_code(ExitCode::Success);
        assert_undisturbed(&cluster, &load);
        assert_no_leaks(&cluster, &["hinted"], [worker]);
    }
}

#[test]
fn hint_of_search_on_workers_resumes_it_on_them() {
    let search = ExampleSearch::example("tree.yaml")
        .with_replacement("tree_run_id: integrate\n", "")
        .with_replacement("k < 2000", "k < 500");
    let project = search.write(Project::new(env!("CARGO_BIN_EXE_rollout-under-test")));
    let Some(cluster) = Cluster::new(project).map(|cluster| cluster.with_lease(LEASE)) else {
        return;
    };
    let mut worker = cluster.worker("a", 2).started();
    let mut coordinator = cluster.search(&search.file).started();
    let runs = || !worker.executing_items().is_empty();
    wait::until(DEADLINE, "a command of the search", runs);
    let stopped = coordinator.terminate(DEADLINE).expect_code(ExitCode::Cancelled);
    let mut hinted = stopped.hinted_commands();
    // The name of the search is told at its start, and again at its end.
    hinted.dedup();
    assert_eq!(hinted.len(), 1, "{}", stopped.stderr);
    let _ended = cluster.paste(&hinted[0]).wait(DEADLINE).expect_code(ExitCode::Success);
    let searches = cluster.project.runs("tree_runs");
    let [name] = searches.as_slice() else { panic!("expected one search, found {searches:?}") };
    let directory = cluster.project.path().join("tree_runs").join(name);
    let manifest = json(&directory.join("manifest.json")).expect("a manifest");
    let evals = manifest["evaluations"].as_object().expect("evals");
    assert!(evals.values().any(|eval| eval["worker"].is_string()), "{manifest:#}");

    let ended = worker.terminate(DRAIN_DEADLINE);
    assert!(ended.status.success(), "{}", ended.stderr);
    let known = audit::executions(&audit::settlements(&Results::new(directory)));
    let left = leak_check::cluster_leaks(&cluster, &known, leak_check::CLEANUP_DEADLINE);
    assert_eq!(left, Vec::<String>::new());
    assert_eq!(cluster.host_files(), Vec::<PathBuf>::new());
}
