//! Reading of asynchronous sources on a blocking thread.

use std::future::Future as _;
use std::io::{self, BufReader, Read};
use std::pin::Pin;
use std::task::{Context, Poll};

use rollout_base::supervise;
use tokio::io::{AsyncRead, ReadBuf};
use tokio_util::io::SyncIoBridge;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// Bytes read from a source at once: the only part of it held in memory.
const BUFFER_BYTES: usize = 128 * 1024;

/// Runs `work` on a blocking thread with a reader of `source`. The source is closed when `work`
/// returns; when this future is dropped, the next read fails, so that `work` returns.
pub async fn with_reader<S, T>(
    source: S,
    work: impl FnOnce(&mut dyn Read) -> T + Send + 'static,
) -> T
where
    S: AsyncRead + Send + Unpin + 'static,
    T: Send + 'static,
{
    let abandoned = CancellationToken::new();
    let cancelled = Box::pin(abandoned.clone().cancelled_owned());
    let _abandon_when_dropped = abandoned.drop_guard();
    supervise::blocking(move || {
        let source = SyncIoBridge::new(CancellableReader { source, cancelled });
        work(&mut BufReader::with_capacity(BUFFER_BYTES, source))
    })
    .await
}

/// A source whose reads fail once the result is no longer needed.
struct CancellableReader<S> {
    source: S,
    cancelled: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl<S: AsyncRead + Unpin> AsyncRead for CancellableReader<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.cancelled.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(io::Error::other("cancelled: the result is no longer needed")));
        }
        Pin::new(&mut self.source).poll_read(cx, buf)
    }
}
