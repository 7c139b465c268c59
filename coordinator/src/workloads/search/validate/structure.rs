//! Validation of nodes, evals, counters and the frontier against each other.

use std::collections::{BTreeMap, BTreeSet};

use super::ValidationFaultKind::{Frontier, Structure};
use super::ValidationFindings;
use crate::workloads::search::manifest::{NodeStatus, SearchManifest, SearchNode};
use rollout_protocol::search::NodeId;

pub(super) fn check(manifest: &SearchManifest, findings: &mut ValidationFindings) {
    counters(manifest, findings);
    for (id, node) in &manifest.nodes {
        if *id != node.node_id {
            findings.add(Structure, format!("node {id}"), format!("its ID is {}", node.node_id));
        }
        origin(manifest, node, findings);
    }
    for (id, eval) in &manifest.evaluations {
        let subject = format!("eval {id}");
        if *id != eval.eval_id {
            findings.add(Structure, &subject, format!("its ID is {}", eval.eval_id));
        }
        match manifest.nodes.get(&eval.parent_node_id) {
            None => {
                let message = format!("its node {} is missing", eval.parent_node_id);
                findings.add(Structure, subject, message);
            }
            Some(node) if node.depth != eval.depth => {
                let message = format!("it has depth {}, its node {}", eval.depth, node.depth);
                findings.add(Structure, subject, message);
            }
            Some(_) => {}
        }
    }
    references(manifest, findings);
    frontier(manifest, findings);
}

fn counters(manifest: &SearchManifest, findings: &mut ValidationFindings) {
    let state = &manifest.state;
    let nodes: Vec<u32> = manifest.nodes.keys().map(|id| id.0).collect();
    if nodes != (0..state.next_node_id).collect::<Vec<_>>() {
        let message = format!("the nodes are not those numbered below {}", state.next_node_id);
        findings.add(Structure, "search", message);
    }
    // Evals whose ideas were discarded leave gaps.
    if manifest.evaluations.keys().any(|id| id.0 >= state.next_eval_id) {
        let message = format!("there are evals numbered {} or above", state.next_eval_id);
        findings.add(Structure, "search", message);
    }
    let depths: Vec<u32> = (0..state.current_depth).collect();
    if state.completed_depths != depths {
        findings.add(Structure, "search", "completed depths do not match the current depth");
    }
    let profile = manifest.run_config.scoring_profile.digest().ok();
    if profile != Some(manifest.run_config.scoring_profile_digest) {
        findings.add(Structure, "search", "the scoring profile does not match its digest");
    }
}

/// Checks a node against the eval that it was promoted from.
fn origin(manifest: &SearchManifest, node: &SearchNode, findings: &mut ValidationFindings) {
    let subject = format!("node {}", node.node_id);
    let mut wrong = |message: String| findings.add(Structure, &subject, message);
    let (Some(parent), Some(eval)) = (node.parent_node_id, node.promoted_from_eval_id) else {
        if node.node_id != NodeId(0) || node.depth != 0 || node.parent_node_id.is_some() {
            wrong("it has no parent or no eval, but is not the root".to_owned());
        }
        if node.commit != manifest.root.root_commit {
            wrong("its commit is not the root's".to_owned());
        }
        return;
    };
    // Numbers grow along every path, so there are no cycles.
    let Some(parent) = manifest.nodes.get(&parent).filter(|_| parent < node.node_id) else {
        return wrong(format!("its parent {parent} is missing"));
    };
    if parent.depth + 1 != node.depth {
        wrong(format!("it has depth {}, its parent {}", node.depth, parent.depth));
    }
    let Some(eval) = manifest.evaluations.get(&eval) else {
        return wrong(format!("its eval {eval} is missing"));
    };
    let promoted_to = eval.decision.as_ref().and_then(|decision| decision.promoted_to_node_id);
    if promoted_to != Some(node.node_id) || eval.parent_node_id != parent.node_id {
        wrong(format!("eval {} was not promoted to it", eval.eval_id));
    }
    if eval.candidate_commit.as_ref() != Some(&node.commit) {
        wrong(format!("its commit is not that of eval {}", eval.eval_id));
    }
    if eval.candidate_results_csv_path.as_ref() != Some(&node.baseline_results_csv_path) {
        wrong(format!("its baseline is not the results of eval {}", eval.eval_id));
    }
    let chain = parent.idea_chain.iter().chain([&eval.idea_path]);
    if !node.idea_chain.iter().eq(chain) {
        wrong("its ideas are not those of its ancestors".to_owned());
    }
}

/// Checks that no reference is used twice.
fn references(manifest: &SearchManifest, findings: &mut ValidationFindings) {
    let nodes =
        manifest.nodes.values().map(|node| (&node.ref_name, format!("node {}", node.node_id)));
    let evals = manifest.evaluations.values().filter_map(|eval| {
        Some((eval.candidate_ref_name.as_ref()?, format!("eval {}", eval.eval_id)))
    });
    let mut seen = BTreeSet::new();
    for (name, subject) in nodes.chain(evals) {
        if !seen.insert(name) {
            findings.add(Structure, subject, format!("{name} is used twice"));
        }
    }
}

/// Checks that every node is once either in the frontier or expanded, at its own depth.
fn frontier(manifest: &SearchManifest, findings: &mut ValidationFindings) {
    let state = &manifest.state;
    let mut places: BTreeMap<NodeId, Vec<(u32, NodeStatus)>> = BTreeMap::new();
    for id in &state.frontier_node_ids {
        places.entry(*id).or_default().push((state.current_depth, NodeStatus::Frontier));
    }
    for (depth, ids) in &state.expanded_node_ids_by_depth {
        for id in ids {
            places.entry(*id).or_default().push((*depth, NodeStatus::Expanded));
        }
    }
    for (id, node) in &manifest.nodes {
        let subject = format!("node {id}");
        match places.remove(id).unwrap_or_default().as_slice() {
            [] => findings.add(Frontier, subject, "it is neither in the frontier nor expanded"),
            [(depth, status)] if (*depth, *status) == (node.depth, node.status) => {}
            [(depth, status)] => {
                let message = format!("it is wrongly listed as {status:?} at depth {depth}");
                findings.add(Frontier, subject, message);
            }
            [_, _, ..] => findings.add(Frontier, subject, "it is listed more than once"),
        }
    }
    for id in places.keys() {
        findings.add(
            Frontier,
            format!("node {id}"),
            "it is in the frontier or expanded, but missing",
        );
    }
}
