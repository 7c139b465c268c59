//! Both views of a candidate's results, from the files.

use std::fs::File;
use std::path::Path;

use super::Sweep;
use crate::tree::manifest::View;
use crate::tree::score::{Comparison, Completeness, SweepError, SweepSummary, compare, summarize};

/// A candidate's results against the parent's and the root's.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Scores {
    /// Rows that succeeded and did not.
    pub completeness: Option<Completeness>,
    /// Columns without which the gate cannot tell whether rows are missing or failed.
    pub missing_columns: Vec<String>,
    /// Against the parent's.
    pub parent: Option<View>,
    /// Against the root's.
    pub root: Option<View>,
    /// Both comparisons, for whoever wants every column.
    pub comparisons: Option<(Comparison, Comparison)>,
}

/// Name of the file with both comparisons, below an eval's directory.
pub(super) const FILE: &str = "score.json";

/// Scores the results of a sweep.
///
/// # Errors
/// [`SweepError`] when one of the files is no sweep.
pub fn score(sweep: &Sweep<'_>) -> Result<Scores, SweepError> {
    let config = &sweep.manifest.run_config;
    let read = |path: &Path| -> Result<SweepSummary, SweepError> {
        let file = File::open(path).map_err(csv::Error::from)?;
        summarize(file, &config.scoring_profile, config.sweep_config_limit)
    };
    let candidate = read(sweep.candidate)?;
    let against = |path: &Path| -> Result<Comparison, SweepError> {
        Ok(compare(&read(path)?, &candidate, &config.scoring_profile))
    };
    let (parent, root) = (against(sweep.parent)?, against(sweep.root)?);
    let view = |comparison: &Comparison| View {
        recommendation_summary: Some(comparison.recommendation.clone()),
        primary_delta: comparison.primary_delta,
        baseline_rows_used: comparison.baseline_rows_used,
        candidate_rows_used: comparison.candidate_rows_used,
        summary_json_path: format!("eval/{}/{FILE}", sweep.eval),
    };
    let is_asked = config.sweep_config_limit.is_some() || config.min_ok_rate > 0.0;
    Ok(Scores {
        completeness: candidate.completeness,
        missing_columns: if is_asked { candidate.missing_columns } else { Vec::new() },
        parent: Some(view(&parent)),
        root: Some(view(&root)),
        comparisons: Some((parent, root)),
    })
}
