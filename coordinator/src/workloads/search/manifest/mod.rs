//! `manifest.json` of a search: its complete state and all decisions, enough to resume the search
//! and to explain every promotion. Version 3 of the format.

mod calls;
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

pub use calls::{SpendingSummary, StepCalls, add_calls};
pub use eval::{
    ComparisonBasis, ComparisonSummary, EvalDecision, Reason, SearchEval, SearchEvalError,
};
pub use node::{DuplicateIdeas, IdeaFile, NodeStatus, SearchNode, SkippedIdea};
pub use state::{
    CleanupKind, DeferredCleanup, ManifestEvent, ManifestEventKind, SearchSpending, SearchState,
};

/// The current version of the format.
pub const MANIFEST_VERSION: u32 = 3;

/// The manifest of a search.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SearchManifest {
    /// [`MANIFEST_VERSION`].
    pub manifest_version: u32,
    /// Name of the search.
    pub tree_run_id: String,
    /// Time at which the search began.
    pub created_at: Timestamp,
    /// Time of this version of the manifest.
    pub updated_at: Timestamp,
    /// Settings of the search.
    pub run_config: SearchRunConfig,
    /// The root of the search.
    pub root: SearchRoot,
    /// The progress of the search.
    pub state: SearchState,
    /// Events outside the plan.
    #[serde(default)]
    pub events: Vec<ManifestEvent>,
    /// The nodes.
    pub nodes: BTreeMap<NodeId, SearchNode>,
    /// The evals.
    pub evaluations: BTreeMap<EvalId, SearchEval>,
}

/// Settings of a search.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SearchRunConfig {
    /// Ideas tried on a node, not counting repeated ones.
    pub ideas_per_node: u32,
    /// Depth at which the search ends.
    pub max_depth: u32,
    /// Nodes promoted per depth.
    pub beam_width: u32,
    /// Concurrent evals.
    pub max_parallel_evals: u32,
    /// Retries of an eval whose commands failed.
    pub eval_retries: u32,
    /// Time limit of an eval, seconds.
    pub eval_timeout_seconds: Option<f64>,
    /// Configurations that a sweep must have run successfully.
    pub sweep_config_limit: Option<u64>,
    /// Limit of evals in the whole search.
    pub max_total_idea_evals: Option<u32>,
    /// Minimum rows of a sweep if no number of configurations is set.
    pub min_candidate_rows: u64,
    /// Minimum share of successful rows if no number of configurations is set.
    pub min_ok_rate: f64,
    /// How far the primary metric may fall below the parent's without counting as worse.
    pub primary_tolerance: f64,
    /// Whether the search ends when no eval was promoted.
    pub stop_on_empty_frontier: bool,
    /// The ideas among which none may be repeated.
    pub dedupe_scope: DedupeScope,
    /// Whether commands and repository are simulated.
    pub dry_run: bool,
    /// Where artifacts are stored.
    pub artifact_policy: ArtifactPolicy,
    /// Which earlier ideas are shown to the command for ideas.
    pub ideas_context_strategy: ContextStrategy,
    /// Directory of all nodes' ideas, below the run's directory.
    pub node_ideas_root_dir: String,
    /// Further directories of earlier ideas, as configured.
    pub context_ideas_dirs: Vec<String>,
    /// Results file of a sweep.
    pub results_file: String,
    /// Limit of the evals' total time, seconds.
    pub budget_seconds: Option<f64>,
    /// Limit of the total cost.
    pub budget_cost: Option<f64>,
    /// Limit of the cost of each depth.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget_depth_cost: Option<f64>,
    /// Most that the agents of an attempt of an eval may cost, if that is limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_attempt_cost: Option<f64>,
    /// Whether to keep checkouts of candidates that were not promoted.
    pub keep_rejected_worktrees: bool,
    /// Whether to keep the files of failed evals.
    pub keep_failed_artifacts: bool,
    /// The whole configuration in the form of its file, variables unexpanded.
    pub settings: serde_json::Value,
    /// Weights and bounds of the metrics.
    pub scoring_profile: ScoringProfile,
    /// Digest of the profile.
    pub scoring_profile_digest: rollout_protocol::digest::Digest,
}

/// The root of a search.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SearchRoot {
    /// The root commit.
    pub root_commit: String,
    /// The reference that holds it.
    pub root_ref_name: String,
    /// The results that candidates are ranked against, below the run's directory.
    pub root_baseline_csv_path: String,
    /// Source of the results.
    pub root_baseline_provenance: CopiedFile,
}

/// A generated file and the digest of its content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GeneratedFile {
    /// Path below the run's directory.
    pub path: String,
    /// SHA-256 of its content, in hexadecimal digits.
    pub sha256: String,
}

/// A copied file and the digest of its content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopiedFile {
    /// Path of the source.
    pub source_path: String,
    /// Path of the copy, below the run's directory.
    pub copied_to_path: String,
    /// SHA-256 of its content, in hexadecimal digits.
    pub sha256: String,
}

impl SearchManifest {
    /// Gets a node that the manifest refers to.
    ///
    /// # Panics
    /// If the node is missing: a defect.
    pub fn node(&self, id: NodeId) -> &SearchNode {
        self.nodes.get(&id).expect("every referenced node exists")
    }

    /// How often ideas of a node were discarded.
    pub fn idea_discards(&self, node: NodeId) -> u32 {
        let of_node = |event: &&ManifestEvent| match &event.kind {
            ManifestEventKind::IdeasDiscarded { nodes } => nodes.contains(&node),
            _ => false,
        };
        u32::try_from(self.events.iter().filter(of_node).count()).unwrap_or(u32::MAX)
    }

    /// The node and its ancestors, from the root.
    pub fn path_to(&self, id: NodeId) -> Vec<NodeId> {
        let mut path = vec![id];
        while let Some(parent) = path.last().and_then(|id| self.node(*id).parent_node_id) {
            path.push(parent);
        }
        path.reverse();
        path
    }

    /// How often the results of an eval were discarded.
    pub fn eval_discards(&self, id: EvalId) -> u32 {
        let thrown = |event: &&ManifestEvent| match &event.kind {
            ManifestEventKind::EvalsRequeued { evals, .. } => evals.contains(&id),
            _ => false,
        };
        u32::try_from(self.events.iter().filter(thrown).count()).unwrap_or(u32::MAX)
    }

    /// The evals of a depth, in order.
    pub fn evals_at(&self, depth: u32) -> impl Iterator<Item = (&EvalId, &SearchEval)> {
        self.evaluations.iter().filter(move |(_, eval)| eval.depth == depth)
    }
}
