//! Tree searches whose evals run on workers elsewhere.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use rollout_protocol::exit::ExitCode;
use rollout_tests::chaos::{self, Plan};
use rollout_tests::cluster::Cluster;
use rollout_tests::project::Project;
use rollout_tests::results::json;
use rollout_tests::search::{self, Search};
use rollout_tests::{audit, leftovers, note, results};

use crate::{DEADLINE, LEASE, LEAVE};

#[test]
fn three_workers_come_to_the_same_as_one_process() {
    let search = Search::example("tree.yaml").with("k < 8000", "k < 1000");
    let project = search.write(Project::new(env!("CARGO_BIN_EXE_rollout-under-test")));
    let Some(cluster) = Cluster::new(project).map(|cluster| cluster.lease(LEASE)) else { return };
    let alone = cluster.project.rollout(&["tree", "run", &search.file, "--runs-root", "alone"]);
    let workers = ["a", "b", "c"].map(|name| cluster.worker(name, 2).started());
    let _ended = alone.wait(DEADLINE).expect(ExitCode::Success);

    let mut coordinator = cluster.search(&search.file).with(&["--runs-root", "cluster"]).started();
    let _ended = coordinator.wait(DEADLINE).expect(ExitCode::Success);
    let directory = |root| search.directory(&cluster.project, root);
    let (alone, together) = (directory("alone"), directory("cluster"));
    assert_eq!(search::differences(&alone, &together), Vec::<String>::new());
    for run in [&alone, &together] {
        assert_eq!(search::leftovers(run), Vec::<String>::new());
    }
    let manifest = json(&together.join("manifest.json")).expect("a manifest");
    let evals = manifest["evaluations"].as_object().expect("evals").values();
    let ran_on: BTreeSet<_> = evals.map(|eval| eval["worker"].to_string()).collect();
    assert_eq!(ran_on.len(), 3, "all worked: {ran_on:?}");

    for mut worker in workers {
        let ended = worker.terminate(LEAVE);
        assert!(ended.status.success(), "{}: {}", worker.name, ended.stderr);
    }
    let known = audit::executions(&audit::settlements(&results::Results::new(together)));
    let left = leftovers::of_cluster(&cluster, &known, leftovers::SOON);
    assert_eq!(left, Vec::<String>::new());
    assert_eq!(cluster.kept(), Vec::<PathBuf>::new());
}

#[test]
fn a_storm_of_kills_changes_nothing_of_a_search() {
    let plan = Plan {
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
    };
    let project = Project::new(env!("CARGO_BIN_EXE_rollout-under-test"));
    let Some(report) = chaos::search(&plan, project, &note) else { return };
    note(&report.to_string());
    assert_eq!(report.problems, Vec::<String>::new(), "{plan:?}\n{report}");
}
