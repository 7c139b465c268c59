//! Tests of the reference against the readers.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Value, json};

use super::*;
use crate::config::{
    Diagnostics, FormatHints, JOB_REFERENCE, JobOptions, TASK_REFERENCE, TREE_REFERENCE,
    TreeOptions, job_document, read_job, read_task, read_tree, tree_document,
};

/// Every key that a reader asks for over `documents`, without list indices.
fn keys_read(documents: &[&str], read: impl Fn(&Path, &mut Diagnostics)) -> BTreeSet<String> {
    let dir = tempfile::tempdir().expect("a directory");
    let mut taken = BTreeSet::new();
    for (at, document) in documents.iter().enumerate() {
        let file = dir.path().join(at.to_string());
        std::fs::write(&file, document).expect("written");
        let mut problems = Diagnostics::default();
        read(&file, &mut problems);
        taken.extend(problems.keys_read.iter().map(|key| without_indices(key)));
    }
    taken
}

fn without_indices(key: &str) -> String {
    key.chars().filter(|c| !c.is_ascii_digit()).collect()
}

fn assert_reference_matches(reference: &KeyReference, taken: &BTreeSet<String>) {
    let explained: BTreeSet<&str> = reference.keys.iter().map(|entry| entry.key.as_str()).collect();
    assert_eq!(explained.len(), reference.keys.len(), "every key stands once");
    let unexplained: Vec<_> = taken.iter().filter(|key| reference.find(key).is_none()).collect();
    assert_eq!(unexplained, Vec::<&String>::new(), "read, but not in the reference");
    let unread: Vec<_> = explained.iter().filter(|key| !taken.contains(**key)).collect();
    assert_eq!(unread, Vec::<&&str>::new(), "in the reference, but never read");
    for entry in &reference.keys {
        assert!(!entry.kind.is_empty() && entry.meaning.ends_with('.'), "{entry:?}");
    }
}

/// Documents with every section and every alternative; values do not matter.
const JOBS: &[&str] = &[
    "retry: {}\nverifier: {}\nmetrics: [{}]\nguardrails: [{}]\nagents: [{harness: {}, session_calls: {}}]\ndatasets: [{registry: {}}]\n\
     tasks: [{}]\nartifacts: [{}]\ngateway: {upstreams: [{prices: {}}]}\n\
     budget: {try: {}, agent: {}, run: {}}\n\
     environment: {type: docker, provider_config: {}, mcp_servers: [{}], proxy: {}}\n",
    "environment: {type: process, provider_config: {}}\n",
    "environment: {type: kubernetes, provider_config: {}}\n",
];

#[test]
fn job_file_keys_are_all_in_reference() {
    let is_set = |_: &str| true;
    let taken = keys_read(JOBS, |file, problems| {
        read_job(file, &JobOptions::for_command_line(&is_set), problems);
    });
    assert_reference_matches(&JOB_REFERENCE, &taken);
}

