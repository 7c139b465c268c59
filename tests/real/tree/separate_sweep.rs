//! Sweeps in a separate environment.

use std::fs;
use std::path::{Path, PathBuf};

use rollout_protocol::exit::ExitCode;
use rollout_tests::docker::DockerEngine;
use rollout_tests::results::json;
use rollout_tests::search::{self, ExampleSearch};
use rollout_tests::{leak_check, project::Project};
use serde_json::Value;

use crate::tree::{DEADLINE, project};

/// Script of `implement` that leaves files outside of its checkout.
const LEAVE_MARKS_SCRIPT: &str = "run: |\n      bash search/implement\n      \
    echo left >/tmp/mark\n      echo implemented >\"$ROLLOUT_LOGS_DIR/by\"";

/// Lines of the sweep's script that log the files it sees.
const SHOW_MARKS_SCRIPT: &str =
    "cat /tmp/mark >\"$ROLLOUT_LOGS_DIR/seen\" 2>/dev/null || true\n      limit=$";

/// The example to its first depth, with other `keys` of its sweep.
fn search(keys: &str) -> ExampleSearch {
    ExampleSearch::example("tree.yaml")
        .with_replacement("max_depth: 3", "max_depth: 1")
        .with_replacement("run: bash search/implement", LEAVE_MARKS_SCRIPT)
        .with_replacement("limit=$", SHOW_MARKS_SCRIPT)
        .with_replacement("  sweep:\n", &format!("  sweep:\n{keys}"))
}

/// Runs the search. Returns its directory.
fn run(search: &ExampleSearch, project: &Project) -> PathBuf {
    let words = ["tree", "run", &search.file, "--runs-root", "runs"];
    let _ended = project.rollout(&words).wait(DEADLINE).expect_code(ExitCode::Success);
    let directory = search.directory(project, "runs");
    assert_eq!(search::leaked_files(&directory), Vec::<String>::new());
    leak_check::assert_no_leaks(project);
    directory
}

/// The last attempt of an eval that was swept: its directory and its record.
fn last_try(search: &Path) -> (PathBuf, Value) {
    let tried = search.join("eval/0001/experiment/attempt-1");
    let record = json(&tried.join("record.json")).expect("a record");
    (tried, record)
}

fn decisions(search: &Path) -> Vec<Value> {
    let manifest = json(&search.join("manifest.json")).expect("a manifest");
    let evals = manifest["evaluations"].as_object().expect("evals").values();
    let of = |eval: &Value| {
        let decision = &eval["decision"];
        let score = &decision["rank_score"];
        Value::from(vec![decision["promotion_reason"].clone(), score.clone()])
    };
    let commits = manifest["nodes"].as_object().expect("nodes").values();
    evals.map(of).chain(commits.map(|node| node["commit"].clone())).collect()
}

/// Runs the search with a separate sweep; fails unless it ran separately with the same decisions.
#[track_caller]
fn assert_separate(separate: &ExampleSearch, providers: [&str; 2], shared: &Path) {
    let project = separate.write(project());
    let directory = run(separate, &project);
    assert_eq!(decisions(&directory), decisions(shared), "the commits are what is measured");
    let (tried, record) = last_try(&directory);
    let read = |file: &str| fs::read_to_string(tried.join(file)).expect(file);
    assert_eq!(read("logs/by"), "implemented\n");
    assert_eq!(read("sweep_logs/seen"), "", "only the commit is there");
    assert!(!tried.join("sweep_logs/by").exists() && !tried.join("logs/seen").exists());
    let made = ["environment", "sweep_environment"].map(|key| &record[key]);
    assert_eq!(made.map(|environment| environment["provider"].as_str()), providers.map(Some));
    assert_ne!(made[0]["id"], made[1]["id"]);
}

#[test]
fn sweep_with_own_environment_runs_separately() {
    let (shared_search, separate) =
        (search(""), search("    environment: {type: process, memory_mb: 1024}\n"));
    let project = shared_search.write(project());
    let shared = run(&shared_search, &project);
    let (tried, record) = last_try(&shared);
    let seen = fs::read_to_string(tried.join("logs/seen")).expect("logs");
    assert_eq!((seen.as_str(), &record["sweep_environment"]), ("left\n", &Value::Null));
    assert_separate(&separate, ["process", "process"], &shared);
}

#[test]
fn sweep_in_sandbox_measures_idea_from_container() {
    let Some(_engine) = DockerEngine::available() else { return };
    let shared_search = search("");
    let project = shared_search.write(project());
    let shared = run(&shared_search, &project);
    let container = "environment: {docker_image: debian:bookworm-slim}\n    run: |\n";
    let separate = search("")
        .with_replacement("run: |\n      bash search", &format!("{container}      bash search"));
    let apart = separate.with_replacement("eval_timeout_seconds: 8", "eval_timeout_seconds: 30");
    assert_separate(&apart, ["docker", "process"], &shared);
}
