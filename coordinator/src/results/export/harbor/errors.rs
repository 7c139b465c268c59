//! Our error types as Harbor's exceptions.

use rollout_protocol::error::ErrorType;
use rollout_protocol::record::{ItemOutcome, Settlement};

/// The name of the exception that Harbor raises for what happened, nothing for what it raises none
/// for. Where Harbor has no name of its own, it is the one that its code raises in that place.
pub(in crate::results::export) const fn exception_type(kind: ErrorType) -> Option<&'static str> {
    Some(match kind {
        ErrorType::TaskNotFound => "FileNotFoundError",
        ErrorType::TaskInvalid => "ValueError",
        ErrorType::EnvironmentBuildTimeout => "EnvironmentStartTimeoutError",
        ErrorType::EnvironmentBuildFailed
        | ErrorType::EnvironmentImagePullFailed
        | ErrorType::EnvironmentStartFailed
        | ErrorType::EnvironmentResourceAllocationFailed
        // Harbor does not look at the code: there it could only be a fault of the test script.
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
        // Harbor only logs it.
        ErrorType::EnvironmentTeardownFailed => return None,
    })
}

/// The exception of a trial that was ended by command.
pub(super) const CANCELLED: &str = "CancelledError";

/// The exception of a trial, by name.
pub(super) fn exception(settlement: &Settlement) -> Option<&'static str> {
    let verdict = &settlement.verdict;
    let raised = verdict.error.as_ref().and_then(|error| exception_type(error.kind));
    raised.or((verdict.outcome == ItemOutcome::Cancelled).then_some(CANCELLED))
}
