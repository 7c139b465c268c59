//! The best node and the path to it.

use super::super::manifest::{SearchEval, SearchManifest};
use rollout_protocol::search::NodeId;

/// The eval that a node was promoted from.
pub(super) fn promoted_from(manifest: &SearchManifest, node: NodeId) -> Option<&SearchEval> {
    manifest.evaluations.get(&manifest.node(node).promoted_from_eval_id?)
}

/// A node's score against the root, and the difference of its primary metric.
pub(super) fn root_comparison(
    manifest: &SearchManifest,
    node: NodeId,
) -> Option<(f64, Option<f64>)> {
    let eval = promoted_from(manifest, node)?;
    let score = eval.decision.as_ref()?.rank_score?;
    Some((score, eval.root_relative.as_ref().and_then(|view| view.primary_delta)))
}

/// The path from the root to the best node: by its score against the root, then by the primary
/// metric, then the older one. Only the root if nothing was promoted.
pub fn best_path(manifest: &SearchManifest) -> Vec<NodeId> {
    let worst = f64::NEG_INFINITY;
    let ranked = manifest.nodes.keys().filter_map(|id| {
        let (score, delta) = root_comparison(manifest, *id)?;
        Some((score, delta.filter(|delta| delta.is_finite()).unwrap_or(worst), *id))
    });
    let best =
        ranked.max_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)).then(b.2.cmp(&a.2)));
    manifest.path_to(best.map_or_else(NodeId::default, |(_, _, id)| id))
}
