//! Nodes: commits that ideas are tried on.

use rollout_protocol::Timestamp;
use serde::{Deserialize, Serialize};

use super::{CopiedFile, GeneratedFile};
use rollout_protocol::search::{EvalId, NodeId};

/// A commit that ideas are tried on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SearchNode {
    /// Its number.
    pub node_id: NodeId,
    /// The node whose candidate it was; nothing for the root.
    pub parent_node_id: Option<NodeId>,
    /// Distance from the root.
    pub depth: u32,
    /// The commit.
    pub commit: String,
    /// The reference that keeps it.
    pub ref_name: String,
    /// Its checkout, below the run's directory, until it was expanded.
    pub worktree_path: Option<String>,
    /// Its own results, below the run's directory: what its candidates are measured against.
    pub baseline_results_csv_path: String,
    /// Where they came from.
    pub baseline_provenance: CopiedFile,
    /// The ideas that led to it, from the root on.
    pub idea_chain: Vec<String>,
    /// The eval that it was promoted from; nothing for the root.
    pub promoted_from_eval_id: Option<EvalId>,
    /// When it was promoted.
    pub created_at: Timestamp,
    /// What became of it.
    pub status: NodeStatus,
    /// Directory of its ideas, below the run's.
    pub node_ideas_dir: String,
    /// The directories that the generator was shown, in their order.
    #[serde(default)]
    pub context_ideas_dirs: Vec<String>,
    /// The files in them when it was.
    #[serde(default)]
    pub context_idea_files: Vec<IdeaFile>,
    /// What the generator was told beside them.
    #[serde(default)]
    pub context_pack_files: Vec<GeneratedFile>,
    /// What its commands say that it cost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ideas_cost: Option<f64>,
    /// What it generated, by file name; nothing before it ran.
    #[serde(default)]
    pub generated_idea_files: Option<Vec<IdeaFile>>,
    /// Ideas that were left out.
    #[serde(default)]
    pub dedupe: DuplicateIdeas,
}

/// What became of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeStatus {
    /// Its ideas are still to be tried.
    Frontier,
    /// They were.
    Expanded,
}

/// The file of an idea.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdeaFile {
    /// Path below the run's directory.
    pub path: String,
    /// Its content, in hexadecimal digits.
    pub sha256: String,
    /// Its text without what makes no difference: equal ideas have equal ones.
    pub normalized_sha256: String,
}

/// Ideas that were left out because they repeat others.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DuplicateIdeas {
    /// Among which ideas they were looked for.
    pub policy: super::DedupeScope,
    /// Which, and what they repeat.
    pub skipped: Vec<SkippedIdea>,
}

/// An idea that repeats another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkippedIdea {
    /// Its file.
    pub path: String,
    /// What they have in common.
    pub normalized_sha256: String,
    /// The other's file.
    pub repeats: String,
}
