//! The same job in one process and over a server with two workers.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use rollout_protocol::exit::ExitCode;
use rollout_tests::docker::DockerEngine;
use rollout_tests::project::{copy, repository};
use serde_json::Value;

use crate::cluster::{DEADLINE, assert_no_leaks, cluster};

/// Keys that differ between two runs of one job: times, costs, host and worker, identifiers of the
/// run, the `jobs_dir` that the test sets, and the digest over them.
const RUN_SPECIFIC_KEYS: &[&str] = &[
    "content",
    "cost",
    "total_cost",
    "durations",
    "environment",
    "exec",
    "host",
    "jobs_dir",
    "logs",
    "record",
    "run",
    "timestamps",
    "try",
    "worker",
];

#[test]
fn cluster_run_equals_local_run_on_docker() {
    let Some(_engine) = DockerEngine::available() else { return };
    assert_parity("docker", "docker");
}

#[test]
fn cluster_run_equals_local_run_in_sandbox() {
    assert_parity("quickstart", "process");
}

fn assert_parity(example: &str, provider: &str) {
    let Some(cluster) = cluster() else { return };
    copy(&repository().join("examples"), &cluster.project.path().join("examples"), &[]);
    let job = format!("examples/{example}/job.yaml");
    let embedded = cluster.project.rollout(&["run", &job, "--jobs-dir", "embedded"]);
    let _ended = embedded.wait(DEADLINE).expect_code(ExitCode::Success);

    let start = |name| cluster.worker(name, 1).with_option("--provider", provider).started();
    let workers = ["a", "b"].map(start);
    let mut coordinator = cluster.coordinator(&job).started();
    let _ended = coordinator.wait(DEADLINE).expect_code(ExitCode::Success);

    let results = cluster.project.results(example);
    let ran_on = results.trials().into_iter().map(|trial| trial.result["worker"].to_string());
    let ran_on: BTreeSet<_> = ran_on.collect();
    assert_eq!(ran_on.len(), 2, "both worked: {ran_on:?}");
    let local = comparable_files(&cluster.project.path().join("embedded").join(example));
    let remote = comparable_files(results.path());
    let names = |tree: &BTreeMap<String, String>| tree.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&local), names(&remote));
    for (name, content) in &local {
        assert_eq!(content, &remote[name], "{name}");
    }
    assert_no_leaks(&cluster, &[example], workers);
}

/// Files that depend on where the run's state is and how the run was started.
const RUN_STATE_FILES: [&str; 8] = [
    "journal",
    "records",
    "manifest.json",
    "plan.json",
    "resume.json",
    "store.json",
    "invocation.json",
    "tables",
];

/// Result files by name, without the parts that differ between two runs.
fn comparable_files(directory: &Path) -> BTreeMap<String, String> {
    let mut files = BTreeMap::new();
    let mut below = vec![directory.to_owned()];
    while let Some(next) = below.pop() {
        for entry in fs::read_dir(&next).expect("a directory") {
            let path = entry.expect("an entry").path();
            let name = path.strip_prefix(directory).expect("below").display().to_string();
            let is_state = RUN_STATE_FILES.contains(&&*name);
            if path.is_dir() && !is_state && !name.starts_with('.') {
                below.push(path);
            } else if !is_state && !name.starts_with("run.lock") && !name.starts_with('.') {
                files.insert(name, comparable_content(&path));
            }
        }
    }
    files
}

fn comparable_content(path: &Path) -> String {
    let text = String::from_utf8_lossy(&fs::read(path).expect("a file")).into_owned();
    if path.extension().is_none_or(|extension| extension != "json") {
        return text;
    }
    let mut value: Value = serde_json::from_str(&text).expect("JSON");
    strip(&mut value);
    format!("{value:#}")
}

fn strip(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|name, _| {
                !RUN_SPECIFIC_KEYS.contains(&name.as_str())
                    && !name.ends_with("_at")
                    && !name.ends_with("_sec")
            });
            fields.values_mut().for_each(strip);
        }
        Value::Array(values) => values.iter_mut().for_each(strip),
        _ => {}
    }
}