const TASKS: &[&str] = &["
artifacts = [{}]
task.authors = [{}]
solution = {}
[agent]
[[verifier.collect]]
[verifier.environment.healthcheck]
[environment.healthcheck]
[[environment.mcp_servers]]
[environment.tpu]
[[steps]]
agent = {}
verifier.collect = [{}]
verifier.environment.healthcheck = {}
healthcheck = {}
artifacts = [{}]
"];

#[test]
fn task_file_keys_are_all_in_reference() {
    let taken = keys_read(TASKS, |file, problems| {
        read_task(file, FormatHints::default(), problems);
    });
    assert_reference_matches(&TASK_REFERENCE, &taken);
}

const TREES: &[&str] = &[
    "profile: {primary: {}, metrics: [{}], risk: [{}], explore: {}, grades: {}}\n\
     gateway: {upstreams: [{prices: {}}]}\nenvironment: {proxy: {}}\nlimits: {}\nbudgets: {step: {}}\nretry: {}\ncommands: {ideas: {environment: {type: docker}}, \
     implement: {environment: {type: docker}}, tests: {environment: {type: docker}}, \
     review: {environment: {type: docker}}, sweep: {environment: {type: docker}}}\n",
];

#[test]
fn search_file_keys_are_all_in_reference() {
    let is_set = |_: &str| true;
    let taken = keys_read(TREES, |file, problems| {
        read_tree(file, &TreeOptions::for_command_line(&is_set), problems);
    });
    assert_reference_matches(&TREE_REFERENCE, &taken);
}

/// Sets the key of a document. Missing tables are created; lists must have an item.
pub(crate) fn set(document: &mut Value, key: &str, value: Value) {
    let mut at = document;
    for part in key.split('.') {
        let (name, is_list) = part.strip_suffix("[]").map_or((part, false), |name| (name, true));
        let object = at.as_object_mut().unwrap_or_else(|| panic!("{key}: no table"));
        at = object.entry(name).or_insert_with(|| json!({}));
        if is_list {
            at = at.get_mut(0).unwrap_or_else(|| panic!("{key}: no item"));
        }
    }
    *at = value;
}

/// The default of a key as a value, if its text is one: a number or a word.
fn default_of(row: &KeyRow) -> Option<Value> {
    if row.kind == "true|false" {
        return row.default.parse().ok().map(Value::Bool);
    }
    if ["integer", "number", "seconds", "number|text"].contains(&row.kind) {
        return serde_json::from_str(row.default).ok();
    }
    row.kind.split('|').any(|word| word == row.default).then(|| json!(row.default))
}

/// Asserts that writing every default into `base` changes nothing; returns the number of defaults.
fn assert_defaults(
    reference: &KeyReference,
    base: &Value,
    read: impl Fn(&Path) -> String,
    write: impl Fn(&Value) -> String,
) -> usize {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("file");
    let outcome = |document: &Value| {
        std::fs::write(&file, write(document)).expect("written");
        read(&file)
    };
    let expected = outcome(base);
    let mut count = 0;
    for row in &reference.keys {
        let Some(value) = default_of(row) else { continue };
        let mut document = base.clone();
        set(&mut document, &row.key, value);
        assert_eq!(outcome(&document), expected, "{}: {}", row.key, row.default);
        count += 1;
    }
    count
}

#[test]
fn job_file_defaults_match_reference() {
    let base = json!({
        "name": "n",
        "agents": [{ "name": "mine", "harness": { "command": "true" } }],
        "datasets": [{ "path": "d" }],
        "tasks": [{ "path": "t" }],
        "artifacts": [{ "source": "/a" }],
        "gateway": { "upstreams": [{ "url": "http://h/v1" }] },
        "environment": { "mcp_servers": [{ "name": "m", "url": "http://m" }] },
    });
    let read = |file: &Path| {
        let job =
            read_job(file, &JobOptions::for_command_line(&|_| true), &mut Diagnostics::default());
        job_document(&job.expect("a job")).to_string()
    };
    assert!(assert_defaults(&JOB_REFERENCE, &base, read, Value::to_string) > 20);
}

#[test]
fn task_file_defaults_match_reference() {
    let check = json!({ "command": "true" });
    let base = json!({
        "schema_version": "1.4",
        "artifacts": [{ "source": "/a" }],
        "environment": {
            "healthcheck": check,
            "mcp_servers": [{ "name": "m", "url": "http://m" }],
        },
        "verifier": { "collect": [{ "command": "true" }] },
    });
    let read = |file: &Path| {
        let task = read_task(file, FormatHints::default(), &mut Diagnostics::default());
        format!("{:?}", task.expect("a task"))
    };
    let write = |document: &Value| toml::to_string(document).expect("TOML");
    assert!(assert_defaults(&TASK_REFERENCE, &base, read, write) > 12);
}

#[test]
fn search_file_defaults_match_reference() {
    let command = json!({ "run": "true" });
    let base = json!({
        "tree_run_id": "n",
        "profile": {
            "primary": { "column": "p" },
            "metrics": [{ "column": "m", "weight": 1 }],
        },
        "environment": { "docker_image": "i" },
        "gateway": { "upstreams": [{ "url": "http://h/v1" }] },
        "commands": {
            "ideas": command, "implement": command, "tests": command, "sweep": command,
        },
    });
    let read = |file: &Path| {
        let tree =
            read_tree(file, &TreeOptions::for_command_line(&|_| true), &mut Diagnostics::default());
        tree_document(&tree.expect("a search")).to_string()
    };
    assert!(assert_defaults(&TREE_REFERENCE, &base, read, Value::to_string) > 25);
}
