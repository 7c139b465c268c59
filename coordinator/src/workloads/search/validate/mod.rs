//! Checks a search that is there: whether its manifest, its files and its decisions agree.
//!
//! Nothing is changed and nothing is believed: the manifest may have been edited, files may be gone
//! or be others. Everything that is wrong is found at once.

mod contents;
mod decisions;
mod files;
mod report;
mod scores;
mod structure;
#[cfg(test)]
mod tests;

use serde::Serialize;

use crate::workloads::search::driver::SearchDirectory;
use crate::workloads::search::manifest::SearchManifest;
use crate::workloads::search::policy;

/// Knows the commits of a repository.
pub trait CommitLookup {
    /// Whether a reference exists and leads to that commit.
    ///
    /// # Errors
    /// Why the repository cannot be asked.
    fn is_reachable(&self, reference: &str, commit: &str) -> Result<bool, String>;
}

/// The repository that a search's commits are in.
#[derive(Clone, Copy)]
pub enum CommitSource<'a> {
    /// Not known: commits are not checked, and the validation says so.
    Unknown,
    /// This one.
    Known(&'a dyn CommitLookup),
}

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Validation {
    /// Name of the search.
    pub tree_run_id: String,
    /// What was looked at.
    pub checked: CheckedCounts,
    /// What is wrong; nothing when all is well.
    pub faults: Vec<ValidationFault>,
}

/// What was looked at.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct CheckedCounts {
    /// Nodes.
    pub nodes: usize,
    /// Evals.
    pub evals: usize,
    /// Files whose bytes were compared with their digests.
    pub digests: usize,
    /// Files and directories that have to be there.
    pub paths: usize,
    /// Files that were read to their end: results, records and logs of evals, and their ideas.
    pub contents: usize,
    /// Checkouts that have to be there. Their files are not compared with their commits.
    pub checkouts: usize,
    /// Files of the user that generators were shown. They are not looked at.
    pub outside: usize,
    /// Evals whose scores were computed again from their results; nothing when they were played.
    pub scores: Option<usize>,
    /// Decisions that were made again.
    pub decisions: usize,
    /// Commits that were looked for; nothing without a repository.
    pub commits: Option<usize>,
}

/// Something that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct ValidationFault {
    /// What kind.
    pub kind: ValidationFaultKind,
    /// Of what: `node 0001`, `eval 0002`, `search`.
    pub subject: String,
    /// What is wrong.
    pub message: String,
}

/// Kinds of faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ValidationFaultKind {
    /// Nodes, evals or counters contradict each other.
    Structure,
    /// Frontier and expanded nodes are not the nodes of their depths.
    Frontier,
    /// A path leads out of the directory.
    BadPath,
    /// A baseline or a candidate's results are not among the artifacts.
    OutsideArtifacts,
    /// A file or directory is missing.
    MissingFile,
    /// A file cannot be read, or has not the form that its name says.
    UnreadableFile,
    /// A file has other bytes than it had, or contradicts the manifest.
    ChangedFile,
    /// A score is not what the results say.
    Score,
    /// A decision is not what follows from its eval.
    Decision,
    /// A commit is not reachable by its reference.
    UnreachableCommit,
}

/// Collects what is found.
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
    /// Whether nothing is wrong.
    pub fn is_sound(&self) -> bool {
        self.faults.is_empty()
    }
}

/// Checks a search. A file that cannot be read is a fault like others.
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
    // Decisions follow from nodes and evals that are there, in a tree.
    if findings.faults.iter().all(|fault| fault.kind != ValidationFaultKind::Structure) {
        decisions::check(directory, manifest, &mut findings);
    }
    commits(manifest, repository, &mut findings);
    let ValidationFindings { checked, mut faults } = findings;
    faults.sort();
    faults.dedup();
    Validation { tree_run_id: manifest.tree_run_id.clone(), checked, faults }
}

/// Nodes, and candidates whose references are kept.
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
            Ok(false) => format!("{commit} is not what {name} leads to"),
            Err(reason) => format!("{commit} cannot be looked for: {reason}"),
        };
        findings.add(ValidationFaultKind::UnreachableCommit, subject, message);
    }
}
