//! Errors of requests about farms.

use std::time::Duration;

use rollout_protocol::farm::{AdmissionRefusal, InvalidFarmSettings};
use rollout_store::StoreError;

use crate::daemon::DaemonError;
use crate::daemon::failure::RunFailure;
use crate::daemon::record::RecordError;
use crate::launch::farm::SubmitError;
use crate::workloads::farm::UnknownTask;

/// Why a request about a farm failed.
#[derive(Debug, thiserror::Error)]
pub enum FarmError {
    /// No such farm, or one of another user.
    #[error("cannot find the farm: there is none with this id, or it is not yours")]
    NotFound,
    /// The farm holds no such group, and remembers none.
    #[error("cannot find the group: the farm does not know it")]
    NoGroup,
    /// No completion without an acknowledgement has this cursor.
    #[error("cannot find the completion: there is none, or it was acknowledged")]
    NoCompletion,
    /// The sample left no record.
    #[error("cannot find a record of the sample: no execution decided it")]
    NoSampleRecord,
    /// The job has no gateway.
    #[error("cannot find calls of the sample: its job has no gateway")]
    NoGateway,
    /// The farm has no such consumer.
    #[error("cannot use the consumer `{0}`: the farm has none of this name")]
    NoConsumer(String),
    /// The settings are invalid.
    #[error(transparent)]
    Settings(#[from] InvalidFarmSettings),
    /// The farm refuses a group.
    #[error(transparent)]
    Refused(AdmissionRefusal),
    /// The documents of a group cannot be made.
    #[error("cannot admit the group: {0}")]
    Task(UnknownTask),
    /// The documents of a group cannot be stored.
    #[error("cannot store the documents of the group")]
    Documents(#[source] StoreError),
    /// The farm was closed, and has ended.
    #[error("cannot reach the farm: it was closed and has ended")]
    Ended,
    /// Its last session failed.
    #[error("cannot reach the farm: {}", .0.message)]
    Failed(RunFailure),
    /// It is being opened, or the daemon is stopping: the same request can be sent again.
    #[error("cannot reach the farm: it is being opened; send the request again")]
    NotOpen {
        /// When to try again.
        retry_after: Duration,
    },
    /// Its session failed with the disk, and begins again when that takes writes: the same request can be
    /// sent again.
    #[error(
        "cannot reach the farm: it waits for the disk of the server, which takes no writes; send the \
         request again"
    )]
    WaitsForDisk {
        /// When to try again.
        retry_after: Duration,
    },
    /// There are too many farms.
    #[error(
        "cannot open the farm: the server has as many as it can; {own} of at most {max} that are open \
         are yours; close one, or try again later"
    )]
    TooMany {
        /// Open farms of the user.
        own: u64,
        /// How many there may be.
        max: u64,
        /// When to try again.
        retry_after: Duration,
    },
    /// The farms of all users hold too much, or those of this user.
    #[error(
        "cannot take the group: the farms of the server hold as many bytes of groups as they can; {own} of \
         at most {max} are yours; acknowledge completions, or send it again later"
    )]
    Full {
        /// Bytes that the farms of the user hold.
        own: u64,
        /// How many all farms may hold.
        max: u64,
    },
    /// The error of a request that is not about farms alone.
    #[error(transparent)]
    Daemon(#[from] DaemonError),
}

impl From<RecordError> for FarmError {
    fn from(error: RecordError) -> Self {
        Self::Daemon(error.into())
    }
}

impl FarmError {
    /// The error of a submission or a cancellation; `None` if the session of the farm has ended.
    pub(super) fn of_submission(error: SubmitError) -> Option<Self> {
        match error {
            SubmitError::Refused(refusal) => Some(Self::Refused(refusal)),
            SubmitError::Task(UnknownTask::Store(error)) => Some(Self::Documents(error)),
            SubmitError::Task(task) => Some(Self::Task(task)),
            SubmitError::Ended(_) => None,
        }
    }
}
