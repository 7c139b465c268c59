//! The rank: candidates of all parents in one order, by their comparison with the root.

use std::cmp::Ordering;

use crate::workloads::search::manifest::SearchEval;
use rollout_protocol::search::EvalId;

/// The key of a candidate's rank.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CandidateRank {
    score: f64,
    primary_delta: f64,
    /// The eval of the candidate.
    pub eval: EvalId,
}

/// The score against the root, else the primary metric's difference, else `None`. Values that are
/// not finite count as missing.
pub fn rank_score(eval: &SearchEval) -> Option<f64> {
    let view = eval.root_relative.as_ref()?;
    let score = view.recommendation_summary.as_ref().map(|summary| summary.score);
    let finite = |number: &f64| number.is_finite();
    score.filter(finite).or(view.primary_delta.filter(finite))
}

impl CandidateRank {
    /// The rank of an eval with the given score.
    pub fn new(eval: &SearchEval, score: f64) -> Self {
        let delta = eval.root_relative.as_ref().and_then(|view| view.primary_delta);
        let primary_delta = delta.filter(|delta| delta.is_finite()).unwrap_or(f64::NEG_INFINITY);
        Self { score, primary_delta, eval: eval.eval_id }
    }

    /// Higher scores first, then larger differences of the primary metric, then older evals.
    pub fn compare_rank(&self, other: &Self) -> Ordering {
        let falling = |a: f64, b: f64| b.total_cmp(&a);
        falling(self.score + 0.0, other.score + 0.0)
            .then(falling(self.primary_delta + 0.0, other.primary_delta + 0.0))
            .then(self.eval.cmp(&other.eval))
    }
}
