//! The search example in sandboxes and in containers.

use rollout_protocol::exit::ExitCode;
use rollout_tests::docker::DockerEngine;
use rollout_tests::results::json;
use rollout_tests::search::{self, ExampleSearch};
use rollout_tests::{leak_check, project::Project};
use serde_json::Value;

use crate::tree::{DEADLINE, project};

/// Decisions of a search: the nodes' ideas, and every eval's status, reason and score.
fn decisions(search: &ExampleSearch, project: &Project) -> Vec<Value> {
    let directory = search.directory(project, "runs");
    let manifest = json(&directory.join("manifest.json")).expect("a manifest");
    let of = |of: &str, fields: [&str; 4]| {
        let all = manifest[of].as_object().expect("an object").values();
        let take = |one: &Value| fields.map(|field| one[field].clone()).to_vec();
        all.map(take).collect::<Vec<_>>()
    };
    let nodes = of("nodes", ["node_id", "idea_chain", "promoted_from_eval_id", "depth"]);
    let evals = of("evaluations", ["eval_id", "status", "parent_relative", "root_relative"]);
    let all = manifest["evaluations"].as_object().expect("evals").values();
    let reasons = all.map(|eval| {
        let decision = &eval["decision"];
        let fields = ["promotion_reason", "rank_score", "promoted_to_node_id"];
        fields.map(|field| decision[field].clone()).to_vec()
    });
    nodes.into_iter().chain(evals).chain(reasons).map(Value::from).collect()
}

/// Runs both at the same time: an eval of each hangs until its time limit.
fn run(searches: [&ExampleSearch; 2], project: &Project) {
    let start = |search: &ExampleSearch| {
        project.rollout(&["tree", "run", &search.file, "--runs-root", "runs"])
    };
    for started in searches.map(start) {
        let _ended = started.wait(DEADLINE).expect_code(ExitCode::Success);
    }
    for search in searches {
        let directory = search.directory(project, "runs");
        assert_eq!(search::leaked_files(&directory), Vec::<String>::new());
    }
    leak_check::assert_no_leaks(project);
}

#[test]
fn example_in_containers_promotes_same_as_in_sandboxes() {
    let Some(_engine) = DockerEngine::available() else { return };
    let [sandboxes, containers] = ["tree.yaml", "docker.yaml"].map(ExampleSearch::example);
    let project = sandboxes.write(project());
    run([&sandboxes, &containers], &project);
    assert_eq!(decisions(&sandboxes, &project), decisions(&containers, &project));
}
