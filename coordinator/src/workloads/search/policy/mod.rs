//! A search as transitions of its manifest. Each is one block: applied whole, written down, and only
//! then acted on; a search that was stopped between any two goes on as if it had not been.
//!
//! ```text
//! ideas for every node of the frontier ─► plan: numbers for all evals of the depth
//!        ▲                                                    │
//!        └── promote the best, next depth ◄── all settled ◄───┘
//! ```
//!
//! Nothing here runs anything, and nothing depends on the order in which results arrive.

pub mod decide;
mod plan;
mod promote;
mod refs;
#[cfg(test)]
pub(super) mod testing;
#[cfg(test)]
mod tests;

use rollout_protocol::Timestamp;

use self::decide::ArtifactLookup;
use super::manifest::{IdeaFile, NodeStatus, SearchEval, SearchManifest, StopReason};
use rollout_protocol::search::{EvalId, NodeId};

pub(super) use plan::experiment_dir;
pub use refs::{candidate_ref, clear_removed_refs, refs, worktrees};

/// What a search needs to go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PolicyNeeds {
    /// The ideas of these nodes.
    Ideas(Vec<NodeId>),
    /// The results of these evals.
    Evals(Vec<EvalId>),
    /// Nothing: it has ended.
    Ended(StopReason),
}

/// What one step came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PolicyStep {
    /// A block was applied; it has to be written down.
    Changed,
    /// Nothing can be done without these.
    Needs(PolicyNeeds),
}

/// Applies the next block, if the manifest allows one.
pub fn step(
    manifest: &mut SearchManifest,
    now: Timestamp,
    artifacts: &dyn ArtifactLookup,
) -> PolicyStep {
    if manifest.state.stopped {
        let reason = manifest.state.stop_reason.unwrap_or(StopReason::EmptyFrontier);
        return PolicyStep::Needs(PolicyNeeds::Ended(reason));
    }
    let depth = manifest.state.current_depth;
    if manifest.state.planned_depth != Some(depth) {
        // What is never tried is not asked for.
        let without = if plan::is_idea_budget_spent(manifest) {
            Vec::new()
        } else {
            plan::nodes_without_ideas(manifest)
        };
        if !without.is_empty() {
            return PolicyStep::Needs(PolicyNeeds::Ideas(without));
        }
        plan::plan(manifest, now);
    } else {
        let owed = pending_evals(manifest);
        if !owed.is_empty() {
            return PolicyStep::Needs(PolicyNeeds::Evals(owed));
        }
        promote::promote(manifest, now, artifacts);
    }
    manifest.updated_at = now;
    PolicyStep::Changed
}

/// The evals of the depth under way that are not settled, in their order.
pub fn pending_evals(manifest: &SearchManifest) -> Vec<EvalId> {
    let evals = manifest.evals_at(manifest.state.current_depth);
    evals.filter(|(_, eval)| !eval.status.is_settled()).map(|(id, _)| *id).collect()
}

/// Takes in the ideas of a node; those that it has already stay.
pub fn add_ideas(manifest: &mut SearchManifest, node: NodeId, mut files: Vec<IdeaFile>) {
    files.sort_by(|a, b| a.path.cmp(&b.path));
    if let Some(node) = manifest.nodes.get_mut(&node)
        && node.status == NodeStatus::Frontier
        && node.generated_idea_files.is_none()
    {
        node.generated_idea_files = Some(files);
    }
}

/// Takes in the result of an eval; one that is settled stays as it is. Whether it was taken.
pub fn add_result(manifest: &mut SearchManifest, result: SearchEval) -> bool {
    let Some(eval) = manifest.evaluations.get_mut(&result.eval_id) else { return false };
    if eval.status.is_settled() || !result.status.is_settled() {
        return false;
    }
    let planned = SearchEval {
        eval_id: eval.eval_id,
        parent_node_id: eval.parent_node_id,
        depth: eval.depth,
        queued_at: eval.queued_at,
        decision: None,
        ..result
    };
    *eval = planned;
    true
}
