//! The example tree search in its own project, and comparison of the results of two runs of it,
//! each of one or many run sessions.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::live_counter::LiveCounter;
use crate::project::{Project, copy, repository};
use crate::results::json;

/// Keys that differ between two runs of one search, besides times.
const RUN_SPECIFIC_KEYS: &[&str] = &["worker", "cost", "seconds"];

/// Events that depend on the run sessions.
const SESSION_EVENTS: &[&str] = &["lock_takeover", "cleaned_up"];

/// Reports generated from the manifest alone.
const REPORTS: &[&str] = &["TREE_SUMMARY.md", "TREE_GRAPH.md", "tree.html"];

/// Files of a search directory that are identical byte for byte in every run.
const IDENTICAL_FILES: &[&str] = &["artifacts/", "context/", "node_ideas/", "wt/"];

/// Files that depend on the run sessions: their state, and git objects, which git packs at any
/// time.
const SESSION_STATE: &[&str] =
    &["journal/", "records/", "engine.json", "run.lock", "repository/bare/"];

/// Prefixes of files that a killed git leaves.
const UNFINISHED_PREFIXES: &[&str] = &["tmp_", ".tmp", "incoming-", "new-"];

/// A search based on the example.
#[derive(Debug, Clone)]
pub struct ExampleSearch {
    /// Path of its file in its project.
    pub file: String,
    /// Its name: the last part of its directory.
    pub name: String,
    changes: Vec<(String, String)>,
}

impl ExampleSearch {
    /// The example itself: `tree.yaml`, or its variant for another environment.
    ///
    /// # Panics
    /// When there is no such file.
    pub fn example(file: &str) -> Self {
        let text = fs::read_to_string(repository().join("examples/tree").join(file));
        let text = text.unwrap_or_else(|error| panic!("{file}: {error}"));
        let name = text.lines().find_map(|line| line.strip_prefix("tree_run_id: "));
        let name = name.expect("the example has a name").trim().to_owned();
        Self { file: format!("examples/tree/{file}"), name, changes: Vec::new() }
    }

    /// The example for tests that kill it: its evals take about a second, mostly asleep, failures
    /// are tried twice, and every execution connects to the live counter.
    pub fn with_live_counter(counter: &LiveCounter) -> Self {
        let port = counter.port();
        let implement = format!(
            "run: |\n      exec 3<>/dev/tcp/127.0.0.1/{port}\n      \
             echo \"$ROLLOUT_EVAL_ID\" >&3\n      bash search/implement\n      echo done >&3"
        );
        let limit = "limit=${ROLLOUT_SWEEP_CONFIG_LIMIT";
        Self::example("tree.yaml")
            .with_replacement("eval_timeout_seconds: 8", "eval_timeout_seconds: 4\neval_retries: 1")
            .with_replacement("k < 2000", "k < 500")
            .with_replacement("run: bash search/implement", &implement)
            .with_replacement(limit, &format!("sleep 0.7\n      {limit}"))
    }

    /// The example for tests that count its commands: while they run, those that would call a
    /// language model connect to one counter and sweeps to the other.
    pub fn with_command_counters(llm: &LiveCounter, sweeps: &LiveCounter) -> Self {
        let seen_by = |witness: &LiveCounter| {
            format!("exec 3<>/dev/tcp/127.0.0.1/{}\n      echo x >&3", witness.port())
        };
        let (llm, sweeps) = (seen_by(llm), seen_by(sweeps));
        let command =
            |name| format!("run: |\n      {llm}\n      sleep 0.4\n      bash search/{name}");
        let limit = "limit=${ROLLOUT_SWEEP_CONFIG_LIMIT";
        Self::example("tree.yaml")
            .with_replacement("max_depth: 3", "max_depth: 2")
            .with_replacement("eval_timeout_seconds: 8", "eval_timeout_seconds: 5")
            .with_replacement("k < 2000", "k < 300")
            .with_replacement("run: bash search/ideas", &command("ideas"))
            .with_replacement("run: bash search/implement", &command("implement"))
            .with_replacement(limit, &format!("{sweeps}\n      sleep 0.5\n      {limit}"))
    }

    /// Adds limits.
    #[must_use]
    pub fn with_limits(self, limits: &str) -> Self {
        self.with_replacement(
            "sweep_config_limit: 12",
            &format!("sweep_config_limit: 12\nlimits: {limits}"),
        )
    }

