//! Checks a search that is there: whether its manifest, its files and its decisions agree.
//!
//! Nothing is changed and nothing is believed: the manifest may have been edited, files may be gone
//! or be others. Everything that is wrong is found at once.

mod decisions;
mod files;
mod report;
mod scores;
mod structure;
#[cfg(test)]
mod tests;

use serde::Serialize;

use crate::tree::manifest::Manifest;
use crate::tree::run::{Directory, TreeError};

/// Knows the commits of a repository.
pub trait Commits {
    /// Whether a reference exists and leads to that commit.
    ///
    /// # Errors
    /// Why the repository cannot be asked.
    fn is_reachable(&self, reference: &str, commit: &str) -> Result<bool, String>;
}

/// The repository that a search's commits are in.
#[derive(Clone, Copy)]
pub enum Repository<'a> {
    /// Not known: commits are not checked, and the validation says so.
    Unknown,
    /// This one.
    Known(&'a dyn Commits),
}

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Validation {
    /// Name of the search.
    pub tree_run_id: String,
    /// What was looked at.
    pub checked: Checked,
    /// What is wrong; nothing when all is well.
    pub faults: Vec<Fault>,
}

/// What was looked at.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Checked {
    /// Nodes.
    pub nodes: usize,
    /// Evals.
    pub evals: usize,
    /// Files whose bytes were compared with their digests.
    pub digests: usize,
    /// Files and directories that have to be there.
    pub paths: usize,
    /// Evals whose scores were computed again from their results; nothing when they were played.
    pub scores: Option<usize>,
    /// Decisions that were made again.
    pub decisions: usize,
    /// Commits that were looked for; nothing without a repository.
    pub commits: Option<usize>,
}

/// Something that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Fault {
    /// What kind.
    pub kind: FaultKind,
    /// Of what: `node 0001`, `eval 0002`, `search`.
    pub subject: String,
    /// What is wrong.
    pub message: String,
}

/// Kinds of faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultKind {
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
    /// A file has other bytes than it had.
    ChangedFile,
    /// A score is not what the results say.
    Score,
    /// A decision is not what follows from its eval.
    Decision,
    /// A commit is not reachable by its reference.
    UnreachableCommit,
}

/// Collects what is found.
struct Findings {
    checked: Checked,
    faults: Vec<Fault>,
}

impl Findings {
    fn add(&mut self, kind: FaultKind, subject: impl Into<String>, message: impl Into<String>) {
        self.faults.push(Fault { kind, subject: subject.into(), message: message.into() });
    }
}

impl Validation {
    /// Whether nothing is wrong.
    pub fn is_sound(&self) -> bool {
        self.faults.is_empty()
    }
}

/// Checks a search.
///
/// # Errors
/// [`TreeError`] when something cannot be read, and the repository cannot be asked.
pub fn check(
    directory: &Directory,
    manifest: &Manifest,
    repository: Repository<'_>,
) -> Result<Validation, TreeError> {
    let mut findings = Findings { checked: Checked::default(), faults: Vec::new() };
    findings.checked.nodes = manifest.nodes.len();
    findings.checked.evals = manifest.evaluations.len();
    structure::check(manifest, &mut findings);
    files::check(directory, manifest, &mut findings)?;
    scores::check(directory, manifest, &mut findings);
    // Decisions follow from nodes and evals that are there, in a tree.
    if findings.faults.iter().all(|fault| fault.kind != FaultKind::Structure) {
        decisions::check(directory, manifest, &mut findings);
    }
    commits(manifest, repository, &mut findings);
    let Findings { checked, mut faults } = findings;
    faults.sort();
    faults.dedup();
    Ok(Validation { tree_run_id: manifest.tree_run_id.clone(), checked, faults })
}

fn commits(manifest: &Manifest, repository: Repository<'_>, findings: &mut Findings) {
    let Repository::Known(commits) = repository else { return };
    for (id, node) in &manifest.nodes {
        let found = commits.is_reachable(&node.ref_name, &node.commit);
        let message = match found {
            Ok(true) => continue,
            Ok(false) => format!("{} is not what {} leads to", node.commit, node.ref_name),
            Err(reason) => format!("{} cannot be looked for: {reason}", node.commit),
        };
        findings.add(FaultKind::UnreachableCommit, format!("node {id}"), message);
    }
    findings.checked.commits = Some(manifest.nodes.len());
}
