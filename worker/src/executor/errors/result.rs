//! Errors of a verifier that succeeded without leaving a result.

use rollout_base::secrets::Redactor;
use rollout_protocol::error::{
    ErrorClass as Class, ErrorCode as Code, ErrorType as Type, RetryClass as Retry, TrialError,
};
use rollout_protocol::phase::Phase;

use super::{INFRASTRUCTURE, trial_error};

/// Why there is no result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ResultError {
    /// The file is missing.
    Missing,
    /// The file has invalid content.
    Invalid,
    /// The file could not be read.
    Unreadable,
}

impl ResultError {
    /// The error with this message.
    pub(crate) fn into_error(self, message: &str, redactor: &Redactor) -> TrialError {
        let verifier_reason = |kind, code| (kind, code, Class::Verifier, Retry::Permanent);
        let reason = match self {
            Self::Missing => verifier_reason(Type::VerifierRewardMissing, Code::REWARD_MISSING),
            Self::Invalid => verifier_reason(Type::VerifierRewardInvalid, Code::REWARD_INVALID),
            Self::Unreadable => {
                let reason = (
                    Type::VerifierFailed,
                    Code::COLLECTION_FAILED,
                    INFRASTRUCTURE,
                    Retry::Transient,
                );
                return trial_error(reason, message, redactor).in_phase(Phase::Collection);
            }
        };
        trial_error(reason, message, redactor)
    }
}
