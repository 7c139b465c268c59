//! `manifest.json` of a search: everything that is known and decided, so that whoever reads it can
//! go on, or say why every idea was promoted or not. Version 3 of the format.

mod eval;
mod node;
mod state;

use std::collections::BTreeMap;

use rollout_protocol::Timestamp;
use serde::{Deserialize, Serialize};

use crate::config::ScoringProfile;
use rollout_protocol::search::{EvalId, NodeId};

pub use crate::config::{ArtifactPolicy, ContextStrategy, DedupeScope};
pub use rollout_protocol::search::{EvalStatus, StopReason};

pub use eval::{
    ComparisonBasis, ComparisonSummary, EvalDecision, Reason, SearchEval, SearchEvalError,
};
pub use node::{DuplicateIdeas, IdeaFile, NodeStatus, SearchNode, SkippedIdea};
pub use state::{
    CleanupKind, DeferredCleanup, ManifestEvent, ManifestEventKind, SearchSpending, SearchState,
};

/// The version that is written.
pub const MANIFEST_VERSION: u32 = 3;

/// A search.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SearchManifest {
    /// [`MANIFEST_VERSION`].
    pub manifest_version: u32,
    /// Name of the search.
    pub tree_run_id: String,
    /// When it began.
    pub created_at: Timestamp,
    /// When this was written.
    pub updated_at: Timestamp,
    /// What it runs under.
    pub run_config: SearchRunConfig,
    /// Where it began.
    pub root: SearchRoot,
    /// How far it has come.
    pub state: SearchState,
    /// What happened beside the plan.
    #[serde(default)]
    pub events: Vec<ManifestEvent>,
    /// The nodes.
    pub nodes: BTreeMap<NodeId, SearchNode>,
    /// The evals.
    pub evaluations: BTreeMap<EvalId, SearchEval>,
}

/// What a search runs under.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SearchRunConfig {
    /// Ideas tried on a node, after repeated ones were left out.
    pub ideas_per_node: u32,
    /// Depth at which the search ends.
    pub max_depth: u32,
    /// Nodes promoted at a depth.
    pub beam_width: u32,
    /// Evals at once.
    pub max_parallel_evals: u32,
    /// Further tries of an eval whose commands failed.
    pub eval_retries: u32,
    /// Time limit of an eval, seconds.
    pub eval_timeout_seconds: Option<f64>,
    /// Configurations that a sweep must have run, all with success.
    pub sweep_config_limit: Option<u64>,
    /// Evals of the whole search.
    pub max_total_idea_evals: Option<u32>,
    /// Rows that a sweep must have when no number of configurations is set.
    pub min_candidate_rows: u64,
    /// Share of rows that must have succeeded when no number of configurations is set.
    pub min_ok_rate: f64,
    /// How far the primary metric may fall below the parent's and still not be worse.
    pub primary_tolerance: f64,
    /// Whether the search ends when nothing was promoted.
    pub stop_on_empty_frontier: bool,
    /// Among which ideas one may not be repeated.
    pub dedupe_scope: DedupeScope,
    /// Whether commands and repository are played, not run.
    pub dry_run: bool,
    /// Where artifacts are kept.
    pub artifact_policy: ArtifactPolicy,
    /// Earlier ideas that the command for ideas is shown.
    pub ideas_context_strategy: ContextStrategy,
    /// Directory of the nodes' ideas, below the run's.
    pub node_ideas_root_dir: String,
    /// Directories beside them that it is shown, as they were configured.
    pub context_ideas_dirs: Vec<String>,
    /// File that a sweep writes its results into.
    pub results_file: String,
    /// Seconds that evals may take together.
    pub budget_seconds: Option<f64>,
    /// What they may cost together.
    pub budget_cost: Option<f64>,
    /// Whether checkouts of candidates that were not promoted stay.
    pub keep_rejected_worktrees: bool,
    /// Whether what failed evals wrote stays.
    pub keep_failed_artifacts: bool,
    /// The whole configuration in the form of its file, values of variables unexpanded.
    pub settings: serde_json::Value,
    /// What counts how much.
    pub scoring_profile: ScoringProfile,
    /// Digest of it.
    pub scoring_profile_digest: rollout_protocol::digest::Digest,
}

/// Where a search began.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SearchRoot {
    /// The commit.
    pub root_commit: String,
    /// A reference that keeps it.
    pub root_ref_name: String,
    /// The results that everything is ranked against, below the run's directory.
    pub root_baseline_csv_path: String,
    /// Where they came from.
    pub root_baseline_provenance: CopiedFile,
}

/// A file that was made, and what its content was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GeneratedFile {
    /// Where it is, below the run's directory.
    pub path: String,
    /// Its content, in hexadecimal digits.
    pub sha256: String,
}

/// A file that was copied, and what its content was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopiedFile {
    /// Where it was.
    pub source_path: String,
    /// Where it is, below the run's directory.
    pub copied_to_path: String,
    /// Its content, in hexadecimal digits.
    pub sha256: String,
}

impl SearchManifest {
    /// A node that the manifest refers to.
    ///
    /// # Panics
    /// When it is not there: a defect.
    pub fn node(&self, id: NodeId) -> &SearchNode {
        self.nodes.get(&id).expect("every node that is referred to is there")
    }

    /// How often ideas of a node were discarded.
    pub fn idea_discards(&self, node: NodeId) -> u32 {
        let of_node = |event: &&ManifestEvent| match &event.kind {
            ManifestEventKind::IdeasDiscarded { nodes } => nodes.contains(&node),
            _ => false,
        };
        u32::try_from(self.events.iter().filter(of_node).count()).unwrap_or(u32::MAX)
    }

    /// The node and its ancestors, from the root on.
    pub fn path_to(&self, id: NodeId) -> Vec<NodeId> {
        let mut path = vec![id];
        while let Some(parent) = path.last().and_then(|id| self.node(*id).parent_node_id) {
            path.push(parent);
        }
        path.reverse();
        path
    }

    /// How often the results of an eval were thrown away.
    pub fn eval_discards(&self, id: EvalId) -> u32 {
        let thrown = |event: &&ManifestEvent| match &event.kind {
            ManifestEventKind::EvalsRequeued { evals, .. } => evals.contains(&id),
            _ => false,
        };
        u32::try_from(self.events.iter().filter(thrown).count()).unwrap_or(u32::MAX)
    }

    /// The evals of a depth, in their order.
    pub fn evals_at(&self, depth: u32) -> impl Iterator<Item = (&EvalId, &SearchEval)> {
        self.evaluations.iter().filter(move |(_, eval)| eval.depth == depth)
    }
}
