//! Commands that read a run, on the directory of a search.

use rollout_protocol::exit::ExitCode;
use rollout_tests::project::Project;
use serde_json::Value;

use crate::tree::DEADLINE;
use crate::tree::small_search::SmallSearch;

fn json(project: &Project, arguments: &[&str]) -> Value {
    let exit = project.rollout(arguments).wait(DEADLINE).expect_code(ExitCode::Success);
    serde_json::from_str(&exit.stdout).expect("one JSON document")
}

#[test]
fn status_and_list_count_items_of_search() {
    let project = SmallSearch::default().write();
    let ended = project.rollout(&SmallSearch::run(&[])).wait(DEADLINE);
    let _ended = ended.expect_code(ExitCode::Success);
    let status = json(&project, &["status", "runs/small", "--json"]);
    assert_eq!((&status["kind"], &status["state"]), (&"search".into(), &"completed".into()));
    // Two evals and the ideas of the root.
    let counts = &status["counts"];
    assert_eq!((&counts["total"], &counts["completed"]), (&3.into(), &3.into()), "{status:#}");
    let list = json(&project, &["list", "runs", "--json"]);
    let run = list["runs"].as_array().expect("a list").iter().find(|run| run["name"] == "small");
    assert_eq!(run.expect("the search")["settled"], 3, "{list:#}");
    let text = project.rollout(&["list", "runs"]).wait(DEADLINE).stdout;
    assert!(text.contains("completed (search)"), "{text}");
}

#[test]
fn simulated_search_is_listed_without_counts() {
    let project = SmallSearch::default().write();
    let ended = project.rollout(&SmallSearch::run(&["--dry-run"])).wait(DEADLINE);
    let _ended = ended.expect_code(ExitCode::Success);
    let status = json(&project, &["status", "runs/small", "--json"]);
    assert_eq!((&status["state"], &status["counts"]["total"]), (&"simulated".into(), &0.into()));
}
