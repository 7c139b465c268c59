//! Validation of a search: whether its manifest, files and decisions agree.
//!
//! It changes nothing and trusts nothing: the manifest may have been edited, files may be missing
//! or replaced. It finds all faults at once.

mod contents;
mod decisions;
mod files;
mod report;
mod scores;
mod structure;
#[cfg(test)]
mod tests;

use serde::Serialize;

use crate::workloads::search::backend::ComparedOutputs;
use crate::workloads::search::driver::SearchDirectory;
use crate::workloads::search::manifest::SearchManifest;
use crate::workloads::search::policy;

/// Finds the commits of a repository.
pub trait CommitLookup {
    /// Whether a reference exists and points to that commit.
    ///
    /// # Errors
    /// The reason if the repository cannot be read.
    fn is_reachable(&self, reference: &str, commit: &str) -> Result<bool, String>;
}

/// The repository with the commits of a search.
#[derive(Clone, Copy)]
pub enum CommitSource<'a> {
    /// Not known: commits are not checked, and the report notes it.
    Unknown,
    /// A known repository.
    Known(&'a dyn CommitLookup),
}

/// The result of a validation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Validation {
    /// Name of the search.
    pub tree_run_id: String,
    /// Counts of checked objects.
    pub checked: CheckedCounts,
    /// The faults; empty if the search is sound.
    pub faults: Vec<ValidationFault>,
}

/// Counts of checked objects.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct CheckedCounts {
    /// Nodes.
    pub nodes: usize,
    /// Evals.
    pub evals: usize,
    /// Files checked by their digests.
    pub digests: usize,
    /// Required files and directories.
    pub paths: usize,
    /// Files read to their end: results, records and logs of evals, and their ideas.
    pub contents: usize,
    /// Outputs of evals compared with the blobs that their records name; `None` without a blob store.
    pub outputs: Option<usize>,
    /// Directories of logs and outputs that are missing as a whole. They may have been removed on
    /// purpose.
    pub absent_outputs: usize,
    /// Required checkouts. Their files are not compared with their commits.
    pub checkouts: usize,
    /// Files of the user shown to generators. They are not checked.
    pub outside: usize,
    /// Evals scored again from their results; `None` for a simulated search.
    pub scores: Option<usize>,
    /// Decisions made again.
    pub decisions: usize,
    /// Commits looked up; `None` without a repository.
    pub commits: Option<usize>,
}

/// A fault of a search.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct ValidationFault {
    /// Kind of the fault.
    pub kind: ValidationFaultKind,
    /// Faulty object: `node 0001`, `eval 0002`, `search`.
    pub subject: String,
    /// Description of the fault.
    pub message: String,
}

/// Kinds of faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ValidationFaultKind {
    /// Nodes, evals or counters contradict each other.
    Structure,
    /// Frontier and expanded nodes do not match the nodes of their depths.
    Frontier,
    /// A path leads out of the directory.
    BadPath,
    /// A baseline or a candidate's results are not among the artifacts.
    OutsideArtifacts,
    /// A file or directory is missing.
    MissingFile,
    /// A file cannot be read or parsed.
    UnreadableFile,
    /// A file does not match its digest or the manifest.
    ChangedFile,
    /// A score does not follow from the results.
    Score,
    /// A decision does not follow from its eval.
    Decision,
    /// A commit is not reachable by its reference.
    UnreachableCommit,
}

/// Collects counts and faults.
struct ValidationFindings {
    checked: CheckedCounts,
    faults: Vec<ValidationFault>,
}

impl ValidationFindings {
    fn add(
        &mut self,
        kind: ValidationFaultKind,
        subject: impl Into<String>,
        message: impl Into<String>,
    ) {
        self.faults.push(ValidationFault {
            kind,
            subject: subject.into(),
            message: message.into(),
        });
    }
}

impl Validation {
    /// Adds a comparison of the outputs of evals with the blob store.
    pub fn add_outputs(&mut self, outputs: &ComparedOutputs) {
        self.checked.outputs = Some(outputs.compared);
        self.checked.absent_outputs = outputs.absent.len();
        self.faults.extend(outputs.differing.iter().map(|(eval, path)| ValidationFault {
            kind: ValidationFaultKind::ChangedFile,
            subject: format!("eval {eval}"),
            message: format!("{path} lacks content of its blob; `rollout repair` writes it again"),
        }));
        self.faults.sort();
    }

    /// Whether the search has no faults.
    pub fn is_sound(&self) -> bool {
        self.faults.is_empty()
    }
}

/// Validates a search. An unreadable file is a fault like others.
pub fn check(
    directory: &SearchDirectory,
    manifest: &SearchManifest,
    repository: CommitSource<'_>,
) -> Validation {
    let mut findings = ValidationFindings { checked: CheckedCounts::default(), faults: Vec::new() };
    findings.checked.nodes = manifest.nodes.len();
    findings.checked.evals = manifest.evaluations.len();
    structure::check(manifest, &mut findings);
    files::check(directory, manifest, &mut findings);
    scores::check(directory, manifest, &mut findings);
    // Decisions need existing nodes and evals in a tree.
    if findings.faults.iter().all(|fault| fault.kind != ValidationFaultKind::Structure) {
        decisions::check(directory, manifest, &mut findings);
    }
    commits(manifest, repository, &mut findings);
    let ValidationFindings { checked, mut faults } = findings;
    faults.sort();
    faults.dedup();
    Validation { tree_run_id: manifest.tree_run_id.clone(), checked, faults }
}

/// Checks the commits of nodes and of candidates with references.
fn commits(
    manifest: &SearchManifest,
    repository: CommitSource<'_>,
    findings: &mut ValidationFindings,
) {
    let CommitSource::Known(commits) = repository else { return };
    let candidates = policy::refs(manifest, manifest.run_config.keep_rejected_worktrees);
    let nodes = manifest.nodes.iter();
    let nodes: Vec<_> =
        nodes.map(|(id, node)| (format!("node {id}"), &node.ref_name, &node.commit)).collect();
    let evals = manifest.evaluations.iter().filter_map(|(id, eval)| {
        let (name, commit) = (eval.candidate_ref_name.as_ref()?, eval.candidate_commit.as_ref()?);
        candidates.contains_key(name).then(|| (format!("eval {id}"), name, commit))
    });
    let all: Vec<_> = nodes.into_iter().chain(evals).collect();
    findings.checked.commits = Some(all.len());
    for (subject, name, commit) in all {
        let message = match commits.is_reachable(name, commit) {
            Ok(true) => continue,
            Ok(false) => format!("{name} does not point to {commit}"),
            Err(reason) => format!("cannot look up {commit}: {reason}"),
        };
        findings.add(ValidationFaultKind::UnreachableCommit, subject, message);
    }
}
