//! Scores of a candidate's results against the parent's and the root's.

use std::fs::File;
use std::io::ErrorKind;
use std::path::Path;

use rollout_base::backoff::error_chain;
use serde_json::{Value, json};

use super::{SearchError, SweepFiles};
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

/// Why results were not scored.
#[derive(Debug, thiserror::Error)]
pub enum ScoreError {
    /// The candidate's file is not a sweep.
    #[error(transparent)]
    Results(SweepError),
    /// A file could not be read, or a baseline is not a sweep: no fault of the candidate.
    #[error(transparent)]
    Search(#[from] SearchError),
}

/// Scores the results of a sweep.
///
/// # Errors
/// [`ScoreError`].
pub fn score(sweep: &SweepFiles<'_>) -> Result<Scores, ScoreError> {
    let config = &sweep.manifest.run_config;
    let candidate = read(sweep, sweep.candidate)?;
    let against = |path: &Path| -> Result<SweepComparison, SearchError> {
        let baseline = read(sweep, path).map_err(|error| match error {
            ScoreError::Results(fault) => {
                SearchError::Damaged { path: path.to_owned(), reason: error_chain(&fault) }
            }
            // The search has its own copy, and nothing else writes it again.
            ScoreError::Search(SearchError::File { source, .. })
                if source.kind() == ErrorKind::NotFound =>
            {
                let reason = "this baseline is missing".to_owned();
                SearchError::Damaged { path: path.to_owned(), reason }
            }
            ScoreError::Search(error) => error,
        })?;
        Ok(compare(&baseline, &candidate, &config.scoring_profile))
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

/// Reads one of the files of a sweep. A fault of the system is not one of the file's author.
fn read(sweep: &SweepFiles<'_>, path: &Path) -> Result<SweepSummary, ScoreError> {
    let config = &sweep.manifest.run_config;
    let file = File::open(path).map_err(SearchError::io("open", path))?;
    summarize(file, &config.scoring_profile, config.sweep_config_limit).map_err(|error| match error
    {
        SweepError::Io(source) => SearchError::io("read", path)(source).into(),
        fault => ScoreError::Results(fault),
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
