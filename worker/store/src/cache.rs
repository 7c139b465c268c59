//! A cache in a local directory in front of a store in a service.
//!
//! The directory has the layout of a store, so several processes can share it, and everything read
//! from it is verified. It only speeds things up: an error of the cache is a miss.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::SystemTime;

use async_trait::async_trait;
use bytes::Bytes;
use rollout_base::backoff::error_chain;
use rollout_base::supervise;
use rollout_protocol::blob::{BlobRef, MediaType};
use rollout_protocol::digest::Digest;
use tokio::io::AsyncRead;

use super::{BlobContent, BlobStore, FsStore, StoreError, StoredBlob};

/// A blob that is larger than this share of the cache is not kept.
const LARGEST_SHARE: u64 = 2;

/// A store whose files are kept in a local directory once they were read. Clones share one handle.
///
/// Files that are read with [`BlobStore::get_file`] are kept, up to a total size; those that were
/// not read for the longest time are removed first. Documents and small blobs are not kept: they are
/// read once.
#[derive(Debug, Clone)]
pub struct CachedStore {
    shared: Arc<CacheShared>,
}

#[derive(Debug)]
struct CacheShared {
    inner: Arc<dyn BlobStore>,
    local: FsStore,
    max_bytes: u64,
    /// One lock for each blob that is being fetched, so that it is fetched once.
    fetches: Mutex<HashMap<Digest, Weak<tokio::sync::Mutex<()>>>>,
}

impl CachedStore {
    /// Puts a cache of at most `max_bytes` in `directory` in front of `inner`. Other processes may
    /// use the directory for the same store.
    ///
    /// # Errors
    /// [`StoreError`] of the directory.
    pub async fn open(
        inner: Arc<dyn BlobStore>,
        directory: &Path,
        max_bytes: u64,
    ) -> Result<Self, StoreError> {
        let local = FsStore::open(directory.join(inner.identity())).await?;
        let fetches = Mutex::default();
        let cached = Self { shared: Arc::new(CacheShared { inner, local, max_bytes, fetches }) };
        cached.evict().await;
        Ok(cached)
    }

    /// Copies the blob from the cache; returns whether it was there and whole.
    async fn copy_from_cache(&self, digest: &Digest, to: &Path) -> bool {
        match self.shared.local.get_file(digest, to).await {
            Ok(()) => {
                let path = self.cached_path(digest);
                supervise::blocking(move || mark_used(&path)).await;
                true
            }
            Err(StoreError::Missing { .. }) => false,
            Err(error) => {
                tracing::debug!("cannot read from the cache: {}", error_chain(&error));
                false
            }
        }
    }

    /// Streams the blob from the cache if it is there and whole. It is checked before: a reader that
    /// fails at the end of a damaged copy has passed its bytes on.
    async fn read_from_cache(&self, digest: &Digest) -> Option<Box<dyn AsyncRead + Send + Unpin>> {
        let whole = match self.shared.local.verify(digest).await {
            Ok(()) => self.shared.local.get(digest).await,
            Err(error) => Err(error),
        };
        match whole {
            Ok(reader) => {
                let path = self.cached_path(digest);
                supervise::blocking(move || mark_used(&path)).await;
                Some(reader)
            }
            Err(StoreError::Missing { .. }) => None,
            Err(error) => {
                tracing::debug!("cannot read from the cache: {}", error_chain(&error));
                None
            }
        }
    }

    /// Keeps a file that was fetched.
    async fn keep(&self, file: &Path) {
        let path = file.to_owned();
        let found = supervise::blocking(move || std::fs::metadata(path)).await;
        let largest = self.shared.max_bytes / LARGEST_SHARE;
        if !found.is_ok_and(|found| found.len() <= largest) {
            return;
        }
        if let Err(error) = self.shared.local.put_file(file, MediaType::Bytes).await {
            tracing::debug!("cannot write to the cache: {}", error_chain(&error));
        }
        self.evict().await;
    }

    /// Removes the blobs that were not read for the longest time, until the rest fit.
    async fn evict(&self) {
        let (root, max_bytes) = (self.shared.local.root().to_owned(), self.shared.max_bytes);
        let evicted = supervise::blocking(move || evict(&root, max_bytes)).await;
        if let Err(error) = evicted {
            tracing::debug!("cannot clean the cache: {error}");
        }
    }

