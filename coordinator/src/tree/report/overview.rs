//! A search in brief, for terminals and programs.

use serde::Serialize;

use super::super::ids::{EvalId, NodeId};
use super::super::manifest::{Eval, EvalStatus, Manifest, StopReason};
use super::super::score::Grade;
use super::best::{best_path, standing};
use super::{idea_name, verdict};

/// A search in brief.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Overview {
    /// Its name.
    pub tree_run_id: String,
    /// Whether commands were played.
    pub dry_run: bool,
    /// Why it ended; nothing while it has not.
    pub stop_reason: Option<StopReason>,
    /// The depth that is being expanded.
    pub current_depth: u32,
    /// Nodes, the root included.
    pub nodes: usize,
    /// Evals.
    pub evals: usize,
    /// Those that are settled.
    pub settled: usize,
    /// Things that could not be removed yet.
    pub deferred_cleanup: usize,
    /// From the root to the best node.
    pub best_path: Vec<BestStep>,
    /// The ideas that were tried.
    pub ideas: Vec<TriedIdea>,
}

/// A node of the best path.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BestStep {
    /// The node.
    pub node_id: NodeId,
    /// The idea that led to it; nothing for the root.
    pub idea: Option<String>,
    /// Its score against the root.
    pub score: Option<f64>,
    /// How much better its primary metric is than the root's.
    pub primary_delta: Option<f64>,
    /// Its commit.
    pub commit: String,
}

/// An idea that was tried.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TriedIdea {
    /// The eval.
    pub eval_id: EvalId,
    /// The depth of the node it was tried on.
    pub depth: u32,
    /// That node.
    pub parent_node_id: NodeId,
    /// File name of the idea.
    pub idea: String,
    /// How it ended.
    pub status: EvalStatus,
    /// Its grade against the parent.
    pub grade: Option<Grade>,
    /// How much better its primary metric is than the parent's.
    pub primary_delta: Option<f64>,
    /// Its rank, against the root.
    pub rank_score: Option<f64>,
    /// What was decided.
    pub outcome: String,
    /// The node that it became.
    pub promoted_to_node_id: Option<NodeId>,
}

impl Overview {
    /// The search of a manifest.
    pub fn of(manifest: &Manifest) -> Self {
        let state = &manifest.state;
        let settled = manifest.evaluations.values().filter(|eval| eval.status.is_settled());
        Self {
            tree_run_id: manifest.tree_run_id.clone(),
            dry_run: manifest.run_config.dry_run,
            stop_reason: state.stop_reason.filter(|_| state.stopped),
            current_depth: state.current_depth,
            nodes: manifest.nodes.len(),
            evals: manifest.evaluations.len(),
            settled: settled.count(),
            deferred_cleanup: state.deferred_cleanup.len(),
            best_path: best_path(manifest).into_iter().map(|id| step(manifest, id)).collect(),
            ideas: manifest.evaluations.values().map(tried).collect(),
        }
    }
}

fn step(manifest: &Manifest, id: NodeId) -> BestStep {
    let node = manifest.node(id);
    let standing = standing(manifest, id);
    BestStep {
        node_id: id,
        idea: node.idea_chain.last().map(|path| idea_name(path).to_owned()),
        score: standing.map(|(score, _)| score),
        primary_delta: standing.and_then(|(_, delta)| delta),
        commit: node.commit.clone(),
    }
}

fn tried(eval: &Eval) -> TriedIdea {
    let parent = eval.parent_relative.as_ref();
    let summary = parent.and_then(|view| view.recommendation_summary.as_ref());
    TriedIdea {
        eval_id: eval.eval_id,
        depth: eval.depth,
        parent_node_id: eval.parent_node_id,
        idea: idea_name(&eval.idea_path).to_owned(),
        status: eval.status,
        grade: summary.map(|summary| summary.grade),
        primary_delta: parent.and_then(|view| view.primary_delta),
        rank_score: eval.decision.as_ref().and_then(|decision| decision.rank_score),
        outcome: verdict(eval),
        promoted_to_node_id: eval.decision.as_ref().and_then(|d| d.promoted_to_node_id),
    }
}
