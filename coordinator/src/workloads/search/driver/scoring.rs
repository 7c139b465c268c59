//! Scores of a candidate's results against the parent's and the root's.

use std::fs::File;
use std::path::Path;

use serde_json::{Value, json};

use super::SweepFiles;
use crate::config::ScoringProfile;
use crate::workloads::search::manifest::ComparisonSummary;
use crate::workloads::search::score::{
    NumberlessRows, SweepComparison, SweepCompleteness, SweepError, SweepSummary, compare,
    summarize,
};

/// A candidate's results compared with the parent's and the root's.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Scores {
    /// Counts of successful and failed rows.
    pub completeness: Option<SweepCompleteness>,
    /// Missing columns that the gate needs to detect missing or failed rows.
    pub missing_columns: Vec<String>,
    /// Type and message of a fault if metrics of the profile are missing.
    pub metrics_fault: Option<(&'static str, String)>,
    /// Why the scores may look better than the results are.
    pub warning: Option<String>,
    /// Comparison with the parent's results.
    pub parent: Option<ComparisonSummary>,
    /// Comparison with the root's results.
    pub root: Option<ComparisonSummary>,
    /// Both comparisons with every column.
    pub comparisons: Option<(SweepComparison, SweepComparison)>,
}

impl Scores {
    /// The content of the file with both comparisons.
    pub(in crate::workloads::search) fn document(&self) -> Value {
        match &self.comparisons {
            Some((parent, root)) => json!({ "parent_relative": parent, "root_relative": root }),
            None => json!({ "parent_relative": self.parent, "root_relative": self.root }),
        }
    }
}

/// Name of the file with both comparisons, in an eval's directory.
pub(in crate::workloads::search) const FILE: &str = "score.json";

/// Scores the results of a sweep.
///
/// # Errors
/// [`SweepError`] if one of the files is not a sweep.
pub fn score(sweep: &SweepFiles<'_>) -> Result<Scores, SweepError> {
    let config = &sweep.manifest.run_config;
    let read = |path: &Path| -> Result<SweepSummary, SweepError> {
        let file = File::open(path).map_err(csv::Error::from)?;
        summarize(file, &config.scoring_profile, config.sweep_config_limit)
    };
    let candidate = read(sweep.candidate)?;
    let against = |path: &Path| -> Result<SweepComparison, SweepError> {
        Ok(compare(&read(path)?, &candidate, &config.scoring_profile))
    };
    let (parent, root) = (against(sweep.parent)?, against(sweep.root)?);
    let view = |comparison: &SweepComparison| ComparisonSummary {
        recommendation_summary: Some(comparison.recommendation.clone()),
        primary_delta: comparison.primary_delta,
        baseline_rows_used: comparison.baseline_rows_used,
        candidate_rows_used: comparison.candidate_rows_used,
        summary_json_path: format!("eval/{}/{FILE}", sweep.eval),
    };
    let metrics_fault = metrics_fault(&candidate, &config.scoring_profile);
    let warning = numberless_warning(&candidate).filter(|_| metrics_fault.is_none());
    let is_asked = config.sweep_config_limit.is_some() || config.min_ok_rate > 0.0;
    Ok(Scores {
        completeness: candidate.completeness,
        missing_columns: if is_asked { candidate.missing_columns } else { Vec::new() },
        metrics_fault,
        warning,
        parent: Some(view(&parent)),
        root: Some(view(&root)),
        comparisons: Some((parent, root)),
    })
}

/// The fault of results without any metric of the profile or without the primary one. If no row
/// succeeded, that is the fault, and the gate reports it.
fn metrics_fault(
    results: &SweepSummary,
    profile: &ScoringProfile,
) -> Option<(&'static str, String)> {
    if results.completeness.is_some_and(|rows| rows.ok_count == 0) {
        return None;
    }
    let absent = results.absent_metrics(profile);
    let primary = &profile.primary.column;
    if absent.len() == profile.columns().len() {
        let message = format!(
            "the results have no number in any metric of the profile `{}` ({}); their columns are {}",
            profile.name,
            list_names(&profile.columns()),
            list_names(&results.columns)
        );
        return Some(("metrics_missing", message));
    }
    let message = || format!("the results have no number in `{primary}`, the primary metric");
    absent.contains(primary).then(|| ("primary_metric_missing", message()))
}

/// The warning of results with successful rows that lack numbers: the other rows decide the score.
fn numberless_warning(results: &SweepSummary) -> Option<String> {
    let NumberlessRows { rows, columns } = &results.numberless;
    let ok = results.completeness.map_or(results.rows_used, |rows| rows.ok_count);
    let names = list_names(columns);
    (*rows > 0).then(|| {
        format!(
            "{rows} of {ok} successful rows have no number in {names}: the others decide the score"
        )
    })
}

/// The first names of a list, as text.
pub(super) fn list_names<T: AsRef<str>>(names: &[T]) -> String {
    const MOST: usize = 12;
    let quoted = names.iter().take(MOST).map(|name| format!("`{}`", name.as_ref()));
    let mut words = quoted.collect::<Vec<_>>().join(", ");
    if names.len() > MOST {
        words.push_str(&format!(" and {} more", names.len() - MOST));
    }
    words
}
