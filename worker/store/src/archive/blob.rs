//! Extraction of archives in a blob store.

use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use rollout_base::open_files;
use rollout_protocol::digest::Digest;
use tokio::io::{AsyncRead, ReadBuf};

use super::{ArchiveError, ArchiveLimits, ArchiveReport, extract};
use crate::{BlobStore, StoreError};

/// Why an archive in a blob store cannot be extracted.
#[derive(Debug, thiserror::Error)]
pub enum ExtractBlobError {
    /// The store failed, at first or in the middle of the archive. What was extracted is a part.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The local disk failed.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
}

/// Extracts a hostile archive from a blob store like [`extract`](super::extract()). A store that
/// fails in the middle is an error, not a truncated archive.
///
/// # Errors
/// [`ExtractBlobError`].
pub async fn extract_blob(
    store: &dyn BlobStore,
    archive: &Digest,
    into: &Path,
    limits: ArchiveLimits,
) -> Result<ArchiveReport, ExtractBlobError> {
    // Every directory on the way down is open, and many results are written at a time.
    let _walk = open_files::walk_permit().await;
    let failure = Arc::new(Mutex::new(None));
    let source = store.get(archive).await?;
    let source = FailureRecorder { source, failure: Arc::clone(&failure) };
    let report = extract(source, into, limits).await;
    let failure = failure.lock().unwrap_or_else(PoisonError::into_inner).take();
    match failure {
        Some(failure) => Err(StoreError::from_read(archive, failure).into()),
        None => Ok(report?),
    }
}

/// A source whose first error is kept for the caller, who sees only its text otherwise.
struct FailureRecorder<S> {
    source: S,
    failure: Arc<Mutex<Option<io::Error>>>,
}

impl<S: AsyncRead + Unpin> AsyncRead for FailureRecorder<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = ready!(Pin::new(&mut self.source).poll_read(cx, buf));
        Poll::Ready(read.map_err(|error| {
            let text = error.to_string();
            let kind = error.kind();
            if kind != io::ErrorKind::Interrupted {
                let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
                failure.get_or_insert(error);
            }
            io::Error::new(kind, text)
        }))
    }
}
