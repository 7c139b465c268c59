//! The blob store in a directory.
//!
//! ```text
//! store.json                identity and format, created once
//! blobs/<2 hex>/<62 hex>    blobs by their SHA-256, read-only
//! docs/<path>               documents
//! tmp/<random>/             files that one process is writing; locked while it is alive
//! damaged/<64 hex>          quarantined blobs whose content was found wrong
//! ```
//! Several processes share a store. A file appears under its final name only complete and durable:
//! it is written in `tmp/`, synced, renamed, and then its directory is synced. Files that a dead
//! process left in `tmp/` are removed when the store is opened: a lock that can be taken shows that
//! its process is dead. On a file system that hosts share, this needs locks that hosts share, too.

mod blobs;
mod documents;
mod identity;
mod remove;
mod scratch;
#[cfg(test)]
mod tests;

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::SystemTime;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use rollout_base::shown_path::shown;
use rollout_base::{durable, supervise};
use rollout_protocol::blob::{BlobRef, MediaType};
use rollout_protocol::digest::Digest;
use tokio::io::AsyncRead;

use self::scratch::StoreScratch;
use super::verify::VerifyingReader;
use super::{BlobContent, BlobStore, StoreError, StoredBlob};

/// Contents of a batch that are stored concurrently. File systems sync concurrent writes together:
/// with 16 a batch takes a tenth of the time, and more gain nothing.
const PARALLEL_PUTS: usize = 16;

/// A store in a directory. Clones share one handle.
#[derive(Debug, Clone)]
pub struct FsStore {
    inner: Arc<FsStoreInner>,
}

/// State shared by the blocking parts of the operations.
#[derive(Debug)]
struct FsStoreInner {
    root: PathBuf,
    identity: String,
    scratch: StoreScratch,
    /// Whether each directory of `blobs/` is known to exist durably, by its number.
    durable_fan_outs: [AtomicBool; 256],
}

impl FsStore {
    /// Opens the store at `root`, creating it if it does not exist, and removes unfinished files of
    /// dead processes.
    ///
    /// # Errors
    /// [`StoreError`]; [`StoreError::Unusable`] when a newer version wrote the store.
    pub async fn open(root: impl Into<PathBuf>) -> Result<Self, StoreError> {
        let root = root.into();
        supervise::blocking(move || {
            let scratch = StoreScratch::new(root.join("tmp"));
            let identity = identity::open(&root, &scratch)?;
            scratch.sweep();
            let durable_fan_outs = [const { AtomicBool::new(false) }; 256];
            Ok(Self { inner: Arc::new(FsStoreInner { root, identity, scratch, durable_fan_outs }) })
        })
        .await
    }

    /// The directory of the store.
    pub fn root(&self) -> &Path {
        &self.inner.root
    }

    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&FsStoreInner) -> T + Send + 'static,
    ) -> T {
        let inner = Arc::clone(&self.inner);
        supervise::blocking(move || work(&inner)).await
    }
}

impl FsStore {
    /// Reads a blob and compares it with its digest.
    pub(super) async fn verify(&self, digest: &Digest) -> Result<(), StoreError> {
        let digest = *digest;
        self.run(move |inner| inner.verify(&digest)).await
    }
}

#[async_trait]
impl BlobStore for FsStore {
    fn identity(&self) -> &str {
        &self.inner.identity
    }

    fn directory(&self) -> Option<&Path> {
        Some(&self.inner.root)
    }

    async fn put_bytes(&self, bytes: Bytes, media_type: MediaType) -> Result<BlobRef, StoreError> {
        self.run(move |inner| inner.put(BlobContent::Bytes(bytes, media_type))).await
    }

    async fn put_file(&self, file: &Path, media_type: MediaType) -> Result<BlobRef, StoreError> {
        let file = file.to_owned();
        self.run(move |inner| inner.put(BlobContent::File(file, media_type))).await
    }

    async fn put_many(&self, contents: Vec<BlobContent>) -> Result<Vec<BlobRef>, StoreError> {
        stream::iter(contents)
            .map(|content| self.run(move |inner| inner.put(content)))
            .buffered(PARALLEL_PUTS)
            .try_collect()
            .await
    }

    async fn contains(&self, digest: &Digest) -> Result<bool, StoreError> {
        let digest = *digest;
        self.run(move |inner| inner.size_of(&digest).map(|size| size.is_some())).await
    }

