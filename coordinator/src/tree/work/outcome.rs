//! What a settled try means for its eval.

use rollout_protocol::error::{ErrorClass, ErrorType, TrialError};
use rollout_protocol::record::{EvalEnd, EvalRecord};

use crate::core::Settled;
use crate::tree::manifest::{EvalError, EvalStatus};
use crate::tree::run::{EvalOrder, EvalResult};

/// Whether another try of the user's own may make it better: its commands failed, or were ended by
/// their time limit. What the infrastructure did was tried again before.
pub(super) fn is_worth_another(settled: &Settled, record: Option<&EvalRecord>) -> bool {
    let failed = record.is_some_and(|record| record.end == EvalEnd::Failed);
    let ours = |error: &TrialError| error.class == ErrorClass::Infrastructure;
    failed && settled.verdict.error.as_ref().is_some_and(|error| !ours(error))
}

/// The result of an eval, without what its tries cost together. `results` is the path of its results
/// below its directory.
pub(super) fn result(
    order: &EvalOrder,
    attempt: u32,
    settled: &Settled,
    record: Option<&EvalRecord>,
    results: Option<String>,
) -> EvalResult {
    let status = match record.map(|record| record.end) {
        Some(EvalEnd::Completed) => EvalStatus::Completed,
        Some(EvalEnd::NoChanges) => EvalStatus::NoChanges,
        Some(EvalEnd::Failed | EvalEnd::Stopped) | None => EvalStatus::Failed,
    };
    let times = record.map(|record| &record.timestamps);
    let failed = status == EvalStatus::Failed;
    EvalResult {
        eval_id: order.eval.eval_id,
        parent_node_id: order.eval.parent_node_id,
        idea_normalized_sha256: order.eval.idea_normalized_sha256.clone(),
        round: order.round,
        status,
        attempt,
        worker: settled.by.as_ref().map(|by| by.worker.to_string()),
        started_at: times.map(|times| times.started_at),
        finished_at: times.map(|times| times.ended_at),
        candidate_commit: record
            .and_then(|record| record.candidate.as_ref())
            .map(|candidate| candidate.commit.clone()),
        results_csv: results,
        cost: None,
        error: failed.then(|| error(settled.verdict.error.as_ref(), record)),
    }
}

/// Makes a result one of an eval whose candidate is refused.
pub(super) fn refused(result: &mut EvalResult, reason: String) {
    result.status = EvalStatus::Failed;
    result.candidate_commit = None;
    result.results_csv = None;
    let (error_type, timed_out) = ("candidate_refused".to_owned(), false);
    result.error = Some(EvalError { error_type, message: reason, timed_out });
}

fn error(error: Option<&TrialError>, record: Option<&EvalRecord>) -> EvalError {
    let message = error.map_or("it ended without results", |error| &error.message).to_owned();
    // The command that failed is the last one that was run.
    let last = record.and_then(|record| record.commands.last());
    let (error_type, timed_out) = match last {
        Some(last) if last.timed_out => (format!("{}_timeout", last.stage.as_str()), true),
        Some(last) if last.exit_code.is_some_and(|code| code != 0) => {
            (format!("{}_failed", last.stage.as_str()), false)
        }
        _ => match error.map(|error| error.kind) {
            // The sweep ended well.
            Some(ErrorType::VerifierRewardMissing) => ("results_missing".to_owned(), false),
            Some(kind) => (kind.to_string(), false),
            None => ("unknown".to_owned(), false),
        },
    };
    EvalError { error_type, message, timed_out }
}