    /// Drops the copy of a removed blob.
    async fn forget(&self, digest: &Digest) {
        let path = self.cached_path(digest);
        let dropped = supervise::blocking(move || ignore_missing(std::fs::remove_file(path))).await;
        if let Err(error) = dropped {
            tracing::debug!("cannot remove from the cache: {error}");
        }
    }

    fn fetch_lock(&self, digest: &Digest) -> Arc<tokio::sync::Mutex<()>> {
        let mut fetches = self.shared.fetches.lock().unwrap_or_else(PoisonError::into_inner);
        fetches.retain(|_, lock| lock.strong_count() > 0);
        if let Some(lock) = fetches.get(digest).and_then(Weak::upgrade) {
            return lock;
        }
        let lock = Arc::default();
        fetches.insert(*digest, Arc::downgrade(&lock));
        lock
    }

    fn cached_path(&self, digest: &Digest) -> PathBuf {
        let hex = digest.hex();
        self.shared.local.root().join("blobs").join(&hex[..2]).join(&hex[2..])
    }
}

#[async_trait]
impl BlobStore for CachedStore {
    fn identity(&self) -> &str {
        self.shared.inner.identity()
    }

    async fn put_bytes(&self, bytes: Bytes, media_type: MediaType) -> Result<BlobRef, StoreError> {
        self.shared.inner.put_bytes(bytes, media_type).await
    }

    async fn put_file(&self, file: &Path, media_type: MediaType) -> Result<BlobRef, StoreError> {
        self.shared.inner.put_file(file, media_type).await
    }

    async fn put_many(&self, contents: Vec<BlobContent>) -> Result<Vec<BlobRef>, StoreError> {
        self.shared.inner.put_many(contents).await
    }

    async fn contains(&self, digest: &Digest) -> Result<bool, StoreError> {
        self.shared.inner.contains(digest).await
    }

    async fn renew(&self, digest: &Digest) -> Result<bool, StoreError> {
        self.shared.inner.renew(digest).await
    }

    async fn stat_blob(&self, digest: &Digest) -> Result<Option<StoredBlob>, StoreError> {
        self.shared.inner.stat_blob(digest).await
    }

    async fn list_blobs(&self, first_byte: u8) -> Result<Vec<StoredBlob>, StoreError> {
        self.shared.inner.list_blobs(first_byte).await
    }

    async fn list_damaged(&self) -> Result<Vec<Digest>, StoreError> {
        self.shared.inner.list_damaged().await
    }

    async fn remove_blob(&self, digest: &Digest, limit: SystemTime) -> Result<bool, StoreError> {
        let removed = self.shared.inner.remove_blob(digest, limit).await?;
        if removed {
            self.forget(digest).await;
        }
        Ok(removed)
    }

    async fn remove_document(&self, path: &str) -> Result<bool, StoreError> {
        self.shared.inner.remove_document(path).await
    }

    async fn remove_store(&self) -> Result<(), StoreError> {
        self.shared.inner.remove_store().await
    }

    async fn get_bytes(&self, digest: &Digest, max_bytes: u64) -> Result<Bytes, StoreError> {
        self.shared.inner.get_bytes(digest, max_bytes).await
    }

    async fn get_file(&self, digest: &Digest, to: &Path) -> Result<(), StoreError> {
        let lock = self.fetch_lock(digest);
        let _one_fetch = lock.lock().await;
        if self.copy_from_cache(digest, to).await {
            return Ok(());
        }
        self.shared.inner.get_file(digest, to).await?;
        self.keep(to).await;
        Ok(())
    }

    async fn get(&self, digest: &Digest) -> Result<Box<dyn AsyncRead + Send + Unpin>, StoreError> {
        match self.read_from_cache(digest).await {
            Some(reader) => Ok(reader),
            None => self.shared.inner.get(digest).await,
        }
    }

    async fn put_document(&self, path: &str, bytes: Bytes) -> Result<bool, StoreError> {
        self.shared.inner.put_document(path, bytes).await
    }

    async fn has_exclusive_documents(&self) -> Result<bool, StoreError> {
        self.shared.inner.has_exclusive_documents().await
    }

