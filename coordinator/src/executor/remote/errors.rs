//! Errors of the server as errors of an executor.

use rollout_protocol::id::ItemId;
use serde_json::Value;

use super::transport::{CallError, ServerProblem};
use crate::executor::ExecutorError;

/// The error of a call about a trial.
pub(super) fn of_trial(error: CallError, trial: ItemId) -> ExecutorError {
    match error {
        CallError::Problem(problem) if problem.kind == "unknown-trial" => {
            ExecutorError::UnknownTrial { trial: trial.to_string() }
        }
        other => of_call(other),
    }
}

/// The error of a call.
pub(super) fn of_call(error: CallError) -> ExecutorError {
    let problem = match error {
        CallError::Unreachable { reason, .. } => return ExecutorError::Unreachable { reason },
        CallError::Problem(problem) => problem,
    };
    let ServerProblem { status, kind, reason, details, .. } = problem;
    let state = || state_word(details.first().map(String::as_str).unwrap_or_default());
    match kind.as_str() {
        "not-settled" => ExecutorError::NotSettled { state: state() },
        "not-running" => ExecutorError::NotRunning { state: state() },
        "no-answer" => ExecutorError::NoAnswer,
        "refused" => ExecutorError::Refused { reason },
        "ended" | "not-open" => ExecutorError::Ended,
        _ => {
            let reason = [reason].into_iter().chain(details).collect::<Vec<_>>().join("; ");
            ExecutorError::Server { status, reason }
        }
    }
}

/// The error that ended a stream of events; `None` if the stream can be opened again.
pub(super) fn of_stream(document: &Value, trial: ItemId) -> Option<ExecutorError> {
    let text = |key: &str| document[key].as_str().unwrap_or_default().to_owned();
    match text("kind").as_str() {
        "not-open" | "unavailable" => None,
        "unknown-trial" => Some(ExecutorError::UnknownTrial { trial: trial.to_string() }),
        _ => Some(ExecutorError::Server { status: 500, reason: text("detail") }),
    }
}

fn state_word(word: &str) -> &'static str {
    const WORDS: [&str; 4] = ["queued", "running", "waiting", "settled"];
    WORDS.into_iter().find(|known| *known == word).unwrap_or("in another state")
}
