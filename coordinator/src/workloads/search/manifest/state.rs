//! The progress of a search.

use std::collections::BTreeMap;

use rollout_protocol::Timestamp;
use serde::{Deserialize, Serialize};

use rollout_protocol::search::{NodeId, StopReason};

/// The progress of a search.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SearchState {
    /// The depth that is being expanded.
    pub current_depth: u32,
    /// The nodes of that depth.
    pub frontier_node_ids: Vec<NodeId>,
    /// The expanded nodes, by depth.
    pub expanded_node_ids_by_depth: BTreeMap<u32, Vec<NodeId>>,
    /// The completed depths.
    pub completed_depths: Vec<u32>,
    /// The number of the next node.
    pub next_node_id: u32,
    /// The number of the next eval.
    pub next_eval_id: u32,
    /// The depth whose evals were planned last; `None` before the first.
    pub planned_depth: Option<u32>,
    /// Why the search ends after the current depth, or has ended.
    pub stop_reason: Option<StopReason>,
    /// Whether the search has ended.
    pub stopped: bool,
    /// Removals that failed and are retried.
    pub deferred_cleanup: Vec<DeferredCleanup>,
    /// Time and cost of ideas and results that were discarded on request. Never decreases.
    #[serde(default)]
    pub thrown_away: SearchSpending,
}

/// Time and cost spent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct SearchSpending {
    /// Seconds of evals.
    pub seconds: f64,
    /// Cost that commands reported.
    pub cost: f64,
}

/// A removal to retry later.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeferredCleanup {
    /// A path below the run's directory, or the name of a reference.
    pub path: String,
    /// Kind of the object.
    pub kind: CleanupKind,
    /// Why the last removal failed.
    pub reason: String,
    /// How often its removal failed.
    pub attempts: u32,
    /// Time of the next retry.
    pub next_retry_at: Timestamp,
}

/// The kind of an object to remove.
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

/// An event outside the plan of the search.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManifestEvent {
    /// Time of the event.
    pub at: Timestamp,
    /// Kind of the event.
    #[serde(flatten)]
    pub kind: ManifestEventKind,
}

/// Kinds of events outside the plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ManifestEventKind {
    /// Another process became the owner.
    LockTakeover {
        /// The former owner.
        former: String,
    },
    /// A candidate was promoted to a node.
    Promotion {
        /// The node.
        node: NodeId,
        /// The eval.
        eval: rollout_protocol::search::EvalId,
    },
    /// Results of the current or last depth were discarded on request.
    EvalsRequeued {
        /// The evals.
        evals: Vec<rollout_protocol::search::EvalId>,
        /// Nodes promoted from them, if the search had ended.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        withdrawn: Vec<NodeId>,
    },
    /// Untried ideas were discarded on request.
    IdeasDiscarded {
        /// Nodes of the ideas.
        nodes: Vec<NodeId>,
    },
    /// Ideas of a depth are not tried, because the budget of the depth does not cover their evals.
    IdeasLeftOut {
        /// The depth.
        depth: u32,
        /// How many.
        ideas: usize,
    },
    /// A removal that had failed succeeded.
    CleanedUp {
        /// Path or reference.
        path: String,
        /// Failures before the success.
        attempts: u32,
    },
}
