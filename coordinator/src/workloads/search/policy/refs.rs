//! Desired references and checkouts of a search, from its manifest alone. All others of the search
//! are removed.

use std::collections::{BTreeMap, BTreeSet};

use super::super::manifest::{EvalStatus, NodeStatus, SearchManifest, SearchNode};
use rollout_protocol::search::EvalId;

/// The reference that holds the candidate of an eval.
pub fn candidate_ref(manifest: &SearchManifest, eval: EvalId) -> String {
    format!("tree/{}/e{eval}", manifest.tree_run_id)
}

/// References and their commits. Candidates keep theirs until the decision; promoted ones have the
/// node's from then on.
pub fn refs(manifest: &SearchManifest, keep_rejected: bool) -> BTreeMap<String, String> {
    let root = &manifest.root;
    let mut refs = BTreeMap::from([(root.root_ref_name.clone(), root.root_commit.clone())]);
    refs.extend(manifest.nodes.values().map(|node| (node.ref_name.clone(), node.commit.clone())));
    for eval in manifest.evaluations.values() {
        let promoted = eval.decision.as_ref().is_some_and(|d| d.promoted_to_node_id.is_some());
        let wanted = !promoted && (eval.decision.is_none() || keep_rejected);
        if let (true, Some(name), Some(commit)) =
            (wanted, &eval.candidate_ref_name, &eval.candidate_commit)
        {
            refs.insert(name.clone(), commit.clone());
        }
    }
    refs
}

/// Checkouts below the run's directory and their commits: those of unexpanded nodes.
pub fn worktrees(manifest: &SearchManifest) -> BTreeMap<String, String> {
    let frontier: BTreeSet<_> = manifest.state.frontier_node_ids.iter().collect();
    let nodes = manifest.nodes.values().filter(|node| frontier.contains(&node.node_id));
    nodes.filter_map(|node| Some((node.worktree_path.clone()?, node.commit.clone()))).collect()
}

/// Clears the names of removed objects: a manifest refers to nothing that is removed. Commits stay
/// as a record of the idea, although no reference holds them.
pub fn clear_removed_refs(manifest: &mut SearchManifest) {
    let config = &manifest.run_config;
    let expanded = |node: &&mut SearchNode| node.status == NodeStatus::Expanded;
    for node in manifest.nodes.values_mut().filter(expanded) {
        node.worktree_path = None;
    }
    for eval in manifest.evaluations.values_mut() {
        let Some(decision) = &eval.decision else { continue };
        if decision.promoted_to_node_id.is_some() || !config.keep_rejected_worktrees {
            eval.candidate_ref_name = None;
        }
        if eval.status == EvalStatus::Failed && !config.keep_failed_artifacts {
            eval.experiment_dir = None;
        }
    }
}