    async fn renew(&self, digest: &Digest) -> Result<bool, StoreError> {
        let digest = *digest;
        self.run(move |inner| inner.renew(&digest).map(|size| size.is_some())).await
    }

    async fn stat_blob(&self, digest: &Digest) -> Result<Option<StoredBlob>, StoreError> {
        let digest = *digest;
        self.run(move |inner| inner.stat(&digest)).await
    }

    async fn list_blobs(&self, first_byte: u8) -> Result<Vec<StoredBlob>, StoreError> {
        self.run(move |inner| inner.list_blobs(first_byte)).await
    }

    async fn list_damaged(&self) -> Result<Vec<Digest>, StoreError> {
        self.run(FsStoreInner::list_damaged).await
    }

    async fn remove_blob(&self, digest: &Digest, limit: SystemTime) -> Result<bool, StoreError> {
        let digest = *digest;
        self.run(move |inner| inner.remove_blob(&digest, limit)).await
    }

    async fn remove_document(&self, path: &str) -> Result<bool, StoreError> {
        let path = path.to_owned();
        self.run(move |inner| inner.remove_document(&path)).await
    }

    async fn remove_store(&self) -> Result<(), StoreError> {
        self.run(FsStoreInner::remove_store).await
    }

    async fn get_bytes(&self, digest: &Digest, max_bytes: u64) -> Result<Bytes, StoreError> {
        let digest = *digest;
        self.run(move |inner| inner.get_bytes(&digest, max_bytes)).await
    }

    async fn get_file(&self, digest: &Digest, to: &Path) -> Result<(), StoreError> {
        let (digest, to) = (*digest, to.to_owned());
        self.run(move |inner| inner.get_file(&digest, &to)).await
    }

    async fn get(&self, digest: &Digest) -> Result<Box<dyn AsyncRead + Send + Unpin>, StoreError> {
        let digest = *digest;
        let (file, inode) = self
            .run(move |inner| {
                let file = inner.open_blob(&digest)?;
                let metadata = file.metadata();
                let path = || inner.blob_path(&digest);
                let metadata = metadata.map_err(|error| StoreError::io("read", &path(), error))?;
                Ok((file, metadata.ino()))
            })
            .await?;
        let (file, inner) = (tokio::fs::File::from_std(file), Arc::clone(&self.inner));
        let on_damage = move || inner.quarantine(&digest, inode);
        Ok(Box::new(VerifyingReader::new(file, digest, &self.inner.identity, on_damage)))
    }

    async fn put_document(&self, path: &str, bytes: Bytes) -> Result<bool, StoreError> {
        let path = path.to_owned();
        self.run(move |inner| inner.put_document(&path, &bytes)).await
    }

    async fn list_documents(&self, prefix: &str) -> Result<Vec<String>, StoreError> {
        let prefix = prefix.to_owned();
        self.run(move |inner| inner.list_documents(&prefix)).await
    }

    async fn get_document(&self, path: &str) -> Result<Option<Bytes>, StoreError> {
        let path = path.to_owned();
        self.run(move |inner| inner.get_document(&path)).await
    }
}

impl FsStoreInner {
    fn check_present(&self) -> Result<(), StoreError> {
        check_present(&self.root)
    }
}

/// Checks that the store itself exists: only then does the absence of a file mean anything.
fn check_present(root: &Path) -> Result<(), StoreError> {
    std::fs::symlink_metadata(root.join(super::identity::IDENTITY_FILE))
        .map(drop)
        .map_err(|source| StoreError::Unavailable { path: shown(root).to_string(), source })
}

/// Makes the entries of a directory durable.
fn sync_directory(path: &Path) -> Result<(), StoreError> {
    durable::sync_directory(path).map_err(|error| StoreError::io("sync", path, error))
}

/// Creates a directory unless it exists.
fn make_directory(path: &Path) -> Result<(), StoreError> {
    match std::fs::create_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists || !path.is_dir() => {
            Err(StoreError::io("create", path, error))
        }
        _ => Ok(()),
    }
}

/// Creates a directory unless it exists; either way its entry is durable afterwards.
fn ensure_directory(path: &Path) -> Result<(), StoreError> {
    make_directory(path)?;
    sync_directory(path.parent().expect("directories of a store are below its root"))
}
