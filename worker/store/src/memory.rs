//! A blob store in memory, for tests and for runs that keep nothing.

use std::collections::{BTreeMap, HashMap};
use std::io::Cursor;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use async_trait::async_trait;
use bytes::Bytes;
use rollout_base::supervise;
use rollout_protocol::blob::{BlobRef, MediaType};
use rollout_protocol::digest::Digest;
use tokio::io::AsyncRead;

use super::copy::PartialFile;
use super::verify::{self, VerifyingReader};
use super::{
    BlobStore, StoreError, StoredBlob, check_document_path, check_document_size,
    directory_of_prefix,
};

/// A store that lives as long as its handles. Clones share one.
#[derive(Debug, Clone)]
pub struct MemoryStore {
    identity: Arc<str>,
    content: Arc<Mutex<MemoryContents>>,
}

#[derive(Debug, Default)]
struct MemoryContents {
    blobs: HashMap<Digest, MemoryBlob>,
    documents: BTreeMap<String, Bytes>,
}

#[derive(Debug, Clone)]
struct MemoryBlob {
    bytes: Bytes,
    modified: SystemTime,
}

impl Default for MemoryStore {
    fn default() -> Self {
        let identity = format!("memory-{:032x}", rand::random::<u128>());
        Self { identity: identity.into(), content: Arc::default() }
    }
}

impl MemoryStore {
    /// Replaces the bytes stored under a digest, as a failing disk would.
    #[cfg(any(test, feature = "testing"))]
    pub fn damage(&self, digest: &Digest, bytes: Bytes) {
        self.lock().blobs.insert(*digest, MemoryBlob { bytes, modified: SystemTime::now() });
    }

    /// Sets the modification time of a blob.
    ///
    /// # Panics
    /// If it is absent.
    #[cfg(any(test, feature = "testing"))]
    pub fn set_modified(&self, digest: &Digest, modified: SystemTime) {
        self.lock().blobs.get_mut(digest).expect("a stored blob").modified = modified;
    }

    /// Stores a value as a JSON document, synchronously.
    #[cfg(any(test, feature = "testing"))]
    pub fn put_value<T: serde::Serialize>(&self, value: &T) -> Digest {
        let bytes = serde_json::to_vec(value).expect("a value with a JSON form");
        self.put(Bytes::from(bytes), MediaType::Json).digest
    }

    /// The text of a stored blob.
    #[cfg(any(test, feature = "testing"))]
    pub fn text(&self, blob: &BlobRef) -> String {
        let bytes = self.lock().blobs[&blob.digest].bytes.clone();
        String::from_utf8(bytes.to_vec()).expect("text")
    }

    /// Paths of the stored documents.
    #[cfg(any(test, feature = "testing"))]
    pub fn document_paths(&self) -> Vec<String> {
        self.lock().documents.keys().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, MemoryContents> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(&self, digest: &Digest) -> Result<Bytes, StoreError> {
        let found = self.lock().blobs.get(digest).map(|blob| blob.bytes.clone());
        found.ok_or_else(|| StoreError::Missing {
            digest: *digest,
            store: self.identity.to_string(),
        })
    }

    /// The blob, verified. A damaged one is dropped, so that it can be stored again.
    fn read(&self, digest: &Digest) -> Result<Bytes, StoreError> {
        let bytes = self.find(digest)?;
        let checked = verify::check(digest, Digest::sha256(&bytes), &self.identity);
        if checked.is_err() {
            self.lock().blobs.remove(digest);
        }
        checked.map(|()| bytes)
    }

    fn put(&self, bytes: Bytes, media_type: MediaType) -> BlobRef {
        let blob = BlobRef::for_bytes(&bytes, media_type);
        let modified = SystemTime::now();
        self.lock().blobs.insert(blob.digest, MemoryBlob { bytes, modified });
        blob
    }
}

#[async_trait]
impl BlobStore for MemoryStore {
    fn identity(&self) -> &str {
        &self.identity
    }

    async fn put_bytes(&self, bytes: Bytes, media_type: MediaType) -> Result<BlobRef, StoreError> {
        Ok(self.put(bytes, media_type))
    }

    async fn put_file(&self, file: &Path, media_type: MediaType) -> Result<BlobRef, StoreError> {
        let file = file.to_owned();
        let read = supervise::blocking(move || {
            std::fs::read(&file).map_err(|error| StoreError::io("read", &file, error))
        });
        Ok(self.put(Bytes::from(read.await?), media_type))
    }

    async fn contains(&self, digest: &Digest) -> Result<bool, StoreError> {
        Ok(self.lock().blobs.contains_key(digest))
    }

