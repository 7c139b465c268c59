//! Checks of the root's results as a baseline: all candidates are ranked against them, and the
//! first ones are compared with them.

use std::path::Path;

use rollout_base::backoff::error_chain;
use rollout_base::regular_file;

use super::scoring::list_names;
use super::{SearchDirectory, SearchError};
use crate::config::{ScoringProfile, TreeFile};
use crate::workloads::search::score::{ConfigGaps, SweepError, SweepSummary, summarize};

/// Checks the baseline of a new search before anything is created. Returns warnings, a line each.
/// An existing search has its own copy of the baseline, which is not checked again. Blocks.
///
/// # Errors
/// [`SearchError::Baseline`] with all faults.
pub fn check_baseline(tree: &TreeFile) -> Result<Vec<String>, SearchError> {
    if SearchDirectory::new(tree.run_dir()).read()?.is_some() {
        return Ok(Vec::new());
    }
    check(tree, &tree.resolve_path(&tree.root_baseline_csv))
}

/// Checks a file with the results of the root.
pub(super) fn check(tree: &TreeFile, path: &Path) -> Result<Vec<String>, SearchError> {
    let refused = |missing| SearchError::Baseline { path: path.to_owned(), missing };
    let file = regular_file::open(path).map_err(SearchError::io("open", path))?;
    let limit = tree.search.sweep_config_limit;
    let summary = summarize(file, &tree.profile, limit);
    let summary = summary.map_err(|error| match error {
        SweepError::Io(source) => SearchError::io("read", path)(source),
        error => refused(vec![error_chain(&error)]),
    })?;
    let mut missing = Vec::new();
    missing.extend(without_primary(&summary, &tree.profile));
    if let Some(limit) = limit {
        missing.extend(incomplete(&summary, limit));
    }
    if !missing.is_empty() {
        return Err(refused(missing));
    }
    Ok(warnings(&summary, tree))
}

fn without_primary(summary: &SweepSummary, profile: &ScoringProfile) -> Option<String> {
    let (primary, name) = (&profile.primary.column, &profile.name);
    if summary.means.contains_key(primary) {
        return None;
    }
    let metric = format!("`{primary}`, the primary metric of the profile `{name}`");
    Some(if summary.columns.contains(primary) {
        format!("no number in the column {metric}")
    } else {
        format!("no column {metric}; the columns are {}", list_names(&summary.columns))
    })
}

/// Configurations that every sweep must run and that the baseline lacks.
fn incomplete(summary: &SweepSummary, limit: u64) -> Vec<String> {
    if !summary.missing_columns.is_empty() {
        let names = list_names(&summary.missing_columns);
        return vec![format!("no column {names}, which `sweep_config_limit` requires")];
    }
    if summary.completeness.is_some_and(|rows| rows.is_complete()) {
        return Vec::new();
    }
    let ConfigGaps { absent, failed, repeated } = &summary.gaps;
    let rows = summary.completeness.unwrap_or_default();
    let lacking = limit.saturating_sub(rows.observed_unique_config_ids);
    let lines = [
        (absent, format!("no row for {lacking} of {limit} configurations: ")),
        (failed, format!("failed rows for {} of {limit} configurations: ", rows.error_count)),
        (repeated, "more than one row for a configuration: ".to_owned()),
    ];
    let lines = lines.into_iter().filter(|(ids, _)| !ids.is_empty());
    lines.map(|(ids, what)| what + &first_ids(ids)).collect()
}

fn first_ids(ids: &[u64]) -> String {
    let ids: Vec<_> = ids.iter().map(u64::to_string).collect();
    ids.join(", ")
}

/// Faults that do not prevent a search.
fn warnings(summary: &SweepSummary, tree: &TreeFile) -> Vec<String> {
    let mut warnings = Vec::new();
    let absent = summary.absent_metrics(&tree.profile);
    if !absent.is_empty() {
        let (names, profile) = (list_names(&absent), &tree.profile.name);
        warnings.push(format!(
            "the baseline has no number in {names}: scores ignore these metrics of the \
             profile `{profile}`"
        ));
    }
    let (rows, least) = (summary.rows_used, tree.search.min_candidate_rows);
    if tree.search.sweep_config_limit.is_none() && rows < least {
        warnings.push(format!("the baseline has {rows} rows, but candidates need {least}"));
    }
    warnings
}
