//! Sweeps in an environment of their own.

use std::fs;
use std::path::{Path, PathBuf};

use rollout_protocol::exit::ExitCode;
use rollout_tests::docker::Engine;
use rollout_tests::results::json;
use rollout_tests::search::{self, Search};
use rollout_tests::{leftovers, project::Project};
use serde_json::Value;

use crate::{DEADLINE, project};

/// What `implement` leaves outside of its checkout.
const LEAVES: &str = "run: |\n      bash search/implement\n      \
    echo left >/tmp/mark\n      echo implemented >\"$ROLLOUT_LOGS_DIR/by\"";

/// What the sweep tells of the place where it runs.
const TELLS: &str = "cat /tmp/mark >\"$ROLLOUT_LOGS_DIR/seen\" 2>/dev/null || true\n      limit=$";

/// The example to its first depth, with other `keys` of its sweep.
fn search(keys: &str) -> Search {
    Search::example("tree.yaml")
        .with("max_depth: 3", "max_depth: 1")
        .with("run: bash search/implement", LEAVES)
        .with("limit=$", TELLS)
        .with("  sweep:\n", &format!("  sweep:\n{keys}"))
}

/// Runs it; its directory.
fn run(search: &Search, project: &Project) -> PathBuf {
    let words = ["tree", "run", &search.file, "--runs-root", "runs"];
    let _ended = project.rollout(&words).wait(DEADLINE).expect(ExitCode::Success);
    let directory = search.directory(project, "runs");
    assert_eq!(search::leftovers(&directory), Vec::<String>::new());
    leftovers::assert_none(project);
    directory
}

/// The last try of an eval that was swept: what it left, and its record.
fn tried(search: &Path) -> (PathBuf, Value) {
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

/// Runs the search with a sweep apart, and shows that it was and came to the same.
#[track_caller]
fn assert_apart(apart: &Search, providers: [&str; 2], shared: &Path) {
    let project = apart.write(project());
    let directory = run(apart, &project);
    assert_eq!(decisions(&directory), decisions(shared), "what is measured are the commits");
    let (tried, record) = tried(&directory);
    let read = |file: &str| fs::read_to_string(tried.join(file)).expect(file);
    assert_eq!(read("logs/by"), "implemented\n");
    assert_eq!(read("sweep_logs/seen"), "", "nothing but the commit is there");
    assert!(!tried.join("sweep_logs/by").exists() && !tried.join("logs/seen").exists());
    let made = ["environment", "sweep_environment"].map(|key| &record[key]);
    assert_eq!(made.map(|environment| environment["provider"].as_str()), providers.map(Some));
    assert_ne!(made[0]["id"], made[1]["id"]);
}

#[test]
fn sweep_with_own_environment_runs_separately() {
    let (together, apart) =
        (search(""), search("    environment: {type: process, memory_mb: 1024}\n"));
    let project = together.write(project());
    let shared = run(&together, &project);
    let (tried, record) = tried(&shared);
    let seen = fs::read_to_string(tried.join("logs/seen")).expect("logs");
    assert_eq!((seen.as_str(), &record["sweep_environment"]), ("left\n", &Value::Null));
    assert_apart(&apart, ["process", "process"], &shared);
}

#[test]
fn sweep_in_sandbox_measures_idea_from_container() {
    let Some(_engine) = Engine::available() else { return };
    let together = search("");
    let project = together.write(project());
    let shared = run(&together, &project);
    let container = "environment: {docker_image: debian:bookworm-slim}\n    run: |\n";
    let apart =
        search("").with("run: |\n      bash search", &format!("{container}      bash search"));
    let apart = apart.with("eval_timeout_seconds: 8", "eval_timeout_seconds: 30");
    assert_apart(&apart, ["docker", "process"], &shared);
}
