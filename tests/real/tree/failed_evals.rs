//! Failed evals: their messages, and the exit code of a search in which all evals fail.

use std::fs;

use rollout_protocol::exit::ExitCode;
use rollout_tests::project::Project;
use rollout_tests::results::json;
use serde_json::Value;

use crate::tree::DEADLINE;
use crate::tree::small_search::SmallSearch;

fn read(project: &Project, name: &str) -> String {
    let path = SmallSearch::directory(project).join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{name}: {error}"))
}

#[test]
fn exit_code_of_search_with_all_evals_failed_is_distinct() {
    let implement = "echo no such model >&2; exit 3".to_owned();
    let project = SmallSearch { implement, ..SmallSearch::default() }.write();
    let ended = project
        .rollout(&SmallSearch::run(&[]))
        .wait(DEADLINE)
        .expect_code(ExitCode::NothingMeasured);
    let message = "implement: the command ended with code 3: no such model";
    let ended = ended.expect_stderr(&format!("eval 0000: failed: implement_failed: {message}"));
    let _warned = ended
        .expect_stderr(&format!("none of 2 evals has results to compare; eval 0000: {message}"));
    for name in ["TREE_SUMMARY.md", "tree.html"] {
        assert!(read(&project, name).contains(message), "{name}");
    }
    let shown = project.rollout(&["tree", "show", "runs/small"]).wait(DEADLINE);
    let shown = shown.expect_code(ExitCode::Success).stdout;
    assert!(shown.contains(message) && shown.contains("2 failed"), "{shown}");
    let again = project.rollout(&SmallSearch::run(&[])).wait(DEADLINE);
    let _same = again.expect_code(ExitCode::NothingMeasured);
}

#[test]
fn exit_code_of_search_with_one_eval_ok_is_success() {
    let implement = "grep -q 1 \"$ROLLOUT_IDEA_FILE\"".to_owned();
    let project = SmallSearch { implement, ..SmallSearch::default() }.write();
    let ended =
        project.rollout(&SmallSearch::run(&[])).wait(DEADLINE).expect_code(ExitCode::Success);
    let _told = ended.expect_stderr("eval 0000 is not promoted: no_changes");
}

#[test]
fn error_with_timestamp_leaves_equal_reports() {
    let implement = "cp \"$ROLLOUT_IDEA_FILE\" x.txt\n\
                     if grep -q 2 x.txt; then echo \"1 failed in $(date +%N)ms at $(date)\" >&2; exit 1; fi";
    let keys = "sweep_config_limit: 3\nmax_depth: 2".to_owned();
    let small = SmallSearch { implement: implement.to_owned(), keys, ..SmallSearch::default() };
    let left = || {
        let project = small.write();
        let _ended =
            project.rollout(&SmallSearch::run(&[])).wait(DEADLINE).expect_code(ExitCode::Success);
        let manifest =
            json(&SmallSearch::directory(&project).join("manifest.json")).expect("a manifest");
        let error = manifest["evaluations"]["0001"]["error"].clone();
        let pack = manifest["nodes"]["0001"]["context_pack_files"].clone();
        let files = ["TREE_SUMMARY.md", "TREE_GRAPH.md", "tree.html", "context/0001/siblings.md"];
        (error, pack, files.map(|name| read(&project, name)))
    };
    let (one, other) = (left(), left());
    assert_eq!(one, other);
    let message = "implement: the command ended with code 1: 1 failed in <time> at <time>";
    assert_eq!(one.0["message"], Value::from(message));
    let siblings = &one.2[3];
    assert!(
        siblings.contains(&format!("eval_not_completed: implement_failed: {message}")),
        "{siblings}"
    );
}
