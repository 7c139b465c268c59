//! Errors of executors.

use rollout_protocol::error::RetryClass;
use rollout_protocol::spec::trial::TrialName;
use rollout_queue::traits::QueueError;
use rollout_store::StoreError;

use crate::results::files::TrialFilesError;
use crate::results::view::CapturedError;

/// Why a call to an executor failed.
#[derive(Debug, thiserror::Error)]
pub enum ExecutorError {
    /// The trial is not one that the executor can run, or it was not started.
    #[error("cannot find the trial {trial}: it is not in the plan, or it was not started")]
    UnknownTrial {
        /// Name of the trial, or its item.
        trial: String,
    },
    /// The executor runs this trial under other documents.
    #[error("cannot start the trial {trial}: the executor runs it under another spec")]
    OtherSpec {
        /// The trial.
        trial: TrialName,
    },
    /// The trial has no result yet.
    #[error("cannot read the results of a trial that is {state}")]
    NotSettled {
        /// Its state.
        state: &'static str,
    },
    /// No worker runs the trial, as far as is known.
    #[error("cannot control a trial that is {state}")]
    NotRunning {
        /// Its state.
        state: &'static str,
    },
    /// No worker or coordinator answered.
    #[error("cannot reach the worker of the trial: it did not answer, or it has ended")]
    NoAnswer,
    /// The request was refused.
    #[error("cannot cancel the trial: {reason}")]
    Refused {
        /// The reason.
        reason: String,
    },
    /// The executor has ended. Open it again and repeat the call.
    #[error("the executor has ended: open it again")]
    Ended,
    /// The executor does not implement the operation.
    #[error("this executor cannot {operation}")]
    Unsupported {
        /// The operation, as an infinitive.
        operation: &'static str,
    },
    /// The queue failed.
    #[error(transparent)]
    Queue(#[from] QueueError),
    /// The blob store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The record of the trial cannot be read.
    #[error(transparent)]
    Record(#[from] CapturedError),
    /// The server of a remote executor did not answer, or not in time.
    #[error("cannot reach the server: {reason}")]
    Unreachable {
        /// The cause.
        reason: String,
    },
    /// The server of a remote executor refused the call.
    #[error("the server refused the call with status {status}: {reason}")]
    Server {
        /// Status of its answer.
        status: u16,
        /// Its reason.
        reason: String,
    },
    /// The server of a remote executor cannot be used as named, or its answers cannot be read.
    #[error("cannot use the server: {reason}")]
    Remote {
        /// The cause.
        reason: String,
    },
    /// A blob cannot be read to its end.
    #[error("cannot read a log of events to its end")]
    Read(#[source] std::io::Error),
}

impl ExecutorError {
    /// Whether the same call can succeed later.
    pub fn retry_class(&self) -> RetryClass {
        let can_help = match self {
            Self::NotSettled { .. }
            | Self::NotRunning { .. }
            | Self::NoAnswer
            | Self::Ended
            | Self::Unreachable { .. }
            | Self::Read(_) => true,
            Self::UnknownTrial { .. }
            | Self::OtherSpec { .. }
            | Self::Refused { .. }
            | Self::Remote { .. }
            | Self::Unsupported { .. } => false,
            Self::Server { status, .. } => *status == 429 || *status >= 500,
            Self::Queue(error) => !matches!(error, QueueError::Denied { .. }),
            Self::Store(error) => error.is_transient(),
            Self::Record(error) => is_transient(error),
        };
        if can_help { RetryClass::Transient } else { RetryClass::Permanent }
    }
}

fn is_transient(error: &CapturedError) -> bool {
    match error {
        CapturedError::Record(TrialFilesError::Store { source, .. })
        | CapturedError::Store { source, .. } => source.is_transient(),
        CapturedError::Read { .. } => true,
        CapturedError::Record(_) | CapturedError::Archive { .. } | CapturedError::NoFile(_) => {
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executor_error_class_follows_its_cause() {
        let unreachable = QueueError::Unreachable { reason: "cut".to_owned() };
        let denied = QueueError::Denied { reason: "no".to_owned() };
        for (error, class) in [
            (ExecutorError::NotSettled { state: "queued" }, RetryClass::Transient),
            (ExecutorError::Ended, RetryClass::Transient),
            (ExecutorError::UnknownTrial { trial: "t".to_owned() }, RetryClass::Permanent),
            (ExecutorError::Unsupported { operation: "cancel trials" }, RetryClass::Permanent),
            (ExecutorError::Server { status: 503, reason: String::new() }, RetryClass::Transient),
            (ExecutorError::Server { status: 403, reason: String::new() }, RetryClass::Permanent),
            (unreachable.into(), RetryClass::Transient),
            (denied.into(), RetryClass::Permanent),
        ] {
            assert_eq!(error.retry_class(), class, "{error}");
        }
    }
}
