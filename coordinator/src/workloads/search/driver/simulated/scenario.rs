//! Outcomes of simulated evals by number: every outcome that gate and rank distinguish, in cycles
//! of ten. Evals ten apart tie.
//!
//! | number | outcome |
//! | --- | --- |
//! | 0 | much better |
//! | 1 | mixed, with an equal primary metric |
//! | 2 | a little better, but weak |
//! | 3 | worth exploring, but the primary metric regressed |
//! | 4 | better, without a score against the root |
//! | 5 | better, with a row that failed |
//! | 6 | a little better |
//! | 7 | the idea changes nothing |
//! | 8 | the sweep times out |
//! | 9 | better, without the primary metric |

use super::super::Scores;
use crate::workloads::search::manifest::ComparisonSummary;
use crate::workloads::search::score::{Grade, Recommendation, SweepCompleteness};
use rollout_protocol::search::EvalId;

/// The outcome of an eval.
#[derive(Debug, Clone, Copy)]
pub(super) enum SimulatedOutcome {
    Results(SimulatedResults),
    NoChanges,
    TimedOut,
}

/// The quality of its results.
#[derive(Debug, Clone, Copy)]
pub(super) struct SimulatedResults {
    explore: bool,
    grade: Grade,
    pub(super) delta: Option<f64>,
    /// Score against the root.
    score: Option<f64>,
    pub(super) complete: bool,
}

/// The outcome of an eval.
pub(super) fn simulated_outcome(id: EvalId) -> SimulatedOutcome {
    let results = |explore, grade, delta, score, complete| {
        SimulatedOutcome::Results(SimulatedResults { explore, grade, delta, score, complete })
    };
    match id.0 % 10 {
        0 => results(true, Grade::Promising, Some(0.02), Some(1.0), true),
        1 => results(false, Grade::Mixed, Some(0.0), Some(0.8), true),
        2 => results(false, Grade::Weak, Some(0.01), Some(0.4), true),
        3 => results(true, Grade::Promising, Some(-0.0001), Some(0.9), true),
        4 => results(true, Grade::Promising, Some(0.01), None, true),
        5 => results(true, Grade::Promising, Some(0.01), Some(0.7), false),
        6 => results(true, Grade::Promising, Some(0.005), Some(0.6), true),
        7 => SimulatedOutcome::NoChanges,
        8 => SimulatedOutcome::TimedOut,
        _ => results(true, Grade::Promising, None, Some(0.95), true),
    }
}

/// The scores of an eval with the given number of rows.
pub(super) fn simulated_scores(id: EvalId, rows: u64, limit: Option<u64>) -> Scores {
    let SimulatedOutcome::Results(results) = simulated_outcome(id) else {
        return Scores::default();
    };
    let view = |score: Option<f64>| ComparisonSummary {
        recommendation_summary: score.map(|score| Recommendation {
            should_explore: results.explore,
            grade: results.grade,
            score,
            reasons: vec!["simulated".to_owned()],
        }),
        primary_delta: results.delta,
        baseline_rows_used: rows,
        candidate_rows_used: rows,
        summary_json_path: format!("eval/{id}/score.json"),
    };
    let errors = u64::from(!results.complete);
    Scores {
        completeness: Some(SweepCompleteness {
            expected_count: limit,
            observed_unique_config_ids: rows,
            ok_count: rows - errors,
            error_count: errors,
        }),
        missing_columns: Vec::new(),
        metrics_fault: None,
        warning: None,
        // A score against the parent always exists.
        parent: Some(view(Some(results.score.unwrap_or(0.5)))),
        root: Some(view(results.score)),
        comparisons: None,
    }
}
