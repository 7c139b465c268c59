//! Numbers of an eval against one of its two baselines.

use serde::Serialize;

use super::super::manifest::{ComparisonSummary, SearchEval, SearchManifest};
use super::super::score::Grade;
use super::number;

/// The results of an eval against one baseline.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RelativeResults {
    /// The baseline: a results file below the run's directory.
    pub baseline_csv_path: String,
    /// The score.
    pub score: Option<f64>,
    /// The grade of the score.
    pub grade: Option<Grade>,
    /// Whether ideas that build on it are worth trying.
    pub should_explore: Option<bool>,
    /// Improvement of the primary metric: positive is better.
    pub primary_delta: Option<f64>,
    /// The reasons.
    pub reasons: Vec<String>,
}

impl RelativeResults {
    /// Compared with the results of the node on which the idea was tried.
    pub(super) fn to_parent(manifest: &SearchManifest, eval: &SearchEval) -> Self {
        let parent = manifest.nodes.get(&eval.parent_node_id);
        let baseline = parent.map(|node| node.baseline_results_csv_path.as_str());
        Self::from_comparison(eval.parent_relative.as_ref(), baseline.unwrap_or_default())
    }

    /// Compared with the results of the root.
    pub(super) fn to_root(manifest: &SearchManifest, eval: &SearchEval) -> Self {
        Self::from_comparison(eval.root_relative.as_ref(), &manifest.root.root_baseline_csv_path)
    }

    fn from_comparison(view: Option<&ComparisonSummary>, baseline: &str) -> Self {
        let summary = view.and_then(|view| view.recommendation_summary.as_ref());
        Self {
            baseline_csv_path: baseline.to_owned(),
            score: summary.map(|summary| summary.score),
            grade: summary.map(|summary| summary.grade),
            should_explore: summary.map(|summary| summary.should_explore),
            primary_delta: view.and_then(|view| view.primary_delta),
            reasons: summary.map(|summary| summary.reasons.clone()).unwrap_or_default(),
        }
    }

    /// Grade, whether it is worth exploring, and the difference of the primary metric, for humans.
    pub fn cells(&self) -> [String; 3] {
        let absent = || "-".to_owned();
        [
            self.grade.map_or_else(absent, |grade| grade.to_string()),
            self.should_explore.map_or_else(absent, |explore| explore.to_string()),
            signed(self.primary_delta),
        ]
    }
}

/// A difference with its sign; a dash if there is none.
pub(super) fn signed(value: Option<f64>) -> String {
    match value.filter(|value| value.is_finite()) {
        Some(value) if value > 0.0 => format!("+{}", number(Some(value))),
        value => number(value),
    }
}
