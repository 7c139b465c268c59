//! Nodes: commits on which ideas are tried.

use rollout_protocol::Timestamp;
use serde::{Deserialize, Serialize};

use super::StepCalls;
use super::{CopiedFile, GeneratedFile};
use rollout_protocol::search::{EvalId, NodeId};

/// A commit on which ideas are tried.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SearchNode {
    /// Number of the node.
    pub node_id: NodeId,
    /// The node on which its candidate was tried; `None` for the root.
    pub parent_node_id: Option<NodeId>,
    /// Distance from the root.
    pub depth: u32,
    /// The commit.
    pub commit: String,
    /// The reference that holds the commit.
    pub ref_name: String,
    /// Its checkout below the run's directory; `None` once expanded.
    pub worktree_path: Option<String>,
    /// Its own results below the run's directory: the baseline of its candidates.
    pub baseline_results_csv_path: String,
    /// Source of the results.
    pub baseline_provenance: CopiedFile,
    /// The ideas that led to it, from the root.
    pub idea_chain: Vec<String>,
    /// The eval that it was promoted from; `None` for the root.
    pub promoted_from_eval_id: Option<EvalId>,
    /// When it was promoted.
    pub created_at: Timestamp,
    /// State of the node.
    pub status: NodeStatus,
    /// Directory of its ideas, below the run's directory.
    pub node_ideas_dir: String,
    /// The idea directories shown to the generator, in order.
    #[serde(default)]
    pub context_ideas_dirs: Vec<String>,
    /// The files in those directories at that time.
    #[serde(default)]
    pub context_idea_files: Vec<IdeaFile>,
    /// The files of the context pack shown to the generator.
    #[serde(default)]
    pub context_pack_files: Vec<GeneratedFile>,
    /// Cost that the command for its ideas reported, and of the model calls of its agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ideas_cost: Option<f64>,
    /// Model calls of the agent that wrote its ideas.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ideas_calls: Vec<StepCalls>,
    /// The generated ideas by file name; `None` before the command ran.
    #[serde(default)]
    pub generated_idea_files: Option<Vec<IdeaFile>>,
    /// Skipped ideas.
    #[serde(default)]
    pub dedupe: DuplicateIdeas,
}

/// State of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeStatus {
    /// Its ideas are not tried yet.
    Frontier,
    /// Its ideas were tried.
    Expanded,
}

/// The file of an idea.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdeaFile {
    /// Path below the run's directory.
    pub path: String,
    /// SHA-256 of its content, in hexadecimal digits.
    pub sha256: String,
    /// SHA-256 of its normalized text: the same for equal ideas.
    pub normalized_sha256: String,
}

/// Ideas skipped because they repeat others.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DuplicateIdeas {
    /// The ideas they were compared with.
    pub policy: super::DedupeScope,
    /// The skipped ideas, with the ideas that they repeat.
    pub skipped: Vec<SkippedIdea>,
}

/// An idea that repeats another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkippedIdea {
    /// Its file.
    pub path: String,
    /// SHA-256 of the normalized text of both.
    pub normalized_sha256: String,
    /// File of the other idea.
    pub repeats: String,
}
