//! Promotion decisions: the gate compares a candidate with its parent, the rank with the root, and
//! the beam keeps the best of a depth.
//!
//! The order in which results arrive never matters: all decisions are made when the last eval of a
//! depth is settled, over evals in the order of their numbers.

mod gate;
mod rank;
#[cfg(test)]
mod tests;

use rollout_protocol::Timestamp;

use crate::workloads::search::manifest::{ComparisonBasis, EvalDecision, Reason, SearchManifest};
use rollout_protocol::search::EvalId;

pub(in crate::workloads::search) use gate::ARTIFACTS_PREFIX;
pub use gate::{ArtifactLookup, gate_failure};
pub use rank::{CandidateRank, rank_score};

/// Decides on every eval of a depth. Returns those to promote, best first.
pub fn decide(
    manifest: &mut SearchManifest,
    depth: u32,
    artifacts: &dyn ArtifactLookup,
) -> Vec<EvalId> {
    let mut ranked = Vec::new();
    let evals: Vec<EvalId> = manifest.evals_at(depth).map(|(id, _)| *id).collect();
    let mut decisions = Vec::with_capacity(evals.len());
    for id in evals {
        let eval = &manifest.evaluations[&id];
        let failed = gate_failure(manifest, eval, artifacts);
        let rank = rank_score(eval);
        let reason = failed.or(rank.is_none().then_some(Reason::Unranked));
        if let (None, Some(score)) = (reason, rank) {
            ranked.push(CandidateRank::new(eval, score));
        }
        let decision = EvalDecision {
            gate_basis: ComparisonBasis::ParentRelative,
            rank_basis: ComparisonBasis::RootRelative,
            passed_gate: failed.is_none(),
            rank_score: rank,
            promotion_reason: reason,
            primary_regressed: gate::primary_regressed(&manifest.run_config, eval),
            promoted_to_node_id: None,
            promoted_at: None,
        };
        decisions.push((id, decision));
    }
    ranked.sort_by(CandidateRank::compare_rank);
    let beam = manifest.run_config.beam_width as usize;
    let promoted: Vec<EvalId> = ranked.iter().take(beam).map(|rank| rank.eval).collect();
    for (id, mut decision) in decisions {
        if decision.promotion_reason.is_none() {
            let reason = match promoted.contains(&id) {
                true => gate::promotion_reason(&manifest.evaluations[&id]),
                false => Reason::BeyondBeam,
            };
            decision.promotion_reason = Some(reason);
        }
        if let Some(eval) = manifest.evaluations.get_mut(&id) {
            eval.decision = Some(decision);
        }
    }
    promoted
}

/// Records that an eval became a node.
pub fn record_promotion(
    decision: &mut EvalDecision,
    node: rollout_protocol::search::NodeId,
    at: Timestamp,
) {
    decision.promoted_to_node_id = Some(node);
    decision.promoted_at = Some(at);
}
