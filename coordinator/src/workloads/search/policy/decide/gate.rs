//! The gate: decides from the comparison with the parent whether a candidate may be promoted.

use crate::workloads::search::manifest::{
    ArtifactPolicy, EvalStatus, Reason, SearchEval, SearchManifest, SearchRunConfig,
};
use crate::workloads::search::score::Grade;

/// Directory of a run's artifacts, below the run's directory.
pub(in crate::workloads::search) const ARTIFACTS_PREFIX: &str = "artifacts/";

/// Checks whether files of a run exist.
pub trait ArtifactLookup {
    /// Whether there is a file at a path below the run's directory.
    fn exists(&self, path: &str) -> bool;
}

/// The first reason against promoting an eval; `None` if it may be promoted.
pub fn gate_failure(
    manifest: &SearchManifest,
    eval: &SearchEval,
    artifacts: &dyn ArtifactLookup,
) -> Option<Reason> {
    let config = &manifest.run_config;
    let baseline = &manifest.node(eval.parent_node_id).baseline_results_csv_path;
    outcome(eval)
        .or_else(|| results(config, eval, artifacts))
        .or_else(|| parent(config, baseline, artifacts))
        .or_else(|| rows(config, eval))
        .or_else(|| merit(config, eval))
}

fn outcome(eval: &SearchEval) -> Option<Reason> {
    match eval.status {
        EvalStatus::Completed => None,
        EvalStatus::NoChanges => Some(Reason::NoChanges),
        EvalStatus::Queued | EvalStatus::Running | EvalStatus::Failed => Some(Reason::NotCompleted),
    }
}

fn results(
    config: &SearchRunConfig,
    eval: &SearchEval,
    artifacts: &dyn ArtifactLookup,
) -> Option<Reason> {
    if eval.candidate_commit.is_none() {
        return Some(Reason::MissingCommit);
    }
    let kept = eval.candidate_results_provenance.as_ref();
    let Some(path) = eval.candidate_results_csv_path.as_ref().filter(|_| kept.is_some()) else {
        return Some(Reason::MissingResults);
    };
    if !artifacts.exists(path) {
        return Some(Reason::ResultsGone);
    }
    (!is_kept(config, path)).then_some(Reason::ResultsElsewhere)
}

fn parent(
    config: &SearchRunConfig,
    baseline: &str,
    artifacts: &dyn ArtifactLookup,
) -> Option<Reason> {
    if baseline.is_empty() {
        return Some(Reason::MissingBaseline);
    }
    if !artifacts.exists(baseline) {
        return Some(Reason::BaselineGone);
    }
    (!is_kept(config, baseline)).then_some(Reason::BaselineElsewhere)
}

fn is_kept(config: &SearchRunConfig, path: &str) -> bool {
    match config.artifact_policy {
        ArtifactPolicy::CopyToRunRoot => path.starts_with(ARTIFACTS_PREFIX),
        ArtifactPolicy::ExternalPaths => true,
    }
}

/// Checks the rows: missing or failed ones would make the rest look better than it is.
fn rows(config: &SearchRunConfig, eval: &SearchEval) -> Option<Reason> {
    let complete = eval.strict_completeness;
    if config.sweep_config_limit.is_some() && !complete.is_some_and(|rows| rows.is_complete()) {
        return Some(Reason::IncompleteRows);
    }
    let Some(used) = eval.parent_relative.as_ref().map(|view| view.candidate_rows_used) else {
        return Some(Reason::MissingRowsUsed);
    };
    if let Some(limit) = config.sweep_config_limit {
        return (used != limit).then_some(Reason::RowsUsedMismatch);
    }
    if used < config.min_candidate_rows {
        return Some(Reason::TooFewRows);
    }
    let Some(complete) = complete else {
        return (config.min_ok_rate > 0.0).then_some(Reason::MissingStatus);
    };
    let rate = complete.ok_rate();
    (rate.unwrap_or(0.0) < config.min_ok_rate).then_some(Reason::OkRateTooLow)
}

fn merit(config: &SearchRunConfig, eval: &SearchEval) -> Option<Reason> {
    let view = eval.parent_relative.as_ref()?;
    if view.primary_delta.is_none_or(|delta| !delta.is_finite()) {
        return Some(Reason::MissingPrimaryDelta);
    }
    if primary_regressed(config, eval) {
        return Some(Reason::PrimaryRegressed);
    }
    let worth = view
        .recommendation_summary
        .as_ref()
        .is_some_and(|summary| summary.should_explore || summary.grade == Grade::Mixed);
    (!worth).then_some(Reason::NotWorthExploring)
}

/// The reason for promoting an eval that passed the gate.
pub(super) fn promotion_reason(eval: &SearchEval) -> Reason {
    let view = eval.parent_relative.as_ref();
    let summary = view.and_then(|view| view.recommendation_summary.as_ref());
    match summary.is_some_and(|summary| summary.should_explore) {
        true => Reason::WorthExploring,
        false => Reason::MixedNotRegressed,
    }
}

/// Whether the primary metric is worse than the parent's, by its difference or by a reason of the
/// score.
pub(super) fn primary_regressed(config: &SearchRunConfig, eval: &SearchEval) -> bool {
    eval.parent_relative.as_ref().is_some_and(|view| {
        let says = view.recommendation_summary.as_ref().is_some_and(|s| s.has_primary_regressed());
        says || view.primary_delta.is_some_and(|delta| delta < -config.primary_tolerance)
    })
}
