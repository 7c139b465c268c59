//! A blob store that fails on command.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use rollout_protocol::blob::{BlobRef, MediaType};
use rollout_protocol::digest::Digest;
use tokio::io::AsyncRead;

use crate::store::{BlobStore, StoreError};

/// A poisoned lock fails the test that poisoned it anyway.
const WHOLE: &str = "no test panics inside";

/// A blob store in memory that fails on command.
#[derive(Debug, Default)]
pub struct FaultyStore {
    blobs: Mutex<HashMap<Digest, Bytes>>,
    documents: Mutex<BTreeMap<String, Bytes>>,
    down: AtomicBool,
    /// Calls that still succeed, if that is bounded.
    calls_left: Mutex<Option<usize>>,
    reads: AtomicUsize,
}

impl FaultyStore {
    /// Every call fails until it is up again.
    pub fn set_down(&self, down: bool) {
        self.down.store(down, Ordering::Relaxed);
    }

    /// After `calls` more calls every call fails.
    pub fn fail_after(&self, calls: Option<usize>) {
        *self.calls_left.lock().expect(WHOLE) = calls;
    }

    /// Blobs read so far.
    pub fn reads(&self) -> usize {
        self.reads.load(Ordering::Relaxed)
    }

    /// Stores a value as a JSON document, working or not.
    pub fn put<T: serde::Serialize>(&self, value: &T) -> Digest {
        let bytes = Bytes::from(serde_json::to_vec(value).expect("a value with a JSON form"));
        let digest = Digest::of(&bytes);
        self.blobs.lock().expect(WHOLE).insert(digest, bytes);
        digest
    }

    /// A stored text.
    pub fn text(&self, blob: &BlobRef) -> String {
        let bytes = self.blobs.lock().expect(WHOLE)[&blob.digest].clone();
        String::from_utf8(bytes.to_vec()).expect("text")
    }

    /// Paths of the named documents.
    pub fn documents(&self) -> Vec<String> {
        self.documents.lock().expect(WHOLE).keys().cloned().collect()
    }

    fn call(&self) -> Result<(), StoreError> {
        let mut left = self.calls_left.lock().expect(WHOLE);
        let exhausted = left.is_some_and(|left| left == 0);
        *left = left.map(|left| left.saturating_sub(1));
        if exhausted || self.down.load(Ordering::Relaxed) {
            let source = std::io::Error::other("down");
            return Err(StoreError::Io { action: "reaching", path: "store".into(), source });
        }
        Ok(())
    }
}

#[async_trait]
impl BlobStore for FaultyStore {
    fn identity(&self) -> &str {
        "memory"
    }

    async fn put_bytes(&self, bytes: Bytes, media_type: MediaType) -> Result<BlobRef, StoreError> {
        self.call()?;
        let blob = BlobRef::of(&bytes, media_type);
        self.blobs.lock().expect(WHOLE).insert(blob.digest, bytes);
        Ok(blob)
    }

    async fn put_file(&self, file: &Path, media_type: MediaType) -> Result<BlobRef, StoreError> {
        let bytes = std::fs::read(file).map_err(|e| StoreError::io("reading", file, e))?;
        self.put_bytes(Bytes::from(bytes), media_type).await
    }

    async fn contains(&self, digest: &Digest) -> Result<bool, StoreError> {
        self.call()?;
        Ok(self.blobs.lock().expect(WHOLE).contains_key(digest))
    }

    async fn get_bytes(&self, digest: &Digest, _max_bytes: u64) -> Result<Bytes, StoreError> {
        self.call()?;
        self.reads.fetch_add(1, Ordering::Relaxed);
        let found = self.blobs.lock().expect(WHOLE).get(digest).cloned();
        found.ok_or_else(|| StoreError::Missing { digest: *digest, store: "memory".into() })
    }

    async fn get_file(&self, digest: &Digest, to: &Path) -> Result<(), StoreError> {
        let bytes = self.get_bytes(digest, u64::MAX).await?;
        std::fs::write(to, bytes).map_err(|e| StoreError::io("writing", to, e))
    }

    async fn get(&self, digest: &Digest) -> Result<Box<dyn AsyncRead + Send + Unpin>, StoreError> {
        let bytes = self.get_bytes(digest, u64::MAX).await?;
        Ok(Box::new(std::io::Cursor::new(bytes)))
    }

    async fn put_document(&self, path: &str, bytes: Bytes) -> Result<bool, StoreError> {
        self.call()?;
        crate::store::check_document_path(path)?;
        let mut documents = self.documents.lock().expect(WHOLE);
        Ok(documents.insert(path.to_owned(), bytes).is_none())
    }

    async fn list_documents(&self, prefix: &str) -> Result<Vec<String>, StoreError> {
        self.call()?;
        Ok(self.documents().into_iter().filter(|path| path.starts_with(prefix)).collect())
    }

    async fn get_document(&self, path: &str) -> Result<Option<Bytes>, StoreError> {
        self.call()?;
        Ok(self.documents.lock().expect(WHOLE).get(path).cloned())
    }
}
