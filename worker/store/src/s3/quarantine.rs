//! Blobs whose content was found wrong: they are moved aside, so that it can be stored again.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rollout_base::backoff::error_chain;
use rollout_base::supervise::{self, Task};
use rollout_protocol::digest::Digest;

use super::super::StoreError;
use super::error::RequestError;
use super::{S3StoreInner, blob_path, damaged_path};

/// The blobs that this process found damaged and that were not stored again since.
#[derive(Debug, Default)]
pub(super) struct DamagedBlobs {
    digests: Mutex<HashSet<Digest>>,
    /// Held while a blob is moved aside or stored again: a good one is never moved.
    turn: tokio::sync::Mutex<()>,
    /// Tasks that move blobs aside.
    tasks: Mutex<Vec<Task<()>>>,
}

/// The right to store a damaged blob again.
pub(super) struct Repair<'a> {
    damaged: &'a DamagedBlobs,
    _turn: tokio::sync::MutexGuard<'a, ()>,
}

impl DamagedBlobs {
    /// Whether the blob is known to be damaged.
    pub(super) fn contains(&self, digest: &Digest) -> bool {
        lock(&self.digests).contains(digest)
    }

    /// Waits until nothing is being moved aside.
    pub(super) async fn begin_repair(&self) -> Repair<'_> {
        Repair { damaged: self, _turn: self.turn.lock().await }
    }
}

impl Repair<'_> {
    /// The blob is stored again.
    pub(super) fn finish(self, digest: &Digest) {
        lock(&self.damaged.digests).remove(digest);
    }
}

impl S3StoreInner {
    /// Moves a damaged blob aside in a task, for readers that cannot wait.
    pub(super) fn quarantine_later(self: &Arc<Self>, digest: Digest) {
        lock(&self.damaged.digests).insert(digest);
        let inner = Arc::clone(self);
        let task = supervise::spawn("quarantine", async move { inner.quarantine(&digest).await });
        let mut tasks = lock(&self.damaged.tasks);
        tasks.retain(|task| !task.is_finished());
        tasks.push(task);
    }

    /// Waits until a blob that is known to be damaged was moved aside, or could not be.
    pub(super) async fn wait_for_quarantine(&self, digest: &Digest) {
        if self.damaged.contains(digest) {
            self.finish_quarantine(digest).await;
        }
    }

    /// Moves a damaged blob aside.
    pub(super) async fn quarantine(&self, digest: &Digest) {
        lock(&self.damaged.digests).insert(*digest);
        self.finish_quarantine(digest).await;
    }

    /// Moves a blob aside unless it was stored again meanwhile.
    async fn finish_quarantine(&self, digest: &Digest) {
        let _turn = self.damaged.turn.lock().await;
        if !self.damaged.contains(digest) {
            return;
        }
        tracing::error!(%digest, store = %self.url, "damaged blob");
        if let Err(error) = self.move_aside(digest).await {
            tracing::warn!(%digest, "cannot move the damaged blob aside: {}", error_chain(&error));
        }
    }

    async fn move_aside(&self, digest: &Digest) -> Result<(), StoreError> {
        let (path, aside) = (blob_path(digest), damaged_path(digest));
        let (bucket, key) = (&self.location.bucket, self.location.key(&path));
        let Some(before) = self.head(&path).await? else { return Ok(()) };
        let copied = self
            .client
            .copy_object()
            .bucket(bucket)
            .copy_source(format!("{bucket}/{key}"))
            .key(self.location.key(&aside))
            .send()
            .await
            .map_err(RequestError::from);
        match copied {
            Err(error) if error.answer().is_some_and(|answer| answer.is_no_object()) => {
                return Ok(());
            }
            copied => drop(copied.map_err(|error| self.failed(error, "write to"))?),
        }
        // Another process may have stored the content again, before the copy or after it.
        if self.hash_object(&aside).await? == Some(*digest) {
            return self.delete(&aside).await;
        }
        match self.head(&path).await? {
            Some(found) if found == before => self.delete(&path).await,
            _ => Ok(()),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
