//! `rollout tree run --dry-run`, and the commands that read its result.

use std::fs;
use std::path::Path;

use rollout_protocol::exit::ExitCode;
use rollout_tests::project::Project;
use serde_json::Value;

use crate::tree::{DEADLINE, project};

const TREE: &str = "\
tree_run_id: played
root_baseline_csv: base.csv
ideas_per_node: 4
beam_width: 2
max_depth: 3
sweep_config_limit: 5
environment: {type: process}
commands:
  ideas: {run: exit 1}
  implement: {run: exit 1}
  sweep: {run: exit 1}
";

const REPORTS: [&str; 3] = ["TREE_SUMMARY.md", "TREE_GRAPH.md", "tree.html"];

fn search() -> Project {
    project()
        .write("tree.yaml", TREE)
        .write("base.csv", "config_id,status,core_topN_sharpe\n0,ok,1\n")
}

fn simulate(project: &Project, options: &[&str]) -> Value {
    let words = [&["tree", "run", "tree.yaml", "--dry-run", "--json"], options].concat();
    let ended = project.rollout(&words).wait(DEADLINE).expect_code(ExitCode::Success);
    serde_json::from_str(&ended.stdout).expect("a JSON document")
}

fn read(directory: &Path, name: &str) -> String {
    fs::read_to_string(directory.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

#[test]
fn dry_run_repeated_leaves_equal_bytes() {
    let project = search();
    let found = simulate(&project, &["--runs-root", "one"]);
    assert_eq!(found["stop_reason"], "max_depth_reached");
    assert_eq!((&found["evals"], &found["settled"]), (&20.into(), &20.into()));
    simulate(&project, &["--runs-root", "two"]);
    simulate(&project, &["--runs-root", "three", "--max-parallel-evals", "4"]);
    let search_dir = |root: &str| project.path().join(root).join("played");
    let (one, two, three) = (search_dir("one"), search_dir("two"), search_dir("three"));
    for name in REPORTS {
        assert_eq!(read(&one, name), read(&two, name), "{name}");
        assert_eq!(read(&one, name), read(&three, name), "{name}, four at once");
    }
    let manifest = read(&one, "manifest.json");
    assert_eq!(manifest, read(&two, "manifest.json"));
    let comparable = |text: String| {
        let lines = text.lines().filter(|line| !line.contains("max_parallel_evals"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(comparable(manifest), comparable(read(&three, "manifest.json")));
    assert!(!one.join("run.lock.json").exists(), "the lock is released");
}

#[test]
fn dry_run_can_be_shown_reported_and_validated() {
    let project = search();
    simulate(&project, &[]);
    let root = project.path().join("tree_runs/played");
    let ended = |words: &[&str]| project.rollout(words).wait(DEADLINE);
    let shown = ended(&["tree", "show", "tree_runs/played"]).expect_code(ExitCode::Success).stdout;
    for words in ["max_depth_reached", "primary_regressed", "promoted to 0001", "best path"] {
        assert!(shown.contains(words), "{words} not in:\n{shown}");
    }
    let before = REPORTS.map(|name| read(&root, name));
    for name in REPORTS {
        fs::remove_file(root.join(name)).expect("removed");
    }
    let _made = ended(&["tree", "report", "tree_runs/played"]).expect_code(ExitCode::Success);
    assert_eq!(before, REPORTS.map(|name| read(&root, name)));
    let validate = ["tree", "validate", "tree_runs/played", "--json"];
    let _sound = ended(&validate).expect_code(ExitCode::Success);
    fs::write(root.join("artifacts/candidate_eval_0003.csv"), "other").expect("written");
    fs::remove_file(root.join("artifacts/candidate_eval_0001.csv")).expect("removed");
    let found = ended(&validate).expect_code(ExitCode::RunDamaged).stdout;
    let found: Value = serde_json::from_str(&found).expect("a JSON document");
    let kinds: Vec<_> =
        found["faults"].as_array().expect("a list").iter().map(|f| f["kind"].clone()).collect();
    assert!(kinds.contains(&"changed_file".into()) && kinds.contains(&"missing_file".into()));
    let report = read(&root, "VALIDATION_REPORT.md");
    assert!(report.contains("candidate\\_eval\\_0003.csv has other bytes"), "{report}");
    let again = ["tree", "run", "tree.yaml", "--report-only"];
    let _unsound = ended(&again).expect_code(ExitCode::RunDamaged);
}

#[test]
fn dry_run_with_invalid_request_is_refused() {
    let project = search();
    let ended = |words: &[&str]| project.rollout(words).wait(DEADLINE);
    let _none = ended(&["tree", "show", "nowhere"])
        .expect_code(ExitCode::Config)
        .expect_stderr("is not a search directory");
    simulate(&project, &["--max-total-idea-evals", "3"]);
    let wider = ["tree", "run", "tree.yaml", "--dry-run", "--beam-width", "3"];
    let _changed = ended(&wider)
        .expect_code(ExitCode::PlanMismatch)
        .expect_stderr("beam_width: 2 is now 3")
        .expect_stderr("budgets.evals: 3 is now null");
    let twice = ["tree", "run", "tree.yaml", "--dry-run", "--resume", "false"];
    let _exists = ended(&twice).expect_code(ExitCode::Config).expect_stderr("already");
    let bad = project.path().join("bad.yaml");
    fs::write(&bad, "beam_with: 2\nideas_per_node: 0\n").expect("written");
    let _faults = ended(&["tree", "run", "bad.yaml", "--dry-run"])
        .expect_code(ExitCode::Config)
        .expect_stderr("did you mean `beam_width`")
        .expect_stderr("ideas_per_node")
        .expect_stderr("root_baseline_csv");
}
