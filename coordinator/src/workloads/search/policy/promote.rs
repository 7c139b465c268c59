//! The end of a depth: decisions, new nodes, the next frontier, and the end of the search.

use rollout_protocol::Timestamp;

use super::super::manifest::{
    DuplicateIdeas, ManifestEvent, ManifestEventKind, NodeStatus, SearchManifest, SearchNode,
    SearchSpending, StopReason,
};
use super::decide::{self, ArtifactLookup};
use super::plan;
use rollout_protocol::search::{EvalId, NodeId};

/// Decides on the settled evals of a depth, and begins the next depth.
pub(super) fn promote(
    manifest: &mut SearchManifest,
    now: Timestamp,
    artifacts: &dyn ArtifactLookup,
) {
    let depth = manifest.state.current_depth;
    let best = decide::decide(manifest, depth, artifacts);
    let frontier: Vec<NodeId> =
        best.into_iter().map(|eval| add_node(manifest, eval, now)).collect();
    let expanded = std::mem::replace(&mut manifest.state.frontier_node_ids, frontier);
    for id in &expanded {
        if let Some(node) = manifest.nodes.get_mut(id) {
            node.status = NodeStatus::Expanded;
        }
    }
    let (no_more_evals, is_spent) =
        (plan::is_idea_budget_spent(manifest), is_eval_budget_spent(manifest));
    let state = &mut manifest.state;
    state.expanded_node_ids_by_depth.insert(depth, expanded);
    state.completed_depths.push(depth);
    state.current_depth = depth + 1;
    let reason = if state.stop_reason.is_some() {
        state.stop_reason
    } else if no_more_evals {
        Some(StopReason::MaxTotalIdeaEvalsReached)
    } else if is_spent {
        Some(StopReason::BudgetSpent)
    } else if state.frontier_node_ids.is_empty() && manifest.run_config.stop_on_empty_frontier {
        Some(StopReason::EmptyFrontier)
    } else if state.current_depth >= manifest.run_config.max_depth {
        Some(StopReason::MaxDepthReached)
    } else {
        None
    };
    state.stop_reason = reason;
    state.stopped = reason.is_some();
    super::clear_removed_refs(manifest);
}

/// Whether the evals so far used up the budget of seconds, or evals and ideas the budget of cost;
/// discarded evals count. Checked only between depths: within one, the answer would depend on the
/// order of results.
fn is_eval_budget_spent(manifest: &SearchManifest) -> bool {
    let SearchSpending { mut seconds, mut cost } = manifest.state.thrown_away;
    // In the order of numbers, so that floating-point sums are reproducible.
    cost += manifest.nodes.values().filter_map(|node| node.ideas_cost).sum::<f64>();
    for eval in manifest.evaluations.values() {
        cost += eval.cost.unwrap_or(0.0);
        seconds += eval.seconds.unwrap_or(0.0);
    }
    let config = &manifest.run_config;
    config.budget_seconds.is_some_and(|most| seconds >= most)
        || config.budget_cost.is_some_and(|most| cost >= most)
}

/// Makes a candidate a node.
fn add_node(manifest: &mut SearchManifest, eval: EvalId, now: Timestamp) -> NodeId {
    let node_id = NodeId(manifest.state.next_node_id);
    manifest.state.next_node_id += 1;
    let run = manifest.tree_run_id.clone();
    let ideas = manifest.run_config.node_ideas_root_dir.clone();
    let parent = manifest.evaluations.get(&eval).map(|eval| eval.parent_node_id);
    let mut idea_chain = parent.map(|id| manifest.node(id).idea_chain.clone()).unwrap_or_default();
    let eval = manifest.evaluations.get_mut(&eval).expect("only evals of the manifest are decided");
    if let Some(decision) = &mut eval.decision {
        decide::record_promotion(decision, node_id, now);
    }
    idea_chain.push(eval.idea_path.clone());
    let passed = "the gate passes only evals with commit and results";
    let node = SearchNode {
        node_id,
        parent_node_id: Some(eval.parent_node_id),
        depth: eval.depth + 1,
        commit: eval.candidate_commit.clone().expect(passed),
        ref_name: format!("tree/{run}/n{node_id}"),
        worktree_path: Some(format!("wt/{node_id}")),
        baseline_results_csv_path: eval.candidate_results_csv_path.clone().expect(passed),
        baseline_provenance: eval.candidate_results_provenance.clone().expect(passed),
        idea_chain,
        promoted_from_eval_id: Some(eval.eval_id),
        created_at: now,
        status: NodeStatus::Frontier,
        node_ideas_dir: format!("{ideas}/{node_id}"),
        context_ideas_dirs: Vec::new(),
        context_idea_files: Vec::new(),
        context_pack_files: Vec::new(),
        ideas_cost: None,
        ideas_calls: Vec::new(),
        generated_idea_files: None,
        dedupe: DuplicateIdeas::default(),
    };
    let kind = ManifestEventKind::Promotion { node: node_id, eval: eval.eval_id };
    manifest.events.push(ManifestEvent { at: now, kind });
    manifest.nodes.insert(node_id, node);
    node_id
}
