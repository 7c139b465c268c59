//! The policy of a search: transitions of its manifest. Each is one block: applied as a whole,
//! written, and only then acted on, so a search that stops between any two continues as if it had
//! not.
//!
//! ```text
//! ideas for every node of the frontier ─► plan: numbers for all evals of the depth
//!        ▲                                                    │
//!        └── promote the best, next depth ◄── all settled ◄───┘
//! ```
//!
//! Nothing here performs I/O, and nothing depends on the order in which results arrive.

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

/// The inputs that a search needs to continue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PolicyNeeds {
    /// The ideas of these nodes.
    Ideas(Vec<NodeId>),
    /// The results of these evals.
    Evals(Vec<EvalId>),
    /// None: the search has ended.
    Ended(StopReason),
}

/// The result of one step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PolicyStep {
    /// A block was applied; the manifest must be written.
    Changed,
    /// The search cannot continue without these.
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
        // Nodes whose ideas are never tried get none.
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
        let pending = pending_evals(manifest);
        if !pending.is_empty() {
            return PolicyStep::Needs(PolicyNeeds::Evals(pending));
        }
        promote::promote(manifest, now, artifacts);
    }
    manifest.updated_at = now;
    PolicyStep::Changed
}

/// The unsettled evals of the current depth, in order.
pub fn pending_evals(manifest: &SearchManifest) -> Vec<EvalId> {
    let evals = manifest.evals_at(manifest.state.current_depth);
    evals.filter(|(_, eval)| !eval.status.is_settled()).map(|(id, _)| *id).collect()
}

/// Adds the ideas of a node, unless it has ideas already.
pub fn add_ideas(manifest: &mut SearchManifest, node: NodeId, mut files: Vec<IdeaFile>) {
    files.sort_by(|a, b| a.path.cmp(&b.path));
    if let Some(node) = manifest.nodes.get_mut(&node)
        && node.status == NodeStatus::Frontier
        && node.generated_idea_files.is_none()
    {
        node.generated_idea_files = Some(files);
    }
}

/// Adds the result of an eval, unless the eval is settled. Returns whether it was added.
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
