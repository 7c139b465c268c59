//! Mapping of error types to Harbor's exceptions.

use std::collections::BTreeSet;

use rollout_protocol::error::{ErrorCode, ErrorType, TrialError};
use rollout_protocol::record::{ItemOutcome, Settlement};

use crate::results::export::source::SettledTrial;

/// The name of the exception that Harbor raises for an error type; `None` if it raises none. Where
/// Harbor has no exception of its own, this is the one that its code raises at that point.
pub(in crate::results::export) const fn exception_type(kind: ErrorType) -> Option<&'static str> {
    Some(match kind {
        ErrorType::TaskNotFound => "FileNotFoundError",
        ErrorType::TaskInvalid => "ValueError",
        ErrorType::EnvironmentBuildTimeout => "EnvironmentStartTimeoutError",
        ErrorType::EnvironmentBuildFailed
        | ErrorType::EnvironmentImagePullFailed
        | ErrorType::EnvironmentStartFailed
        | ErrorType::EnvironmentResourceAllocationFailed
        // Harbor ignores the exit code of the test script.
        | ErrorType::VerifierFailed
        | ErrorType::InternalError => "RuntimeError",
        ErrorType::AgentInstallTimeout => "AgentSetupTimeoutError",
        ErrorType::AgentInstallFailed | ErrorType::AgentExecutionFailed => {
            "NonZeroAgentExitCodeError"
        }
        ErrorType::AgentExecutionTimeout => "AgentTimeoutError",
        ErrorType::VerifierTimeout => "VerifierTimeoutError",
        ErrorType::VerifierRewardMissing => "RewardFileNotFoundError",
        ErrorType::VerifierRewardInvalid => "VerifierOutputParseError",
        // Harbor only logs teardown errors.
        ErrorType::EnvironmentTeardownFailed => return None,
    })
}

/// The exception of a cancelled trial.
pub(super) const CANCELLED: &str = "CancelledError";

/// Whether a trial with this exception has a valid reward in Harbor 0.26, if it has one at all.
/// Exceptions that Harbor's table does not have, such as `RuntimeError`, leave a reward valid.
pub(super) fn has_valid_reward(exception: &str) -> bool {
    !matches!(
        exception,
        "EnvironmentStartTimeoutError"
            | "AgentSetupTimeoutError"
            | "VerifierTimeoutError"
            | "RewardFileNotFoundError"
            | "VerifierOutputParseError"
            | CANCELLED
    )
}

/// The names of all exceptions of a trial, of which each counts once: its own and those of its steps.
pub(super) fn exceptions(trial: &SettledTrial) -> BTreeSet<&'static str> {
    let steps = trial.record.iter().flat_map(|record| &record.steps);
    let of_steps = steps.filter_map(|step| exception_type(step.error.as_ref()?.kind));
    exception(&trial.settlement).into_iter().chain(of_steps).collect()
}

/// The name of a trial's exception.
pub(super) fn exception(settlement: &Settlement) -> Option<&'static str> {
    let verdict = &settlement.verdict;
    // Harbor only logs failures of collect hooks.
    let is_logged = |error: &TrialError| {
        verdict.outcome == ItemOutcome::Completed && error.code == ErrorCode::COLLECTION_FAILED
    };
    let raised = verdict.error.as_ref().filter(|error| !is_logged(error));
    let raised = raised.and_then(|error| exception_type(error.kind));
    raised.or((verdict.outcome == ItemOutcome::Cancelled).then_some(CANCELLED))
}

#[cfg(test)]
mod tests {
    use rollout_protocol::error::{ErrorClass, RetryClass};
    use rollout_protocol::record::Verdict;
    use rollout_protocol::spec::trial::TrialName;

    use super::*;
    use crate::results::testing;

    #[test]
    fn failed_collect_hook_of_completed_trial_raises_no_exception() {
        let failed = TrialError::new(
            ErrorType::VerifierFailed,
            ErrorCode::COLLECTION_FAILED,
            ErrorClass::Task,
            RetryClass::Permanent,
            "collect hook `false` failed",
        );
        let beside = Verdict { error: Some(failed.clone()), ..Verdict::completed(1.0) };
        for (verdict, expected) in [(beside, None), (Verdict::failed(failed), Some("RuntimeError"))]
        {
            let name = TrialName {
                agent: "oracle".to_owned(),
                dataset: "data".to_owned(),
                task: "one".to_owned(),
                attempt: 1,
            };
            assert_eq!(exception(&testing::settlement(name, 1, verdict)), expected);
        }
    }
}
