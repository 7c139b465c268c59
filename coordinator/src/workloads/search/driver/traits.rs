//! Interfaces of a search to commands and repository.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use super::scoring::{ScoreError, Scores, score};
use super::{BackendError, EvalResult, SearchDirectory, SearchError};
use crate::workloads::search::manifest::{
    CleanupKind, DeferredCleanup, EvalStatus, SearchEval, SearchManifest, SearchNode,
};
use crate::workloads::search::policy;
use rollout_protocol::search::{EvalId, NodeId};

/// Maintains the repository of a search.
pub trait RepositoryMaintenance {
    /// Makes references and checkouts match the desired state and removes all others of this search
    /// except those in `deferred`. Returns failed removals.
    ///
    /// # Errors
    /// [`BackendError`] if a desired object cannot be made.
    fn reconcile(
        &mut self,
        wanted: &DesiredRepositoryState,
        deferred: &BTreeSet<String>,
    ) -> Result<Vec<FailedRemoval>, BackendError>;

    /// Retries a removal; a missing object is no error.
    ///
    /// # Errors
    /// The reason of the failure.
    fn remove(&mut self, item: &DeferredCleanup) -> Result<(), String>;
}

/// Runs commands and maintains the repository of a search.
pub trait SearchBackend: RepositoryMaintenance {
    /// Resolves a revision from the configuration to a commit.
    ///
    /// # Errors
    /// [`BackendError`].
    fn resolve(&mut self, name: &str) -> Result<String, BackendError>;

    /// The changes between two commits, as a patch of bounded size; equal commits give equal
    /// patches.
    ///
    /// # Errors
    /// [`BackendError`].
    fn diff(&mut self, from: &str, to: &str) -> Result<Vec<u8>, BackendError>;

    /// Gets ideas written; calls `done` for each node that has all of its ideas.
    ///
    /// # Errors
    /// [`BackendError`], or the error of `done`.
    fn generate_ideas(
        &mut self,
        orders: Vec<IdeasOrder>,
        done: &mut dyn FnMut(NodeId) -> Result<(), SearchError>,
    ) -> Result<(), SearchError>;

    /// Begins an eval; one that a former owner began may be resumed.
    ///
    /// # Errors
    /// [`BackendError`].
    fn begin_eval(&mut self, order: EvalOrder) -> Result<(), BackendError>;

    /// Waits for an eval that was begun and returns its result, which is durable:
    /// `eval_result.json` exists.
    ///
    /// # Errors
    /// [`BackendError`].
    fn next_result(&mut self) -> Result<EvalResult, BackendError>;

    /// Called for a result of a former owner, before it is merged.
    fn on_unmerged_result(&mut self, _result: &EvalResult) {}

    /// Called after every block of the search is durable.
    fn on_manifest_written(&mut self, _manifest: &SearchManifest) {}

    /// Scores an eval's results.
    ///
    /// # Errors
    /// [`ScoreError`].
    fn score(&self, sweep: &SweepFiles<'_>) -> Result<Scores, ScoreError> {
        score(sweep)
    }
}

/// An order to write ideas for a node.
#[derive(Debug, Clone)]
pub struct IdeasOrder {
    /// The node.
    pub node: SearchNode,
    /// The empty directory to write to.
    pub into: PathBuf,
    /// Number of ideas needed.
    pub count: u32,
    /// Directories with earlier ideas, in order.
    pub context: Vec<PathBuf>,
    /// Directory of the context pack.
    pub pack: PathBuf,
    /// How often ideas of the node were discarded.
    pub round: u32,
}

/// An order to run an eval.
#[derive(Debug, Clone)]
pub struct EvalOrder {
    /// The planned eval.
    pub eval: SearchEval,
    /// The commit to start from.
    pub parent_commit: String,
    /// File of the idea.
    pub idea: PathBuf,
    /// Directory of the eval, with a subdirectory per attempt.
    pub root: PathBuf,
    /// Maximum number of retries.
    pub retries: u32,
    /// How often its results were discarded.
    pub round: u32,
}

/// Results to score.
#[derive(Debug, Clone, Copy)]
pub struct SweepFiles<'a> {
    /// The manifest of the search.
    pub manifest: &'a SearchManifest,
    /// The eval.
    pub eval: EvalId,
    /// Directory of the search.
    pub directory: &'a SearchDirectory,
    /// Results of the candidate.
    pub candidate: &'a std::path::Path,
    /// Results of the parent.
    pub parent: &'a std::path::Path,
    /// Results of the root.
    pub root: &'a std::path::Path,
}

/// Desired contents of the repository.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DesiredRepositoryState {
    /// References and their commits.
    pub refs: BTreeMap<String, String>,
    /// Checkouts below the run's directory, and their commits.
    pub worktrees: BTreeMap<String, String>,
    /// Checkouts of candidates that may stay.
    pub candidates: BTreeSet<String>,
    /// Directories to remove.
    pub useless_dirs: BTreeSet<String>,
}

/// A failed removal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedRemoval {
    /// A path below the run's directory, or the name of a reference.
    pub path: String,
    /// Kind of the object.
    pub kind: CleanupKind,
    /// The reason of the failure.
    pub reason: String,
}

impl DesiredRepositoryState {
    /// The state that a manifest requires.
    pub fn from_manifest(manifest: &SearchManifest) -> Self {
        let config = &manifest.run_config;
        let mut wanted = Self {
            refs: policy::refs(manifest, config.keep_rejected_worktrees),
            worktrees: policy::worktrees(manifest),
            ..Self::default()
        };
        for (id, eval) in &manifest.evaluations {
            let promoted = eval.decision.as_ref().map(|d| d.promoted_to_node_id.is_some());
            let path = format!("cand/{id}");
            match (promoted, &eval.candidate_commit) {
                (None, _) => {
                    wanted.candidates.insert(path);
                }
                // Without a reference: it was rejected when such checkouts were not kept.
                (Some(false), Some(commit))
                    if config.keep_rejected_worktrees && eval.candidate_ref_name.is_some() =>
                {
                    wanted.worktrees.insert(path, commit.clone());
                }
                _ => {}
            }
            let failed = eval.status == EvalStatus::Failed && eval.decision.is_some();
            if failed && !config.keep_failed_artifacts {
                let root = &eval.eval_output_root;
                let tries = (1..=eval.attempt).map(|n| format!("{root}/attempt-{n}"));
                wanted.useless_dirs.extend(tries.chain([policy::experiment_dir(root)]));
            }
        }
        wanted
    }
}