    async fn renew(&self, digest: &Digest) -> Result<bool, StoreError> {
        let mut content = self.lock();
        let found = content.blobs.get_mut(digest);
        Ok(found.map(|blob| blob.modified = SystemTime::now()).is_some())
    }

    async fn stat_blob(&self, digest: &Digest) -> Result<Option<StoredBlob>, StoreError> {
        Ok(self.lock().blobs.get(digest).map(|blob| stored(*digest, blob)))
    }

    async fn list_blobs(&self, first_byte: u8) -> Result<Vec<StoredBlob>, StoreError> {
        let content = self.lock();
        let of_byte = content.blobs.iter().filter(|(digest, _)| digest.as_bytes()[0] == first_byte);
        Ok(of_byte.map(|(digest, blob)| stored(*digest, blob)).collect())
    }

    async fn list_damaged(&self) -> Result<Vec<Digest>, StoreError> {
        // Damaged blobs are dropped.
        Ok(Vec::new())
    }

    async fn remove_blob(&self, digest: &Digest, limit: SystemTime) -> Result<bool, StoreError> {
        let mut content = self.lock();
        let is_old = content.blobs.get(digest).is_some_and(|blob| blob.modified <= limit);
        Ok(is_old && content.blobs.remove(digest).is_some())
    }

    async fn remove_document(&self, path: &str) -> Result<bool, StoreError> {
        check_document_path(path)?;
        Ok(self.lock().documents.remove(path).is_some())
    }

    async fn remove_store(&self) -> Result<(), StoreError> {
        let content = self.lock();
        if content.blobs.is_empty() && content.documents.is_empty() {
            return Ok(());
        }
        let (store, reason) = (self.identity.to_string(), "it has blobs or documents");
        Err(StoreError::InUse { store, reason })
    }

    async fn get_bytes(&self, digest: &Digest, max_bytes: u64) -> Result<Bytes, StoreError> {
        let size_bytes = self.find(digest)?.len() as u64;
        if size_bytes > max_bytes {
            return Err(StoreError::TooLarge { digest: *digest, size_bytes, max_bytes });
        }
        self.read(digest)
    }

    async fn get_file(&self, digest: &Digest, to: &Path) -> Result<(), StoreError> {
        let (bytes, to) = (self.read(digest)?, to.to_owned());
        supervise::blocking(move || {
            let mut temp = PartialFile::create(&to)?;
            temp.write(&bytes)?;
            temp.persist()
        })
        .await
    }

    async fn get(&self, digest: &Digest) -> Result<Box<dyn AsyncRead + Send + Unpin>, StoreError> {
        let (content, digest, store) = (Cursor::new(self.find(digest)?), *digest, self.clone());
        let on_damage = move || {
            store.lock().blobs.remove(&digest);
        };
        Ok(Box::new(VerifyingReader::new(content, digest, &self.identity, on_damage)))
    }

    async fn put_document(&self, path: &str, bytes: Bytes) -> Result<bool, StoreError> {
        check_document_path(path)?;
        check_document_size(path, bytes.len() as u64)?;
        let mut content = self.lock();
        let created = !content.documents.contains_key(path);
        if created {
            content.documents.insert(path.to_owned(), bytes);
        }
        Ok(created)
    }

    async fn list_documents(&self, prefix: &str) -> Result<Vec<String>, StoreError> {
        directory_of_prefix(prefix)?;
        let content = self.lock();
        let from = content.documents.range(prefix.to_owned()..).map(|(path, _)| path);
        Ok(from.take_while(|path| path.starts_with(prefix)).cloned().collect())
    }

    async fn get_document(&self, path: &str) -> Result<Option<Bytes>, StoreError> {
        check_document_path(path)?;
        Ok(self.lock().documents.get(path).cloned())
    }
}

fn stored(digest: Digest, blob: &MemoryBlob) -> StoredBlob {
    StoredBlob { digest, size_bytes: blob.bytes.len() as u64, modified: blob.modified }
}

#[cfg(test)]
mod tests {
    use super::super::contract::{self, StoreUnderTest};
    use super::*;

    #[async_trait]
    impl StoreUnderTest for MemoryStore {
        fn store(&self) -> Arc<dyn BlobStore> {
            Arc::new(self.clone())
        }

        async fn reopen(&self) -> Arc<dyn BlobStore> {
            self.store()
        }

        async fn damage(&self, digest: &Digest, bytes: Bytes) {
            Self::damage(self, digest, bytes);
        }

        async fn set_modified(&self, digest: &Digest, modified: SystemTime) -> bool {
            Self::set_modified(self, digest, modified);
            true
        }

        async fn count(&self) -> Option<usize> {
            Some(self.lock().blobs.len())
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn memory_store_passes_store_contract() {
        contract::run_all(async || MemoryStore::default()).await;
    }
}
