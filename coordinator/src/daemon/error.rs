//! Errors of requests to the daemon.

use std::time::Duration;

use rollout_base::shared_limit::LimitReached;

use super::failure::RunFailure;
use super::record::RecordError;

/// Why a request to the daemon failed.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// No such run, or one of another user.
    #[error("cannot find the run: there is none with this id, or it is not yours")]
    NotFound,
    /// A run that cannot be opened.
    #[error("cannot open the run: {reason}")]
    Unreadable {
        /// Why.
        reason: String,
    },
    /// The document is invalid.
    #[error("{}", .0.message)]
    Invalid(RunFailure),
    /// The run cannot be read.
    #[error("{}", .0.message)]
    Failed(RunFailure),
    /// No item of the run is meant.
    #[error("cannot find the item: the run has none with this id or name")]
    NoItem,
    /// The item has no such file.
    #[error("cannot find the file: no execution of the item has left it")]
    NoFiles,
    /// The document names a dataset that was not uploaded.
    #[error("cannot find a dataset of the document: upload it, then submit again")]
    NoDataset,
    /// A parameter is wrong.
    #[error("{0}")]
    BadQuery(String),
    /// The key was used for another submission.
    #[error("cannot use the idempotency key: it was used for another submission")]
    KeyConflict,
    /// The state of the run does not allow it.
    #[error("cannot {action} the run: {reason}")]
    Conflict {
        /// The wanted action, an infinitive.
        action: &'static str,
        /// Why it is not possible.
        reason: &'static str,
    },
    /// No session of the run takes calls yet.
    #[error("cannot use the executor: its run waits for its start")]
    NotOpen,
    /// The run has ended.
    #[error("cannot use the executor: its run has ended")]
    Ended,
    /// The last session of the run failed.
    #[error("{}", .0.message)]
    SessionFailed(RunFailure),
    /// There are too many runs.
    #[error("cannot accept the run: {reason}")]
    Busy {
        /// Which limit is reached.
        reason: String,
        /// When to try again.
        retry_after: Duration,
    },
    /// There is no disk for an upload or an export, for this user.
    #[error("cannot store the files on the server's disk")]
    NoDisk(LimitReached),
    /// The daemon is stopping.
    #[error("cannot accept the run: the daemon is stopping")]
    Stopping,
    /// The work of the request broke off.
    #[error("cannot finish the request: its work broke off; the server's log has the cause")]
    Unfinished,
    /// The state directory cannot be used.
    #[error(transparent)]
    Record(#[from] RecordError),
}
