//! Tree searches whose evals run on remote workers.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use rollout_protocol::exit::ExitCode;
use rollout_tests::chaos::{self, ChaosPlan};
use rollout_tests::cluster::Cluster;
use rollout_tests::project::Project;
use rollout_tests::results::json;
use rollout_tests::search::{self, ExampleSearch};
use rollout_tests::{audit, leak_check, print_notice, results, wait};
use serde_json::Value;

use crate::cluster::{DEADLINE, DRAIN_DEADLINE, LEASE};

#[test]
fn search_over_three_workers_equals_local_search() {
    let search = ExampleSearch::example("tree.yaml").with_replacement("k < 2000", "k < 1000");
    let project = search.write(Project::new(env!("CARGO_BIN_EXE_rollout-under-test")));
    let Some(cluster) = Cluster::new(project).map(|cluster| cluster.with_lease(LEASE)) else {
        return;
    };
    let local = cluster.project.rollout(&["tree", "run", &search.file, "--runs-root", "alone"]);
    let workers = ["a", "b", "c"].map(|name| cluster.worker(name, 2).started());
    let _ended = local.wait(DEADLINE).expect_code(ExitCode::Success);

    let mut coordinator =
        cluster.search(&search.file).with_arguments(&["--runs-root", "cluster"]).started();
    let _ended = coordinator.wait(DEADLINE).expect_code(ExitCode::Success);
    let directory = |root| search.directory(&cluster.project, root);
    let (alone, remote) = (directory("alone"), directory("cluster"));
    assert_eq!(search::differences(&alone, &remote), Vec::<String>::new());
    for run in [&alone, &remote] {
        assert_eq!(search::leaked_files(run), Vec::<String>::new());
    }
    let manifest = json(&remote.join("manifest.json")).expect("a manifest");
    let evals = manifest["evaluations"].as_object().expect("evals").values();
    let ran_on: BTreeSet<_> = evals.map(|eval| eval["worker"].to_string()).collect();
    assert_eq!(ran_on.len(), 3, "all worked: {ran_on:?}");

    for mut worker in workers {
        let ended = worker.terminate(DRAIN_DEADLINE);
        assert!(ended.status.success(), "{}: {}", worker.name, ended.stderr);
    }
    let known = audit::executions(&audit::settlements(&results::Results::new(remote)));
    let left = leak_check::cluster_leaks(&cluster, &known, leak_check::CLEANUP_DEADLINE);
    assert_eq!(left, Vec::<String>::new());
    assert_eq!(cluster.host_files(), Vec::<PathBuf>::new());
}

#[test]
fn search_under_repeated_kills_is_unchanged() {
    let plan = ChaosPlan {
        seed: 3,
        disturbed: Duration::from_secs(60),
        items: 24,
        workers: 3,
        slots: 2,
        seconds: (1.0, 5.0),
        providers: vec!["process".to_owned()],
        pause: (2.0, 5.0),
        lease: Duration::from_secs(6),
        no_return: false,
        only_kills: true,
        s3_program: None,
    };
    let project = Project::new(env!("CARGO_BIN_EXE_rollout-under-test"));
    let Some(report) = chaos::run_search(&plan, project, &print_notice) else { return };
    print_notice(&report.to_string());
    assert_eq!(report.problems, Vec::<String>::new(), "{plan:?}\n{report}");
}

#[test]
fn worker_kill_during_ideas_changes_nothing() {
    let search = ExampleSearch::example("tree.yaml")
        .with_replacement("k < 2000", "k < 500")
        .with_replacement(
            "run: bash search/ideas",
            "run: |\n      sleep 2\n      bash search/ideas",
        );
    let project = search.write(Project::new(env!("CARGO_BIN_EXE_rollout-under-test")));
    let Some(cluster) = Cluster::new(project).map(|cluster| cluster.with_lease(LEASE)) else {
        return;
    };
    let local = cluster.project.rollout(&["tree", "run", &search.file, "--runs-root", "alone"]);
    let _ended = local.wait(DEADLINE).expect_code(ExitCode::Success);
    let mut workers = ["a", "b"].map(|name| cluster.worker(name, 2).started());
    let words = ["--runs-root", "cluster", "--json"];
    let mut coordinator = cluster.search(&search.file).with_arguments(&words).started();

    // The first execution of the ideas of each depth is killed with its worker.
    for depth in 0..3 {
        let mut killed = None;
        wait::until(DEADLINE, "a worker writes ideas", || {
            let stdout = coordinator.process().stdout();
            let kinds = ["ideas_started", "depth_planned"];
            let [begun, planned] = kinds.map(|kind| depths(&stdout, kind));
            if begun > depth && planned == depth {
                killed = workers.iter().position(|worker| !worker.executing_items().is_empty());
            }
            killed.is_some()
        });
        let worker = &mut workers[killed.expect("it was found")];
        let _killed = worker.kill();
        worker.start();
    }
    let ended = coordinator.wait(DEADLINE).expect_code(ExitCode::Success);
    assert!(ended.stdout.contains("\"event\":\"trial_lost\""), "{}", ended.stdout);
    let directory = |root| search.directory(&cluster.project, root);
    let (alone, remote) = (directory("alone"), directory("cluster"));
    assert_eq!(search::differences(&alone, &remote), Vec::<String>::new());
    let settlements = audit::settlements(&results::Results::new(remote));
    let lost = audit::superseded(&settlements).values().sum::<usize>();
    assert!(lost >= 3, "{lost} executions were lost");
    let known = audit::executions(&settlements);
    workers.iter_mut().for_each(|worker| drop(worker.terminate(DRAIN_DEADLINE)));
    let left = leak_check::cluster_leaks(&cluster, &known, leak_check::CLEANUP_DEADLINE);
    assert_eq!(left, Vec::<String>::new());
}

/// Number of depths with an event of this kind; events of several nodes of a depth count once.
fn depths(json_lines: &str, kind: &str) -> usize {
    let lines = json_lines.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let kinds: Vec<_> = lines.map(|line| line["event"].as_str().unwrap_or("").to_owned()).collect();
    let relevant: Vec<_> = kinds.iter().filter(|k| *k == kind || *k == "depth_decided").collect();
    let groups = relevant.split(|k| *k == "depth_decided");
    groups.filter(|group| !group.is_empty()).count()
}
