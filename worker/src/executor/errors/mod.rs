//! The error table: from a failure in an environment to the error in the record, for all kinds of
//! work.
//!
//! An environment that disappears during a script is a failure of the infrastructure: the error has
//! the type of the phase, class `infrastructure` and code `environment_lost`, may be retried and
//! never scores. Errors without a type of their own among the seventeen (collection, processes that
//! survive every attempt to kill them) are `internal_error` with a more specific code.

mod result;
mod script;
mod setup;

use rollout_base::secrets::Redactor;
use rollout_base::shortage::Shortage;
use rollout_environment::{Failure, FailureKind as Kind};
use rollout_protocol::error::{
    ErrorClass as Class, ErrorCode as Code, ErrorType as Type, RetryClass as Retry, TrialError,
};
use rollout_protocol::phase::Phase;
use rollout_store::archive::ArchiveError;

use super::files::FilesError;

pub(crate) use self::result::ResultError;
pub(crate) use self::script::{IncompleteWork, ScriptError, ScriptStage, ScriptSubject};
pub(crate) use self::setup::SetupError;

/// Type, code, class and retry class of an error.
type ErrorReason = (Type, Code, Class, Retry);

const INFRASTRUCTURE: Class = Class::Infrastructure;
/// Like [`TrialError::unsupported`], but found in the environment, not in the plan.
const UNSUPPORTED: ErrorReason =
    (Type::TaskInvalid, Code::UNSUPPORTED_BY_ENVIRONMENT, Class::Task, Retry::Permanent);
const BUG: ErrorReason = (Type::InternalError, Code::BUG, INFRASTRUCTURE, Retry::Permanent);

/// An error with secrets removed from its message.
fn trial_error(
    (kind, code, class, retry): ErrorReason,
    message: &str,
    redactor: &Redactor,
) -> TrialError {
    TrialError::new(kind, code, class, retry, redactor.text(message))
}

fn placement_reason(failed: Type, kind: Kind) -> ErrorReason {
    match kind {
        Kind::Unsupported => UNSUPPORTED,
        Kind::Refused | Kind::NotPermitted => {
            (failed, Code::REFUSED, INFRASTRUCTURE, Retry::Permanent)
        }
        // Only the agent can have filled the storage before the tests are placed.
        Kind::StorageExceeded => (failed, Code::STORAGE_EXCEEDED, Class::Agent, Retry::Permanent),
        // Only the agent can have put a file or link where files have to be placed, and removed the
        // programs by which a change is checked.
        Kind::Unusable => (failed, Code::REFUSED, Class::Agent, Retry::Permanent),
        Kind::Gone => environment_lost_reason(failed),
        Kind::Unreachable => (failed, Code::UNREACHABLE, INFRASTRUCTURE, Retry::Transient),
        Kind::DiskFull => (failed, Code::DISK_FULL, INFRASTRUCTURE, Retry::Transient),
        Kind::Exhausted => (failed, Code::HOST_EXHAUSTED, INFRASTRUCTURE, Retry::Transient),
        Kind::Resources | Kind::NotStarted | Kind::TimedOut | Kind::Service | Kind::LeftBehind => {
            (failed, Code::PROVIDER_ERROR, INFRASTRUCTURE, Retry::Transient)
        }
        Kind::Bug => BUG,
    }
}

fn environment_lost_reason(failed: Type) -> ErrorReason {
    (failed, Code::ENVIRONMENT_LOST, INFRASTRUCTURE, Retry::Transient)
}

/// The error code for an exhausted resource of the host.
pub(crate) fn shortage_code(shortage: Option<Shortage>) -> Option<Code> {
    shortage.map(|shortage| match shortage {
        Shortage::Disk => Code::DISK_FULL,
        Shortage::Host => Code::HOST_EXHAUSTED,
    })
}

impl FilesError {
    fn as_reason(&self, failed: Type) -> ErrorReason {
        self.code().map_or(BUG, |(code, retry)| (failed, code, INFRASTRUCTURE, retry))
    }

    /// Code and retry class; `None` for a bug.
    fn code(&self) -> Option<(Code, Retry)> {
        if let Some(code) = shortage_code(Shortage::from_error(self)) {
            return Some((code, Retry::Transient));
        }
        Some(match self {
            Self::Store { source, .. } if source.is_transient() => {
                (Code::STORE_FAILED, Retry::Transient)
            }
            Self::Store { .. } => (Code::STORE_FAILED, Retry::Permanent),
            Self::Unpack { source: ArchiveError::Io { .. }, .. } | Self::Disk { .. } => {
                (Code::DISK_FAILED, Retry::Transient)
            }
            Self::Unpack { .. } => return None,
        })
    }
}

/// `/logs` or captured output that is missing or incomplete.
pub(crate) fn not_collected(why: &str, redactor: &Redactor) -> TrialError {
    let reason = (Type::InternalError, Code::COLLECTION_FAILED, INFRASTRUCTURE, Retry::Permanent);
    trial_error(reason, why, redactor).in_phase(Phase::Collection)
}

/// Like [`not_collected`], with the code for an exhausted resource of the host.
pub(crate) fn output_lost(
    why: &str,
    shortage: Option<Shortage>,
    redactor: &Redactor,
) -> TrialError {
    let error = not_collected(why, redactor);
    let code = shortage_code(shortage).unwrap_or_else(|| error.code.clone());
    TrialError { code, ..error }
}

/// Processes that may still be alive.
pub(crate) fn processes_left(failure: &Failure, phase: Phase, redactor: &Redactor) -> TrialError {
    let reason = (Type::InternalError, Code::PROCESSES_LEFT, INFRASTRUCTURE, Retry::Permanent);
    trial_error(reason, &failure.chain(), redactor).in_phase(phase)
}

/// A panic in this program.
pub(crate) fn panicked(message: &str, phase: Phase, redactor: &Redactor) -> TrialError {
    trial_error(BUG, &format!("internal error in phase {phase}: {message}"), redactor)
        .in_phase(phase)
}

/// An environment that could not be stopped, kept or removed. Never retried: the work itself is
/// over.
pub(crate) fn teardown_failed(failure: &Failure, redactor: &Redactor) -> TrialError {
    let code = match failure.kind {
        Kind::Refused => Code::REFUSED,
        Kind::Unsupported => Code::UNSUPPORTED_BY_ENVIRONMENT,
        Kind::NotPermitted => Code::NOT_PERMITTED,
        Kind::Unreachable => Code::UNREACHABLE,
        Kind::TimedOut => Code::TIMED_OUT,
        Kind::DiskFull => Code::DISK_FULL,
        Kind::Exhausted => Code::HOST_EXHAUSTED,
        Kind::StorageExceeded => Code::STORAGE_EXCEEDED,
        Kind::Gone => Code::ENVIRONMENT_LOST,
        Kind::Resources | Kind::NotStarted | Kind::Unusable | Kind::Service | Kind::LeftBehind => {
            Code::PROVIDER_ERROR
        }
        Kind::Bug => Code::BUG,
    };
    let reason = (Type::EnvironmentTeardownFailed, code, INFRASTRUCTURE, Retry::Permanent);
    trial_error(reason, &failure.chain(), redactor)
}
