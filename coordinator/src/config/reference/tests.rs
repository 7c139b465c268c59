//! The tables against the readers.

use std::collections::BTreeSet;
use std::path::Path;

use super::*;
use crate::config::{FormatHints, Options, Problems, TreeOptions, read_job, read_task, read_tree};

/// Every key that a reader asks for over `documents`, indices of lists left out.
fn taken(documents: &[&str], read: impl Fn(&Path, &mut Problems)) -> BTreeSet<String> {
    let dir = tempfile::tempdir().expect("a directory");
    let mut taken = BTreeSet::new();
    for (at, document) in documents.iter().enumerate() {
        let file = dir.path().join(at.to_string());
        std::fs::write(&file, document).expect("written");
        let mut problems = Problems::default();
        read(&file, &mut problems);
        taken.extend(problems.taken.iter().map(|key| without_indices(key)));
    }
    taken
}

fn without_indices(key: &str) -> String {
    key.chars().filter(|c| !c.is_ascii_digit()).collect()
}

fn hold(reference: &Reference, taken: &BTreeSet<String>) {
    let explained: BTreeSet<&str> = reference.keys.iter().map(|entry| entry.key).collect();
    assert_eq!(explained.len(), reference.keys.len(), "every key stands once");
    let unexplained: Vec<_> = taken.iter().filter(|key| reference.find(key).is_none()).collect();
    assert_eq!(unexplained, Vec::<&String>::new(), "read, but not in the reference");
    let unread: Vec<_> = explained.iter().filter(|key| !taken.contains(**key)).collect();
    assert_eq!(unread, Vec::<&&str>::new(), "in the reference, but never read");
    for entry in reference.keys {
        assert!(!entry.kind.is_empty() && entry.meaning.ends_with('.'), "{entry:?}");
    }
}

/// A document for every section and every alternative; values do not matter.
const JOBS: &[&str] = &[
    "retry: {}\nverifier: {}\nmetrics: [{}]\nagents: [{}]\ndatasets: [{registry: {}}]\n\
     tasks: [{}]\nartifacts: [{}]\n\
     environment: {type: docker, provider_config: {}}\n",
    "environment: {type: process, provider_config: {}}\n",
];

#[test]
fn every_key_of_job_files_is_explained() {
    let is_set = |_: &str| true;
    let taken = taken(JOBS, |file, problems| {
        read_job(file, &Options::new(&is_set), problems);
    });
    hold(&JOB, &taken);
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
fn every_key_of_task_files_is_explained() {
    let taken = taken(TASKS, |file, problems| {
        read_task(file, FormatHints::default(), problems);
    });
    hold(&TASK, &taken);
}

const TREES: &[&str] = &[
    "profile: {primary: {}, metrics: [{}], risk: [{}], explore: {}, grades: {}}\n\
     environment: {}\nlimits: {}\nbudgets: {}\nretry: {}\ncommands: {ideas: {environment: {type: docker}}, \
     implement: {environment: {type: docker}}, tests: {environment: {type: docker}}, \
     review: {environment: {type: docker}}, sweep: {environment: {type: docker}}}\n",
];

#[test]
fn every_key_of_files_of_searches_is_explained() {
    let is_set = |_: &str| true;
    let taken = taken(TREES, |file, problems| {
        read_tree(file, &TreeOptions::new(&is_set), problems);
    });
    hold(&TREE, &taken);
}
