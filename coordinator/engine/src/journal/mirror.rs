//! A second place for the journal of a run, where every batch is durable before it has an effect.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use rollout_protocol::id::RunId;
use rollout_store::StoreError;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use super::{JournalError, RunLayout};

/// A position in a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentOffset {
    /// The run.
    pub run: RunId,
    /// Epoch of the segment.
    pub epoch: u32,
    /// Bytes before the position.
    pub bytes: u64,
}

/// The epochs of a segment and of the one that it follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentEpochs {
    /// Epoch of the segment.
    pub epoch: u32,
    /// Epoch of the former one.
    pub former: Option<u32>,
}

/// A second place for journals. While it gives no answer its calls wait, and so does everything that
/// depends on the batch: nothing is offered, and running work goes on.
#[async_trait]
pub trait JournalMirror: Send + Sync + fmt::Debug {
    /// Creates the segment of an epoch with its first bytes, which no other process can do then.
    /// The writer of the former segment learns of it. Gives up after a while without an answer.
    ///
    /// # Errors
    /// [`JournalError`].
    async fn create_segment(
        &self,
        run: RunId,
        epochs: SegmentEpochs,
        opening: Bytes,
    ) -> Result<(), JournalError>;

    /// Appends bytes to a segment of this process at the end of what it holds.
    ///
    /// # Errors
    /// [`MirrorError`].
    async fn append(&self, at: SegmentOffset, bytes: Bytes) -> Result<(), MirrorError>;

    /// Fetches what a run directory lacks of the journal of its run. The caller owns the directory.
    ///
    /// # Errors
    /// [`JournalError`].
    async fn fetch(&self, layout: &RunLayout) -> Result<(), JournalError>;

    /// Makes the journal of a run directory and its copy equal. The caller owns the run.
    ///
    /// # Errors
    /// [`JournalError`].
    async fn synchronize(&self, layout: &RunLayout) -> Result<(), JournalError>;
}

/// Why a mirror cannot hold a part of a journal.
#[derive(Debug, thiserror::Error)]
pub enum MirrorError {
    /// The store failed for good.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Another process has created the segment.
    #[error("another process has begun session {0} of the run")]
    Exists(u32),
    /// Another process continues the run in a later session.
    #[error("another process has taken the run over in session {0}")]
    Superseded(u32),
    /// The mirror is not as it should be.
    #[error("{0}")]
    Unusable(String),
    /// The store cannot keep two processes apart, and nothing else would.
    #[error("the service of the store ignores that a new object must not exist (`If-None-Match`)")]
    NoConditionalWrites,
    /// A user stopped the session before it had begun.
    #[error("stopped while waiting for the store")]
    Interrupted,
    /// The session ended before the mirror answered.
    #[error("the session ended while the store did not answer")]
    Abandoned,
}

impl MirrorError {
    /// Whether the store gave no answer, as opposed to a negative one.
    pub fn is_unanswered(&self) -> bool {
        matches!(self, Self::Store(error) if error.is_unanswered())
    }
}

/// The mirror of a writer, which runs on a thread of its own.
#[derive(Debug, Clone)]
pub(super) struct BlockingMirror {
    mirror: Arc<dyn JournalMirror>,
    runtime: Handle,
    /// Cancelled when the writer is dropped.
    abandoned: CancellationToken,
}

impl BlockingMirror {
    /// Uses the runtime of the caller.
    pub(super) fn new(mirror: Arc<dyn JournalMirror>) -> Self {
        Self { mirror, runtime: Handle::current(), abandoned: CancellationToken::new() }
    }

    /// Ends waiting calls.
    pub(super) fn abandon(&self) {
        self.abandoned.cancel();
    }

    pub(super) fn create_segment(
        &self,
        run: RunId,
        epochs: SegmentEpochs,
        opening: &[u8],
    ) -> Result<(), JournalError> {
        let opening = Bytes::copy_from_slice(opening);
        self.wait(self.mirror.create_segment(run, epochs, opening))
    }

    pub(super) fn append(&self, at: SegmentOffset, bytes: &[u8]) -> Result<(), JournalError> {
        self.wait(self.mirror.append(at, Bytes::copy_from_slice(bytes)))
    }

    fn wait<E: Into<JournalError>>(
        &self,
        call: impl Future<Output = Result<(), E>>,
    ) -> Result<(), JournalError> {
        self.runtime.block_on(async {
            tokio::select! {
                done = call => done.map_err(E::into),
                () = self.abandoned.cancelled() => Err(MirrorError::Abandoned.into()),
            }
        })
    }
}