    /// Replaces text in its file.
    #[must_use]
    pub fn with_replacement(mut self, text: &str, other: &str) -> Self {
        self.changes.push((text.to_owned(), other.to_owned()));
        self
    }

    /// Writes the search into a project, which becomes a git repository.
    ///
    /// # Panics
    /// When the example does not contain the text to replace.
    #[must_use]
    pub fn write(&self, project: Project) -> Project {
        let (from, to) = (repository().join("examples/tree"), project.path().join("examples/tree"));
        fs::create_dir_all(&to).expect("a directory");
        for name in ["tree.yaml", "docker.yaml", "model.yaml", "baseline.csv", "program"] {
            copy(&from.join(name), &to.join(name), &[]);
        }
        let path = project.path().join(&self.file);
        let mut text = fs::read_to_string(&path).expect("the example");
        for (before, after) in &self.changes {
            assert!(text.contains(before), "the example has no {before:?}");
            text = text.replace(before, after);
        }
        fs::write(&path, text).expect("a file");
        project.commit()
    }

    /// Its directory below a runs directory.
    pub fn directory(&self, project: &Project, runs_root: &str) -> PathBuf {
        project.path().join(runs_root).join(&self.name)
    }
}

/// Manifest of a search without the parts that differ between two runs of one search.
///
/// # Panics
/// When there is no manifest.
pub fn comparable_manifest(run: &Path) -> Value {
    let mut manifest = json(&run.join("manifest.json")).expect("a manifest");
    strip(&mut manifest);
    manifest
}

fn strip(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|name, _| {
                !RUN_SPECIFIC_KEYS.contains(&&**name) && *name != "at" && !name.ends_with("_at")
            });
            if let Some(Value::Array(events)) = fields.get_mut("events") {
                events.retain(|event| !SESSION_EVENTS.iter().any(|of| event["type"] == *of));
            }
            fields.values_mut().for_each(strip);
        }
        Value::Array(values) => values.iter_mut().for_each(strip),
        _ => {}
    }
}

/// Differences between two searches: decisions, reports, files.
pub fn differences(expected: &Path, got: &Path) -> Vec<String> {
    let mut found = Vec::new();
    compare("manifest", &comparable_manifest(expected), &comparable_manifest(got), &mut found);
    let (expected, got) = (files(expected), files(got));
    let names =
        |all: &BTreeMap<String, Option<Vec<u8>>>| all.keys().cloned().collect::<BTreeSet<String>>();
    let missing = names(&expected).difference(&names(&got)).cloned().collect::<Vec<_>>();
    let surplus = names(&got).difference(&names(&expected)).cloned().collect::<Vec<_>>();
    found.extend(missing.iter().map(|name| format!("{name} is missing")));
    found.extend(surplus.iter().map(|name| format!("{name} is unexpected")));
    let other =
        expected.iter().filter(|(name, content)| got.get(*name).is_some_and(|g| g != *content));
    found.extend(other.map(|(name, _)| format!("{name} differs")));
    found
}

fn compare(at: &str, expected: &Value, got: &Value, found: &mut Vec<String>) {
    match (expected, got) {
        (Value::Object(expected), Value::Object(got)) => {
            let names: BTreeSet<_> = expected.keys().chain(got.keys()).collect();
            for name in names {
                let of = |fields: &serde_json::Map<String, Value>| fields.get(name).cloned();
                let at = format!("{at}.{name}");
                let (expected, got) = (of(expected), of(got));
                compare(&at, &expected.unwrap_or_default(), &got.unwrap_or_default(), found);
            }
        }
        (Value::Array(expected), Value::Array(got)) if expected.len() == got.len() => {
            for (number, (expected, got)) in expected.iter().zip(got).enumerate() {
                compare(&format!("{at}[{number}]"), expected, got, found);
            }
        }
        (expected, got) if expected != got => {
            found.push(format!("{at} is {got}, undisturbed {expected}"));
        }
        _ => {}
    }
}

