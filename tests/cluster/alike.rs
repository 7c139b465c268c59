//! The same job in one process and over a server with two workers.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use rollout_protocol::exit::ExitCode;
use rollout_tests::docker::Engine;
use rollout_tests::project::{copy, repository};
use serde_json::Value;

use crate::{DEADLINE, assert_nothing_left, cluster};

/// Keys that differ between two runs of one job: times, costs, who ran it, names that are new for
/// every run, the one that was told to be different, and the digest of all of them.
const OF_THE_RUN: &[&str] = &[
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
    let Some(_engine) = Engine::available() else { return };
    alike("docker", "docker");
}

#[test]
fn cluster_run_equals_local_run_in_sandbox() {
    alike("quickstart", "process");
}

fn alike(example: &str, provider: &str) {
    let Some(cluster) = cluster() else { return };
    copy(&repository().join("examples"), &cluster.project.path().join("examples"), &[]);
    let job = format!("examples/{example}/job.yaml");
    let embedded = cluster.project.rollout(&["run", &job, "--jobs-dir", "embedded"]);
    let _ended = embedded.wait(DEADLINE).expect(ExitCode::Success);

    let start = |name| cluster.worker(name, 1).set("--provider", provider).started();
    let workers = ["a", "b"].map(start);
    let mut coordinator = cluster.coordinator(&job).started();
    let _ended = coordinator.wait(DEADLINE).expect(ExitCode::Success);

    let results = cluster.project.results(example);
    let ran_on = results.trials().into_iter().map(|trial| trial.result["worker"].to_string());
    let ran_on: BTreeSet<_> = ran_on.collect();
    assert_eq!(ran_on.len(), 2, "both worked: {ran_on:?}");
    let alone = tree(&cluster.project.path().join("embedded").join(example));
    let together = tree(results.path());
    let names = |tree: &BTreeMap<String, String>| tree.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&alone), names(&together));
    for (name, content) in &alone {
        assert_eq!(content, &together[name], "{name}");
    }
    assert_nothing_left(&cluster, &[example], workers);
}

/// What differs with where the run's state is and how it was started.
const STATE: [&str; 6] =
    ["journal", "records", "manifest.json", "plan.json", "store.json", "invocation.json"];

/// Result files by name, without what differs between two runs.
fn tree(directory: &Path) -> BTreeMap<String, String> {
    let mut files = BTreeMap::new();
    let mut below = vec![directory.to_owned()];
    while let Some(next) = below.pop() {
        for entry in fs::read_dir(&next).expect("a directory") {
            let path = entry.expect("an entry").path();
            let name = path.strip_prefix(directory).expect("below").display().to_string();
            let is_state = STATE.contains(&&*name);
            if path.is_dir() && !is_state && !name.starts_with('.') {
                below.push(path);
            } else if !is_state && !name.starts_with("run.lock") && !name.starts_with('.') {
                files.insert(name, content(&path));
            }
        }
    }
    files
}

fn content(path: &Path) -> String {
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
                !OF_THE_RUN.contains(&name.as_str())
                    && !name.ends_with("_at")
                    && !name.ends_with("_sec")
            });
            fields.values_mut().for_each(strip);
        }
        Value::Array(values) => values.iter_mut().for_each(strip),
        _ => {}
    }
}
