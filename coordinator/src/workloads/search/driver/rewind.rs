//! Reopening of the last depth of an ended search, to run its evals again.

use crate::workloads::search::manifest::{NodeStatus, SearchManifest};
use rollout_protocol::search::NodeId;

/// Makes the last depth of an ended search the current one again, without decisions on its evals.
/// Returns the nodes promoted from them. These are removed and their numbers reused, so that the
/// search ends as if it had never ended before. No idea was written for them. Does nothing if the
/// search has not ended.
pub(super) fn rewind_last_depth(manifest: &mut SearchManifest) -> Vec<NodeId> {
    let last = manifest.state.completed_depths.last().copied();
    let Some(depth) = last.filter(|depth| manifest.evals_at(*depth).next().is_some()) else {
        return Vec::new();
    };
    let state = &mut manifest.state;
    if !state.stopped {
        return Vec::new();
    }
    state.completed_depths.pop();
    let expanded = state.expanded_node_ids_by_depth.remove(&depth).unwrap_or_default();
    let withdrawn = std::mem::replace(&mut state.frontier_node_ids, expanded);
    let first = withdrawn.iter().map(|id| id.0).min();
    state.next_node_id = first.unwrap_or(state.next_node_id);
    (state.current_depth, state.planned_depth) = (depth, Some(depth));
    (state.stop_reason, state.stopped) = (None, false);
    for id in &withdrawn {
        manifest.nodes.remove(id);
    }
    for id in &manifest.state.frontier_node_ids {
        if let Some(node) = manifest.nodes.get_mut(id) {
            node.status = NodeStatus::Frontier;
            node.worktree_path = Some(format!("wt/{id}"));
        }
    }
    for eval in manifest.evaluations.values_mut().filter(|eval| eval.depth == depth) {
        eval.decision = None;
    }
    withdrawn
}
