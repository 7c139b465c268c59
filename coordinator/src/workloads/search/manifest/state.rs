//! How far a search has come.

use std::collections::BTreeMap;

use rollout_protocol::Timestamp;
use serde::{Deserialize, Serialize};

use rollout_protocol::search::{NodeId, StopReason};

/// How far a search has come.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SearchState {
    /// The depth that is being expanded.
    pub current_depth: u32,
    /// The nodes of that depth.
    pub frontier_node_ids: Vec<NodeId>,
    /// The nodes that were expanded, by their depth.
    pub expanded_node_ids_by_depth: BTreeMap<u32, Vec<NodeId>>,
    /// The depths that are done.
    pub completed_depths: Vec<u32>,
    /// The next node's number.
    pub next_node_id: u32,
    /// The next eval's number.
    pub next_eval_id: u32,
    /// The depth whose evals were planned last; none before the first.
    pub planned_depth: Option<u32>,
    /// Why the search ends after the depth that is under way, or has ended.
    pub stop_reason: Option<StopReason>,
    /// Whether it has ended.
    pub stopped: bool,
    /// What could not be removed yet.
    pub deferred_cleanup: Vec<DeferredCleanup>,
    /// What ideas and results took that were thrown away on request. It only grows.
    #[serde(default)]
    pub thrown_away: SearchSpending,
}

/// What something took.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct SearchSpending {
    /// Seconds of evals.
    pub seconds: f64,
    /// What commands said that they cost.
    pub cost: f64,
}

/// Something to be removed later.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeferredCleanup {
    /// What: a path below the run's directory, or the name of a reference.
    pub path: String,
    /// What it is.
    pub kind: CleanupKind,
    /// Why it is still there.
    pub reason: String,
    /// How often its removal failed.
    pub attempts: u32,
    /// When it is tried again.
    pub next_retry_at: Timestamp,
}

/// What is to be removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CleanupKind {
    /// A checkout.
    Worktree,
    /// A reference.
    Branch,
    /// A directory.
    Dir,
}

/// Something that happened beside the plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManifestEvent {
    /// When.
    pub at: Timestamp,
    /// What.
    #[serde(flatten)]
    pub kind: ManifestEventKind,
}

/// What happened beside the plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ManifestEventKind {
    /// Another process became the owner.
    LockTakeover {
        /// The former one.
        former: String,
    },
    /// A candidate became a node.
    Promotion {
        /// The node.
        node: NodeId,
        /// The eval.
        eval: rollout_protocol::search::EvalId,
    },
    /// Results of the depth under way, or of the last one, were thrown away, on request.
    EvalsRequeued {
        /// The evals.
        evals: Vec<rollout_protocol::search::EvalId>,
        /// Nodes that had come of them, when the search had ended.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        withdrawn: Vec<NodeId>,
    },
    /// Ideas that were not tried were thrown away, on request.
    IdeasDiscarded {
        /// Whose.
        nodes: Vec<NodeId>,
    },
    /// Something that could not be removed at first is gone.
    CleanedUp {
        /// What.
        path: String,
        /// After how many failures.
        attempts: u32,
    },
}