/// Files of a search by name, with the content of those that must be identical in all runs.
fn files(run: &Path) -> BTreeMap<String, Option<Vec<u8>>> {
    let mut files = BTreeMap::new();
    for (name, path) in all_below(run) {
        if SESSION_STATE.iter().any(|state| name.starts_with(state)) {
            continue;
        }
        let same = REPORTS.contains(&&*name)
            || IDENTICAL_FILES.iter().any(|below| name.starts_with(below));
        // `.git` contains the path of the checkout's repository.
        let same = same && !name.ends_with("/.git");
        let content = (same && path.is_file()).then(|| fs::read(&path).expect("a file"));
        files.insert(name, content);
    }
    files
}

/// Everything below a directory, by relative name.
fn all_below(directory: &Path) -> BTreeMap<String, PathBuf> {
    let (mut found, mut next) = (BTreeMap::new(), vec![directory.to_owned()]);
    while let Some(dir) = next.pop() {
        for path in crate::leak_check::directory_entries(&dir) {
            let name = path.strip_prefix(directory).expect("below").display().to_string();
            if path.is_dir() && !path.is_symlink() {
                next.push(path.clone());
            }
            found.insert(name, path);
        }
    }
    found
}

/// Leftovers of a finished search in its directory that its manifest does not list.
pub fn leaked_files(run: &Path) -> Vec<String> {
    let manifest = json(&run.join("manifest.json")).expect("a manifest");
    let mut left = Vec::new();
    let waiting = &manifest["state"]["deferred_cleanup"];
    if waiting.as_array().is_none_or(|waiting| !waiting.is_empty()) {
        left.push(format!("pending cleanup: {waiting}"));
    }
    let mut check = |what: &str, wanted: BTreeSet<String>, got: BTreeSet<String>| {
        if wanted != got {
            left.push(format!("{what}: {got:?}, wanted {wanted:?}"));
        }
    };
    check("references", wanted_references(&manifest), references(run));
    let checkouts = wanted_checkouts(&manifest);
    check("worktrees", checkouts.clone(), worktrees(run));
    let there = |place: &str| {
        let paths = crate::leak_check::directory_entries(&run.join(place)).into_iter();
        paths.map(|path| path.strip_prefix(run).expect("below").display().to_string())
    };
    check("checkouts", checkouts, there("wt").chain(there("cand")).collect());
    check("the repository", ["repository/bare".to_owned()].into(), there("repository").collect());
    for name in all_below(&run.join("repository/bare")).into_keys() {
        let last = name.rsplit('/').next().unwrap_or_default();
        let unfinished = UNFINISHED_PREFIXES.iter().any(|begin| last.starts_with(begin));
        if unfinished || last.ends_with(".lock") || last.ends_with(".keep") {
            left.push(format!("git temporary file: {name}"));
        }
    }
    left
}

fn wanted_references(manifest: &Value) -> BTreeSet<String> {
    let nodes = manifest["nodes"].as_object().expect("nodes").values();
    let name = |node: &Value| format!("refs/{}", node["ref_name"].as_str().expect("a name"));
    nodes.map(name).chain(["refs/rollout/root".to_owned()]).collect()
}

fn wanted_checkouts(manifest: &Value) -> BTreeSet<String> {
    let frontier = manifest["state"]["frontier_node_ids"].as_array().expect("a frontier");
    let path = |id: &Value| manifest["nodes"][id.as_str()?]["worktree_path"].as_str();
    frontier.iter().filter_map(path).map(str::to_owned).collect()
}

fn references(run: &Path) -> BTreeSet<String> {
    git(run, &["for-each-ref", "--format=%(refname)"]).lines().map(str::to_owned).collect()
}

/// Worktrees known to git; the first is the repository itself.
fn worktrees(run: &Path) -> BTreeSet<String> {
    let run = run.canonicalize().expect("the run's directory");
    let listed = git(&run, &["worktree", "list", "--porcelain"]);
    let paths = listed.lines().filter_map(|line| line.strip_prefix("worktree ")).skip(1);
    let below = |path: &str| Path::new(path).strip_prefix(&run).map(|p| p.display().to_string());
    paths.map(|path| below(path).unwrap_or_else(|_| path.to_owned())).collect()
}

fn git(run: &Path, words: &[&str]) -> String {
    let mut git = Command::new("git");
    git.arg("--git-dir").arg(run.join("repository/bare")).args(words);
    let output = git.output().expect("git runs");
    assert!(output.status.success(), "git {words:?}: {output:?}");
    String::from_utf8(output.stdout).expect("plain names")
}
