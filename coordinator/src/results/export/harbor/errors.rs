//! Mapping of error types to Harbor's exceptions.

use rollout_protocol::error::ErrorType;
use rollout_protocol::record::{ItemOutcome, Settlement};

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

/// The name of a trial's exception.
pub(super) fn exception(settlement: &Settlement) -> Option<&'static str> {
    let verdict = &settlement.verdict;
    let raised = verdict.error.as_ref().and_then(|error| exception_type(error.kind));
    raised.or((verdict.outcome == ItemOutcome::Cancelled).then_some(CANCELLED))
}
