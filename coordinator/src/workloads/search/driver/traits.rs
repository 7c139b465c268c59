//! What a search needs of the world.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use super::scoring::{Scores, score};
use super::{BackendError, EvalResult, SearchDirectory, SearchError};
use crate::workloads::search::manifest::{
    CleanupKind, DeferredCleanup, EvalStatus, SearchEval, SearchManifest, SearchNode,
};
use crate::workloads::search::policy;
use crate::workloads::search::score::SweepError;
use rollout_protocol::search::{EvalId, NodeId};

/// Keeps a repository for a search.
pub trait RepositoryMaintenance {
    /// Makes references and checkouts what is wanted, and removes all others of this search but those
    /// in `deferred`. What could not be removed comes back.
    ///
    /// # Errors
    /// [`BackendError`] when something that is wanted is not there.
    fn reconcile(
        &mut self,
        wanted: &DesiredRepositoryState,
        deferred: &BTreeSet<String>,
    ) -> Result<Vec<FailedRemoval>, BackendError>;

    /// Tries again to remove something; it may be gone already.
    ///
    /// # Errors
    /// Why it is still there.
    fn remove(&mut self, item: &DeferredCleanup) -> Result<(), String>;
}

/// Runs commands and keeps a repository for a search.
pub trait SearchBackend: RepositoryMaintenance {
    /// The commit that a name of the configuration stands for.
    ///
    /// # Errors
    /// [`BackendError`].
    fn resolve(&mut self, name: &str) -> Result<String, BackendError>;

    /// What changed from one commit to another, as a patch of bounded size; equal commits give equal
    /// patches.
    ///
    /// # Errors
    /// [`BackendError`].
    fn diff(&mut self, from: &str, to: &str) -> Result<Vec<u8>, BackendError>;

    /// Has ideas written, and says of each node when its are all there.
    ///
    /// # Errors
    /// [`BackendError`], or what `done` fails with.
    fn generate_ideas(
        &mut self,
        orders: Vec<IdeasOrder>,
        done: &mut dyn FnMut(NodeId) -> Result<(), SearchError>,
    ) -> Result<(), SearchError>;

    /// Begins an eval; one that was begun by a former owner may be gone on with.
    ///
    /// # Errors
    /// [`BackendError`].
    fn begin_eval(&mut self, order: EvalOrder) -> Result<(), BackendError>;

    /// Waits for an eval that was begun, and gives its result, which is durable: `eval_result.json`
    /// is there.
    ///
    /// # Errors
    /// [`BackendError`].
    fn next_result(&mut self) -> Result<EvalResult, BackendError>;

    /// Hears of a result that a former owner left, before it is merged.
    fn on_unmerged_result(&mut self, _result: &EvalResult) {}

    /// Hears of every block of the search itself that was written down.
    fn on_manifest_written(&mut self, _manifest: &SearchManifest) {}

    /// Scores an eval's results.
    ///
    /// # Errors
    /// [`SweepError`] when the candidate's are no results.
    fn score(&self, sweep: &SweepFiles<'_>) -> Result<Scores, SweepError> {
        score(sweep)
    }
}

/// Ideas that are to be written for a node.
#[derive(Debug, Clone)]
pub struct IdeasOrder {
    /// The node.
    pub node: SearchNode,
    /// The directory to write them into, empty.
    pub into: PathBuf,
    /// How many are needed.
    pub count: u32,
    /// The directories with earlier ideas, in their order.
    pub context: Vec<PathBuf>,
    /// The directory with what is known of the node.
    pub pack: PathBuf,
    /// How often ideas of the node were discarded.
    pub round: u32,
}

/// An eval that is to be run.
#[derive(Debug, Clone)]
pub struct EvalOrder {
    /// The eval, as it was planned.
    pub eval: SearchEval,
    /// The commit to begin with.
    pub parent_commit: String,
    /// The idea.
    pub idea: PathBuf,
    /// Where everything of it is written, each try in a directory of its own.
    pub root: PathBuf,
    /// Further tries that it has.
    pub retries: u32,
    /// How often its results were thrown away.
    pub round: u32,
}

/// Results that are to be scored.
#[derive(Debug, Clone, Copy)]
pub struct SweepFiles<'a> {
    /// The search.
    pub manifest: &'a SearchManifest,
    /// The eval.
    pub eval: EvalId,
    /// Its directory.
    pub directory: &'a SearchDirectory,
    /// The candidate's results.
    pub candidate: &'a std::path::Path,
    /// The parent's.
    pub parent: &'a std::path::Path,
    /// The root's.
    pub root: &'a std::path::Path,
}

/// What the repository has to hold for a search.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DesiredRepositoryState {
    /// References and their commits.
    pub refs: BTreeMap<String, String>,
    /// Checkouts below the run's directory, and their commits.
    pub worktrees: BTreeMap<String, String>,
    /// Checkouts of candidates that may stay.
    pub candidates: BTreeSet<String>,
    /// Directories that are to be removed.
    pub useless: BTreeSet<String>,
}

/// Something that could not be removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedRemoval {
    /// What.
    pub path: String,
    /// What it is.
    pub kind: CleanupKind,
    /// Why it is still there.
    pub reason: String,
}

impl DesiredRepositoryState {
    /// What a manifest wants.
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
                // One whose reference is gone was rejected when such checkouts were not kept.
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
                wanted.useless.extend(tries.chain([policy::experiment_dir(root)]));
            }
        }
        wanted
    }
}
