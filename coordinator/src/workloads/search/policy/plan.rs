//! The plan of a depth: which ideas are tried on which nodes, each with an eval number.

use std::collections::BTreeMap;

use rollout_protocol::Timestamp;

use super::super::idea;
use super::super::manifest::{
    EvalStatus, IdeaFile, ManifestEvent, ManifestEventKind, SearchEval, SearchManifest, StopReason,
};
use rollout_protocol::search::{EvalId, NodeId};

/// The nodes of the frontier that have no ideas yet.
pub(super) fn nodes_without_ideas(manifest: &SearchManifest) -> Vec<NodeId> {
    let frontier = manifest.state.frontier_node_ids.iter().copied();
    frontier.filter(|id| manifest.node(*id).generated_idea_files.is_none()).collect()
}

/// Sums of decimal fractions are not exact.
const ROUNDING: f64 = 1e-9;

/// Numbers the evals of the depth, in the order of nodes and file names, within the budget.
pub(super) fn plan(manifest: &mut SearchManifest, now: Timestamp) {
    let depth = manifest.state.current_depth;
    manifest.state.planned_depth = Some(depth);
    if is_idea_budget_spent(manifest) {
        manifest.state.stop_reason = Some(StopReason::MaxTotalIdeaEvalsReached);
        return;
    }
    let covered = evals_in_budget_of_depth(manifest);
    if covered == Some(0) {
        manifest.state.stop_reason = Some(StopReason::BudgetSpent);
        return;
    }
    let mut chosen_here = BTreeMap::new();
    let mut ideas = Vec::new();
    for node in manifest.state.frontier_node_ids.clone() {
        let (chosen, dedupe) = idea::choose_ideas(manifest, node, &chosen_here);
        for file in &chosen {
            chosen_here.insert(file.normalized_sha256.clone(), file.path.clone());
        }
        if let Some(node) = manifest.nodes.get_mut(&node) {
            node.dedupe = dedupe;
        }
        ideas.extend(chosen.into_iter().enumerate().map(|(place, file)| (place, node, file)));
    }
    let left_out = covered.map_or(0, |covered| ideas.len().saturating_sub(covered));
    if left_out > 0 {
        // No node is left without evals while another one has several more.
        ideas.sort_by_key(|(place, ..)| *place);
        ideas.truncate(ideas.len() - left_out);
        ideas.sort_by_key(|(_, node, _)| *node);
    }
    for (_, node, file) in ideas {
        if is_idea_budget_spent(manifest) {
            manifest.state.stop_reason = Some(StopReason::MaxTotalIdeaEvalsReached);
            break;
        }
        add_eval(manifest, node, depth, file, now);
    }
    if left_out > 0 {
        let kind = ManifestEventKind::IdeasLeftOut { depth, ideas: left_out };
        manifest.events.push(ManifestEvent { at: now, kind });
    }
}

/// How many evals the budget of the depth covers after the agents that wrote the ideas of its nodes,
/// with all attempts and each as expensive as its agents may be; `None` without a limit. Their true
/// costs would make the decision depend on the order of results.
fn evals_in_budget_of_depth(manifest: &SearchManifest) -> Option<usize> {
    let config = &manifest.run_config;
    let (most, each) = (config.budget_depth_cost?, config.max_attempt_cost?);
    let each = each * f64::from(config.eval_retries.saturating_add(1));
    let frontier = manifest.state.frontier_node_ids.iter();
    let calls = frontier.flat_map(|id| &manifest.node(*id).ideas_calls);
    let ideas: f64 = calls.map(|calls| calls.cost).sum();
    Some(((most - ideas) / each + ROUNDING).floor().max(0.0) as usize)
}

/// Directory of the logs and outputs of an eval, from the directory of the eval.
pub(in crate::workloads::search) fn experiment_dir(eval_output_root: &str) -> String {
    format!("{eval_output_root}/experiment")
}

/// Whether the budget of evals is used up.
pub(super) fn is_idea_budget_spent(manifest: &SearchManifest) -> bool {
    let most = manifest.run_config.max_total_idea_evals;
    most.is_some_and(|most| manifest.evaluations.len() >= most as usize)
}

pub(super) fn add_eval(
    manifest: &mut SearchManifest,
    node: NodeId,
    depth: u32,
    file: IdeaFile,
    now: Timestamp,
) {
    let eval_id = EvalId(manifest.state.next_eval_id);
    manifest.state.next_eval_id += 1;
    let root = format!("eval/{eval_id}");
    let eval = SearchEval {
        eval_id,
        parent_node_id: node,
        depth,
        idea_path: file.path,
        idea_normalized_sha256: file.normalized_sha256,
        status: EvalStatus::Queued,
        queued_at: now,
        started_at: None,
        finished_at: None,
        seconds: None,
        attempt: 0,
        worker: None,
        cost: None,
        calls: Vec::new(),
        possible_secrets: Vec::new(),
        error: None,
        experiment_dir: Some(experiment_dir(&root)),
        eval_output_root: root,
        candidate_commit: None,
        candidate_ref_name: None,
        candidate_results_csv_path: None,
        candidate_results_provenance: None,
        strict_completeness: None,
        results_warning: None,
        parent_relative: None,
        root_relative: None,
        decision: None,
    };
    manifest.evaluations.insert(eval_id, eval);
}
