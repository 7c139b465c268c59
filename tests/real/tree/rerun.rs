//! Evals that are run again on request, and the arguments of sweeps.

use std::collections::BTreeMap;

use rollout_protocol::exit::ExitCode;
use rollout_tests::leak_check;
use rollout_tests::project::Project;
use rollout_tests::results::json;
use rollout_tests::search;
use serde_json::Value;

use crate::tree::DEADLINE;
use crate::tree::small_search::SmallSearch;

/// The execution of each eval, and its item in the run.
fn executions(project: &Project) -> BTreeMap<String, (Value, Value)> {
    let directory = SmallSearch::directory(project);
    let manifest = json(&directory.join("manifest.json")).expect("a manifest");
    let evals = manifest["evaluations"].as_object().expect("evals").keys();
    let of = |id: &String| {
        let path = directory.join(format!("eval/{id}/experiment/attempt-1/record.json"));
        let record = json(&path).expect("a record");
        (id.clone(), (record["exec"].clone(), record["item"].clone()))
    };
    evals.map(of).collect()
}

#[test]
fn rerun_of_ended_search_repeats_last_depth() {
    let keys = "sweep_config_limit: 3\nmax_depth: 2\nbeam_width: 1".to_owned();
    let project = SmallSearch { keys, ..SmallSearch::default() }.write();
    let _ended =
        project.rollout(&SmallSearch::run(&[])).wait(DEADLINE).expect_code(ExitCode::Success);
    let before = executions(&project);
    let first_manifest = search::comparable_manifest(&SmallSearch::directory(&project));
    let again = project.rollout(&SmallSearch::run(&["--rerun-evals"])).wait(DEADLINE);
    let _ended = again.expect_code(ExitCode::Success);
    let after = executions(&project);
    for (id, (exec, item)) in &after {
        // Two evals of the root stay; those of the last depth are new executions of new items.
        let is_new = exec != &before[id].0 && item != &before[id].1;
        assert_eq!(is_new, ["0002", "0003"].contains(&id.as_str()), "{id}");
    }
    let directory = SmallSearch::directory(&project);
    let now = search::comparable_manifest(&directory);
    for key in ["nodes", "evaluations"] {
        assert_eq!(now[key], first_manifest[key], "{key}");
    }
    let validated = project.rollout(&["tree", "validate", "runs/small"]).wait(DEADLINE);
    let _sound = validated.expect_code(ExitCode::Success);
    assert_eq!(search::leaked_files(&directory), Vec::<String>::new());
    leak_check::assert_no_leaks(&project);
}

#[test]
fn sweep_config_limit_is_passed_as_argument() {
    let small = SmallSearch::default();
    let sweep = format!("[ \"$*\" = '--sweep-config-limit 3' ] || exit 9\n{}", small.sweep);
    let implement = format!("[ $# = 0 ] || exit 8\n{}", small.implement);
    let project = SmallSearch { sweep, implement, ..small.clone() }.write();
    let _ended =
        project.rollout(&SmallSearch::run(&[])).wait(DEADLINE).expect_code(ExitCode::Success);
    let keys = "min_candidate_rows: 1\nmax_depth: 1".to_owned();
    let sweep = format!("[ $# = 0 ] || exit 9\n{}", small.sweep);
    let project = SmallSearch { sweep, keys, ..small }.write();
    let _ended =
        project.rollout(&SmallSearch::run(&[])).wait(DEADLINE).expect_code(ExitCode::Success);
}

#[test]
fn idea_not_utf8_is_not_evaluated() {
    let ideas = "cd \"$ROLLOUT_IDEAS_DIR\"; printf '\\377\\376' > 1.md; printf 'a\\0b' > 2.md\n\
                 echo '- an idea' > 3.md"
        .to_owned();
    let project = SmallSearch { ideas, ..SmallSearch::default() }.write();
    let ended =
        project.rollout(&SmallSearch::run(&[])).wait(DEADLINE).expect_code(ExitCode::Success);
    let _warned = ended.expect_stderr("skipped 2 entries among the ideas of node 0000");
    let directory = SmallSearch::directory(&project);
    let manifest = json(&directory.join("manifest.json")).expect("a manifest");
    assert_eq!(manifest["evaluations"].as_object().expect("evals").len(), 1);
    let reasons = std::fs::read_to_string(directory.join("logs/ideas/0000/left_out.txt"));
    let told = reasons.expect("it says why");
    for words in ["\"1.md\": it is not text: byte 0", "\"2.md\": it is not text: byte 1"] {
        assert!(told.contains(words), "{words} not in {told}");
    }
    let ideas = "printf '\\377' > \"$ROLLOUT_IDEAS_DIR/1.md\"".to_owned();
    let project = SmallSearch { ideas, ..SmallSearch::default() }.write();
    let ended =
        project.rollout(&SmallSearch::run(&[])).wait(DEADLINE).expect_code(ExitCode::Failure);
    let _told = ended.expect_stderr("the command wrote no idea");
}