    async fn list_documents(&self, prefix: &str) -> Result<Vec<String>, StoreError> {
        self.shared.inner.list_documents(prefix).await
    }

    async fn get_document(&self, path: &str) -> Result<Option<Bytes>, StoreError> {
        self.shared.inner.get_document(path).await
    }
}

/// Sets the time of the last use. A file that is gone was evicted by another process.
fn mark_used(path: &Path) {
    if let Err(error) = File::open(path).and_then(|file| file.set_modified(SystemTime::now())) {
        tracing::debug!("cannot mark {} as used: {error}", path.display());
    }
}

/// Removes the least recently used blobs below `root` until the rest have at most `max_bytes`, and
/// damaged ones.
fn evict(root: &Path, max_bytes: u64) -> io::Result<()> {
    ignore_missing(std::fs::remove_dir_all(root.join("damaged")))?;
    let mut files = Vec::new();
    for fan_out in std::fs::read_dir(root.join("blobs"))? {
        for entry in std::fs::read_dir(fan_out?.path())? {
            let entry = entry?;
            // One that another process has just evicted is no error.
            let Ok(metadata) = entry.metadata() else { continue };
            files.push((metadata.modified()?, metadata.len(), entry.path()));
        }
    }
    let mut total: u64 = files.iter().map(|(_, size, _)| size).sum();
    files.sort_unstable();
    for (_, size, path) in files {
        if total <= max_bytes {
            break;
        }
        ignore_missing(std::fs::remove_file(path))?;
        total -= size;
    }
    Ok(())
}

