//! The score of a candidate against a baseline.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::summary::SweepSummary;
use crate::config::{GuardedMetric, ScoringProfile};

/// Reason of a score whose primary metric fell beyond its bound.
const PRIMARY_REGRESSED_REASON: &str = "primary_metric_regressed";

/// Comparison of a candidate with a baseline.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SweepComparison {
    /// The recommendation.
    pub recommendation: Recommendation,
    /// Improvement of the primary metric: positive is better in either direction. `None` if one of
    /// the two has no mean.
    pub primary_delta: Option<f64>,
    /// Rows used of the baseline.
    pub baseline_rows_used: u64,
    /// Rows used of the candidate.
    pub candidate_rows_used: u64,
    /// Number of improved metrics.
    pub positive: u32,
    /// Number of regressed metrics.
    pub negative: u32,
    /// Every column that is numeric on both sides.
    pub columns: BTreeMap<String, ColumnDelta>,
}

/// Recommendation on a candidate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Recommendation {
    /// Whether ideas that build on it are worth trying.
    pub should_explore: bool,
    /// The grade of the score.
    pub grade: Grade,
    /// The weighted mean of the metrics' relative improvements; 0 if no metric is on both sides.
    pub score: f64,
    /// The reasons.
    pub reasons: Vec<String>,
}

impl Recommendation {
    /// Whether the primary metric fell beyond its bound.
    pub fn has_primary_regressed(&self) -> bool {
        self.reasons.iter().any(|reason| reason == PRIMARY_REGRESSED_REASON)
    }
}

/// Grade of a score.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Grade {
    /// Much better.
    Strong,
    /// Better.
    Promising,
    /// About the same.
    Mixed,
    /// Worse.
    Weak,
}

impl fmt::Display for Grade {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Strong => "strong",
            Self::Promising => "promising",
            Self::Mixed => "mixed",
            Self::Weak => "weak",
        })
    }
}

/// One column, compared.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ColumnDelta {
    /// The baseline's mean.
    pub baseline_mean: f64,
    /// The candidate's mean.
    pub candidate_mean: f64,
    /// The difference: candidate minus baseline.
    pub delta: f64,
}

/// Compares two sweeps.
pub fn compare(
    baseline: &SweepSummary,
    candidate: &SweepSummary,
    profile: &ScoringProfile,
) -> SweepComparison {
    let shared = baseline.means.iter().filter_map(|(name, &baseline_mean)| {
        let candidate_mean = *candidate.means.get(name)?;
        let delta = candidate_mean - baseline_mean;
        Some((name.clone(), ColumnDelta { baseline_mean, candidate_mean, delta }))
    });
    let columns: BTreeMap<_, _> = shared.collect();
    let MetricSignals { score, positive, negative } = signals(&columns, profile);
    let falls = |guarded: &GuardedMetric| metric_drop(&columns, guarded, profile.eps);
    let primary_ok = match falls(&profile.primary) {
        MetricDrop::None => true,
        MetricDrop::Relative(share) => share <= profile.primary.max_rel_drop,
        // Without a baseline value there is no relative drop.
        MetricDrop::FromZero => false,
    };
    let too_far = |risk: &&GuardedMetric| matches!(falls(risk), MetricDrop::Relative(by) if by > risk.max_rel_drop);
    let risks: Vec<_> =
        profile.risk.iter().filter(too_far).map(|risk| risk.column.as_str()).collect();
    let explore = &profile.explore;
    let enough = explore.min_positive.max(negative.saturating_add(explore.min_margin));
    let should_explore =
        primary_ok && risks.is_empty() && (score >= explore.min_score || positive >= enough);
    let mut reasons = Vec::new();
    if !primary_ok {
        reasons.push(PRIMARY_REGRESSED_REASON.to_owned());
    }
    if !risks.is_empty() {
        reasons.push(format!("risk_regressed: {}", risks.join(", ")));
    }
    let signal = if should_explore { "net_improvement" } else { "insufficient_signal" };
    reasons.push(signal.to_owned());
    let primary = columns.get(&profile.primary.column);
    let primary_delta = primary
        .map(|d| profile.primary.direction.improvement(d.baseline_mean, d.candidate_mean) + 0.0);
    SweepComparison {
        recommendation: Recommendation {
            should_explore,
            grade: grade(score, profile),
            score,
            reasons,
        },
        primary_delta,
        baseline_rows_used: baseline.rows_used,
        candidate_rows_used: candidate.rows_used,
        positive,
        negative,
        columns,
    }
}

struct MetricSignals {
    score: f64,
    positive: u32,
    negative: u32,
}

fn signals(columns: &BTreeMap<String, ColumnDelta>, profile: &ScoringProfile) -> MetricSignals {
    let (mut sum, mut weights, mut positive, mut negative) = (0.0, 0.0, 0, 0);
    for metric in &profile.metrics {
        let Some(delta) = columns.get(&metric.column) else { continue };
        let improvement = metric.direction.improvement(delta.baseline_mean, delta.candidate_mean);
        let base = delta.baseline_mean.abs();
        let relative = improvement / if base > profile.eps { base } else { 1.0 };
        sum += metric.weight * relative.clamp(-profile.clamp, profile.clamp);
        weights += metric.weight;
        positive += u32::from(improvement > 0.0);
        negative += u32::from(improvement < 0.0);
    }
    let score = if weights > 0.0 { sum / weights + 0.0 } else { 0.0 };
    MetricSignals { score, positive, negative }
}

/// The drop of a metric.
enum MetricDrop {
    /// No drop, or unknown.
    None,
    /// A share of the baseline.
    Relative(f64),
    /// A drop from a baseline of 0.
    FromZero,
}

fn metric_drop(
    columns: &BTreeMap<String, ColumnDelta>,
    guarded: &GuardedMetric,
    eps: f64,
) -> MetricDrop {
    let Some(delta) = columns.get(&guarded.column) else { return MetricDrop::None };
    let improvement = guarded.direction.improvement(delta.baseline_mean, delta.candidate_mean);
    let base = delta.baseline_mean.abs();
    if improvement >= 0.0 {
        MetricDrop::None
    } else if base <= eps {
        MetricDrop::FromZero
    } else {
        MetricDrop::Relative(improvement.abs() / base)
    }
}

fn grade(score: f64, profile: &ScoringProfile) -> Grade {
    let grades = &profile.grades;
    if score >= grades.strong {
        Grade::Strong
    } else if score >= grades.promising {
        Grade::Promising
    } else if score >= grades.mixed {
        Grade::Mixed
    } else {
        Grade::Weak
    }
}
