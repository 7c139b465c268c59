//! Documents that come over the network name no file of this host: a walk over every declared key.

use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::{Value, json};

use crate::config::reference::tests::set;
use crate::config::reference::{KeyReference, KeyRow};
use crate::config::{JOB_REFERENCE, TASK_REFERENCE, TREE_REFERENCE};
use crate::daemon::policy::DocumentPolicy;
use crate::daemon::principal::AllowedVariables;
use crate::daemon::search::checked_tree;
use crate::daemon::submit::{CheckFault, checked_job};

/// A line of the file that documents name.
const SECRET: &str = "root:very-secret";

type Check = fn(&Path, &DocumentPolicy) -> Result<(), CheckFault>;

fn check_job(path: &Path, policy: &DocumentPolicy) -> Result<(), CheckFault> {
    checked_job(path, policy, &AllowedVariables::All, true).map(drop)
}

fn check_tree(path: &Path, policy: &DocumentPolicy) -> Result<(), CheckFault> {
    checked_tree(path, policy, &AllowedVariables::All, true, None).map(drop)
}

fn job() -> Value {
    json!({ "agents": [{ "name": "mine", "execute": "true" }], "datasets": [{}], "tasks": [{}] })
}

fn tree() -> Value {
    let command = json!({ "run": "true" });
    json!({ "commands": { "ideas": command, "implement": command, "sweep": command } })
}

/// A place that documents name, and what it may be.
struct Named {
    directory: tempfile::TempDir,
}

impl Named {
    fn new() -> Self {
        Self { directory: tempfile::tempdir().expect("a directory") }
    }

    fn root(&self) -> PathBuf {
        self.directory.path().canonicalize().expect("a path").join("named")
    }

    fn path(&self) -> PathBuf {
        self.root().join("file")
    }

    /// Makes the place each of these in turn, and calls `look`.
    fn as_each(&self, mut look: impl FnMut(&str)) {
        let (root, path) = (self.root(), self.path());
        let entry = format!("name = '{SECRET}");
        for what in ["nothing", "a file", "a directory", "a pipe", "a device"] {
            std::fs::create_dir(&root).expect("made");
            match what {
                "a file" => std::fs::write(&path, SECRET).expect("written"),
                "a directory" => {
                    std::fs::create_dir(&path).expect("made");
                    std::fs::write(path.join("agent.toml"), &entry).expect("written");
                }
                "a pipe" => {
                    let mode = Mode::RUSR | Mode::WUSR;
                    mknodat(CWD, &path, FileType::Fifo, mode, 0).expect("a pipe");
                }
                "a device" => std::os::unix::fs::symlink("/dev/zero", &path).expect("a link"),
                _ => {}
            }
            look(what);
            std::fs::remove_dir_all(&root).expect("removed");
        }
    }
}

/// The details of the refusal of a document with a value at a key, and whether no operator can allow it.
fn refusal(
    (check, base): (Check, &Value),
    policy: &DocumentPolicy,
    row: &KeyRow,
    value: &str,
) -> Option<(String, bool)> {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("document.yaml");
    let mut document = base.clone();
    let is_list = row.kind.starts_with("list");
    set(&mut document, &row.key, if is_list { json!([value]) } else { json!(value) });
    std::fs::write(&path, document.to_string()).expect("written");
    match check(&path, policy) {
        Err(CheckFault::Refused { failure, is_final }) => {
            Some((failure.details.join("\n"), is_final))
        }
        Err(CheckFault::Config(_)) | Ok(()) => None,
    }
}

/// The keys that may name something of the host.
fn host_keys(reference: &KeyReference) -> Vec<&KeyRow> {
    reference.keys.iter().filter(|row| row.may_be_of_host()).collect()
}

fn assert_nothing_is_looked_at(reference: &KeyReference, check: Check, base: &Value) {
    let named = Named::new();
    let path = named.path().display().to_string();
    let keys = host_keys(reference);
    assert!(!keys.is_empty());
    for row in keys {
        for value in [path.clone(), format!("file://{path}")] {
            let mut answers = Vec::new();
            named.as_each(|what| {
                let policy = DocumentPolicy::default();
                let found = refusal((check, base), &policy, row, &value);
                let (details, _) =
                    found.unwrap_or_else(|| panic!("{}: {what} is accepted", row.key));
                let key = row.key.replace("[]", "[0]");
                assert!(details.contains(&format!("{key}: ")), "{key}: {details}");
                assert!(!details.contains(SECRET), "{key}: {details}");
                answers.push(details);
            });
            answers.dedup();
            assert_eq!(
                answers.len(),
                1,
                "{}: the answer tells what is there: {answers:?}",
                row.key
            );
        }
    }
}

#[test]
fn job_over_the_network_is_refused_before_a_path_of_the_host_is_looked_at() {
    assert_nothing_is_looked_at(&JOB_REFERENCE, check_job, &job());
}

#[test]
fn search_over_the_network_is_refused_before_a_path_of_the_host_is_looked_at() {
    assert_nothing_is_looked_at(&TREE_REFERENCE, check_tree, &tree());
}

#[test]
fn task_file_has_no_key_that_names_the_host() {
    assert_eq!(host_keys(&TASK_REFERENCE), Vec::<&KeyRow>::new());
}

#[test]
fn operator_can_list_sources_and_no_other_file() {
    let named = Named::new();
    let path = named.path().display().to_string();
    let documents: [(&KeyReference, Check, Value); 2] =
        [(&*JOB_REFERENCE, check_job, job()), (&*TREE_REFERENCE, check_tree, tree())];
    for (reference, check, base) in documents {
        let mut refused = Vec::new();
        named.as_each(|what| {
            if what != "a file" {
                return;
            }
            let policy = DocumentPolicy { paths: vec![named.root()], ..DocumentPolicy::default() };
            for row in host_keys(reference) {
                let found = refusal((check, &base), &policy, row, &path);
                let key = format!("{}: ", row.key.replace("[]", "[0]"));
                let is_named = found.as_ref().is_some_and(|(details, _)| details.contains(&key));
                let is_final = found.is_some_and(|(_, is_final)| is_final);
                refused.extend((is_named && is_final).then_some(row.key.as_str()));
            }
        });
        assert!(refused.contains(&"agents_dir"), "{refused:?}");
        for source in ["datasets[].path", "tasks[].path", "repository", "root_baseline_csv"] {
            assert!(!refused.contains(&source), "{source}: {refused:?}");
        }
    }
}