fn ignore_missing(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use rollout_protocol::digest::Digest;
    use tempfile::TempDir;
    use tokio::io::AsyncReadExt as _;

    use super::super::MemoryStore;
    use super::super::contract::{self, StoreUnderTest};
    use super::*;
    use crate::testing::{FaultyStore, StoreCall};

    /// A cache that holds two blobs of 100 bytes, in front of a store that counts its calls.
    struct CacheUnderTest {
        directory: TempDir,
        memory: MemoryStore,
        counted: Arc<FaultyStore<MemoryStore>>,
        cached: CachedStore,
    }

    impl CacheUnderTest {
        async fn with_size(max_bytes: u64) -> Self {
            let (directory, memory) =
                (tempfile::tempdir().expect("a directory"), MemoryStore::default());
            let counted = Arc::new(FaultyStore::new(Arc::new(memory.clone())));
            let inner: Arc<dyn BlobStore> = Arc::clone(&counted) as Arc<dyn BlobStore>;
            let opened = CachedStore::open(inner, directory.path(), max_bytes).await;
            Self { memory, counted, cached: opened.expect("opened"), directory }
        }

        /// Reads a blob as a file; returns its bytes and the number of fetches so far.
        async fn read(&self, digest: &Digest) -> (Result<Vec<u8>, StoreError>, u32) {
            let to = self.directory.path().join("to");
            let got = self.cached.get_file(digest, &to).await;
            let bytes = got.map(|()| std::fs::read(&to).expect("readable"));
            drop(std::fs::remove_file(&to));
            (bytes, self.counted.count(StoreCall::GetFile))
        }

        async fn put(&self, byte: u8) -> Digest {
            let bytes = Bytes::from(vec![byte; 100]);
            self.cached.put_bytes(bytes, MediaType::Bytes).await.expect("stored").digest
        }
    }

    #[async_trait]
    impl StoreUnderTest for CacheUnderTest {
        fn store(&self) -> Arc<dyn BlobStore> {
            Arc::new(self.cached.clone())
        }

        async fn reopen(&self) -> Arc<dyn BlobStore> {
            let inner = Arc::clone(&self.counted) as Arc<dyn BlobStore>;
            let opened = CachedStore::open(inner, self.directory.path(), u64::MAX).await;
            Arc::new(opened.expect("opened"))
        }

        /// Damages the blob in both places: the cache alone would hide it.
        async fn damage(&self, digest: &Digest, bytes: Bytes) {
            self.memory.damage(digest, bytes.clone());
            let path = self.cached.cached_path(digest);
            if path.exists() {
                std::fs::remove_file(&path).expect("removed");
                std::fs::write(&path, bytes).expect("written");
            }
        }

        async fn set_modified(&self, digest: &Digest, modified: SystemTime) -> bool {
            self.memory.set_modified(digest, modified);
            true
        }

        async fn count(&self) -> Option<usize> {
            None
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn cached_store_passes_store_contract() {
        contract::run_all(async || CacheUnderTest::with_size(u64::MAX).await).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn uncached_store_passes_store_contract() {
        contract::run_all(async || CacheUnderTest::with_size(0).await).await;
    }

    #[tokio::test]
    async fn file_read_twice_is_fetched_once_and_least_used_is_evicted() {
        let subject = CacheUnderTest::with_size(250).await;
        let [one, two, three] = [subject.put(1).await, subject.put(2).await, subject.put(3).await];
        for (digest, fetches) in
            [(&one, 1), (&two, 2), (&one, 2), (&three, 3), (&one, 3), (&two, 4)]
        {
            let (bytes, fetched) = subject.read(digest).await;
            assert_eq!(Digest::sha256(&bytes.expect("read")), *digest);
            assert_eq!(fetched, fetches);
        }
    }

    #[tokio::test]
    async fn file_damaged_in_cache_is_fetched_again() {
        let subject = CacheUnderTest::with_size(1000).await;
        let digest = subject.put(1).await;
        subject.read(&digest).await.0.expect("read");
        let path = subject.cached.cached_path(&digest);
        std::fs::remove_file(&path).expect("removed");
        std::fs::write(&path, vec![2; 100]).expect("written");
        let (bytes, fetches) = subject.read(&digest).await;
        assert_eq!((bytes.expect("read"), fetches), (vec![1; 100], 2));
        assert_eq!(subject.read(&digest).await.1, 2, "the good copy is kept");
    }

    #[tokio::test]
    async fn stream_of_file_damaged_in_cache_is_that_of_store() {
        let subject = CacheUnderTest::with_size(1000).await;
        let digest = subject.put(1).await;
        subject.read(&digest).await.0.expect("read");
        let path = subject.cached.cached_path(&digest);
        for content in [vec![2; 100], vec![1; 99]] {
            std::fs::remove_file(&path).expect("removed");
            std::fs::write(&path, content).expect("written");
            let mut bytes = Vec::new();
            let mut reader = subject.cached.get(&digest).await.expect("opened");
            reader.read_to_end(&mut bytes).await.expect("whole");
            assert_eq!(bytes, vec![1; 100]);
            assert_eq!(subject.read(&digest).await.0.expect("read"), vec![1; 100]);
        }
        let mut reader = subject.cached.get(&digest).await.expect("opened");
        subject.memory.damage(&digest, Bytes::new());
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes).await.expect("from the cache, where it is whole again");
    }

    #[tokio::test]
    async fn blob_removed_from_store_is_dropped_from_cache() {
        let subject = CacheUnderTest::with_size(1000).await;
        let digest = subject.put(1).await;
        subject.read(&digest).await.0.expect("read");
        assert!(subject.cached.cached_path(&digest).exists());
        assert!(subject.cached.remove_blob(&digest, SystemTime::now()).await.expect("removed"));
        assert!(!subject.cached.cached_path(&digest).exists());
        let (read, _) = subject.read(&digest).await;
        assert!(matches!(read, Err(StoreError::Missing { .. })), "{read:?}");
    }

    #[tokio::test]
    async fn cache_without_directory_reads_through() {
        let subject = CacheUnderTest::with_size(1000).await;
        let digest = subject.put(1).await;
        std::fs::remove_dir_all(subject.cached.shared.local.root()).expect("removed");
        assert_eq!(subject.read(&digest).await.0.expect("read"), vec![1; 100]);
        assert_eq!(subject.read(&digest).await.1, 2);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn file_read_concurrently_is_fetched_once() {
        let subject = CacheUnderTest::with_size(1000).await;
        let digest = subject.put(1).await;
        let paths = (0..8).map(|n| subject.directory.path().join(n.to_string()));
        let paths: Vec<_> = paths.collect();
        let reads = paths.iter().map(|to| subject.cached.get_file(&digest, to));
        futures_util::future::try_join_all(reads).await.expect("read");
        assert_eq!(subject.counted.count(StoreCall::GetFile), 1);
    }
}
