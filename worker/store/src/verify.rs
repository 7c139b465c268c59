//! A reader that verifies digests.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use rollout_protocol::digest::{Digest, DigestHasher};
use tokio::io::{AsyncRead, ReadBuf};

use super::StoreError;

/// Passes bytes on and fails at the end if they do not match the digest.
pub struct VerifyingReader<R> {
    inner: R,
    expected: Digest,
    store: String,
    /// `None` once the end was reached.
    hasher: Option<DigestHasher>,
    /// Called once for a damaged blob.
    on_damage: Box<dyn FnMut() + Send>,
}

impl<R> VerifyingReader<R> {
    /// A reader of a blob with this digest in the store with this name. `on_damage` is called once, if
    /// the content is another one.
    pub fn new(
        inner: R,
        expected: Digest,
        store: &str,
        on_damage: impl FnMut() + Send + 'static,
    ) -> Self {
        let (store, hasher) = (store.to_owned(), Some(DigestHasher::default()));
        Self { inner, expected, store, hasher, on_damage: Box::new(on_damage) }
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for VerifyingReader<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if buf.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.inner).poll_read(cx, buf))?;
        let new = &buf.filled()[before..];
        if !new.is_empty() {
            if let Some(hasher) = &mut self.hasher {
                hasher.update(new);
            }
            return Poll::Ready(Ok(()));
        }
        let Some(hasher) = self.hasher.take() else { return Poll::Ready(Ok(())) };
        let checked = check(&self.expected, hasher.finish(), &self.store);
        if checked.is_err() {
            (self.on_damage)();
        }
        Poll::Ready(checked.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error)))
    }
}

/// Compares a digest with the one that names the blob.
pub(super) fn check(expected: &Digest, found: Digest, store: &str) -> Result<(), StoreError> {
    if *expected == found {
        return Ok(());
    }
    Err(StoreError::Corrupt { digest: *expected, found, store: store.to_owned() })
}
