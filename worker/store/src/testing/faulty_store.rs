//! A blob store with injected faults.

use std::collections::HashMap;
use std::io::{self, Cursor};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream;
use rollout_protocol::blob::{BlobRef, MediaType};
use rollout_protocol::digest::Digest;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio_util::io::StreamReader;

use crate::{BlobContent, BlobStore, MemoryStore, StoreError, StoredBlob, VerifyingReader};

/// Kinds of store calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StoreCall {
    /// [`BlobStore::put_bytes`].
    PutBytes,
    /// [`BlobStore::put_file`].
    PutFile,
    /// [`BlobStore::put_many`]; each of its contents also counts as a call.
    PutMany,
    /// [`BlobStore::contains`].
    Contains,
    /// [`BlobStore::get_bytes`].
    GetBytes,
    /// [`BlobStore::get_file`].
    GetFile,
    /// [`BlobStore::get`].
    Get,
    /// [`BlobStore::put_document`].
    PutDocument,
    /// [`BlobStore::list_documents`].
    ListDocuments,
    /// [`BlobStore::get_document`].
    GetDocument,
    /// [`BlobStore::renew`].
    Renew,
    /// [`BlobStore::stat_blob`].
    StatBlob,
    /// [`BlobStore::list_blobs`] and [`BlobStore::list_damaged`].
    ListBlobs,
    /// [`BlobStore::remove_blob`], [`BlobStore::remove_document`] and [`BlobStore::remove_store`].
    Remove,
}

/// A fault of one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreFault {
    /// The call does nothing and fails with a transient error.
    Fail,
    /// The call takes effect and then fails, like a connection lost before the response. A stream
    /// breaks off in the middle.
    FailAfter,
    /// The call does nothing and fails because the disk is full.
    DiskFull,
    /// The call happens after a delay.
    Delay(Duration),
    /// The content read is damaged; a stream reports it only at its end. Only for the calls that
    /// read a blob: with any other call it does nothing.
    Corrupt,
}

/// Passes calls on to another store, except where a fault was injected.
#[derive(Debug)]
pub struct FaultyStore<S: ?Sized = MemoryStore> {
    schedule: Mutex<FaultSchedule>,
    inner: Arc<S>,
}

#[derive(Debug, Default)]
struct FaultSchedule {
    faults: HashMap<(StoreCall, u32), StoreFault>,
    always: HashMap<StoreCall, StoreFault>,
    counts: HashMap<StoreCall, u32>,
    is_down: bool,
    replaces_documents: bool,
    /// Calls that still succeed; `None` for no limit.
    calls_left: Option<usize>,
}

impl Default for FaultyStore {
    /// A faulty store in front of a store in memory.
    fn default() -> Self {
        Self::new(Arc::default())
    }
}

impl<S: ?Sized> FaultyStore<S> {
    /// A store that passes everything on to `inner`.
    pub fn new(inner: Arc<S>) -> Self {
        Self { schedule: Mutex::default(), inner }
    }

    /// The inner store, which never fails.
    pub fn inner(&self) -> &S {
        &self.inner
    }

    /// Makes every call fail until the store is up again.
    pub fn set_down(&self, is_down: bool) {
        self.with_schedule(|orders| orders.is_down = is_down);
    }

    /// Makes the store say that racing writers of a document may replace each other's.
    pub fn replace_documents(&self) {
        self.with_schedule(|orders| orders.replaces_documents = true);
    }

    /// Makes every call fail after `calls` more calls; `None` for no limit.
    pub fn fail_after_calls(&self, calls: Option<usize>) {
        self.with_schedule(|orders| orders.calls_left = calls);
    }

    /// Injects a fault into the `n`-th call of a kind; the first one is 1.
    pub fn inject(&self, call: StoreCall, n: u32, fault: StoreFault) {
        self.with_schedule(|orders| orders.faults.insert((call, n), fault));
    }

    /// Injects a fault into every call of a kind that has no other, or stops doing so.
    pub fn inject_always(&self, call: StoreCall, fault: Option<StoreFault>) {
        self.with_schedule(|orders| match fault {
            Some(fault) => orders.always.insert(call, fault),
            None => orders.always.remove(&call),
        });
    }

    /// How often a blob was read.
    pub fn reads(&self) -> u32 {
        [StoreCall::GetBytes, StoreCall::GetFile, StoreCall::Get]
            .map(|call| self.count(call))
            .iter()
            .sum()
    }

    /// How many calls of a kind there were.
    pub fn count(&self, call: StoreCall) -> u32 {
        self.with_schedule(|orders| orders.counts.get(&call).copied().unwrap_or(0))
    }

    fn with_schedule<T>(&self, act: impl FnOnce(&mut FaultSchedule) -> T) -> T {
        act(&mut self.schedule.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Counts a call and applies the faults of its beginning. Returns a fault that applies at its
    /// end or to its content.
    async fn begin_call(&self, call: StoreCall) -> Result<Option<StoreFault>, StoreError> {
        let fault = self.with_schedule(|orders| orders.next_fault(call));
        match fault {
            Some(StoreFault::Fail) => Err(injected_error(call)),
            Some(StoreFault::DiskFull) => Err(StoreError::DiskFull {
                path: format!("{call:?}"),
                source: io::ErrorKind::StorageFull.into(),
            }),
            Some(StoreFault::Delay(delay)) => {
                tokio::time::sleep(delay).await;
                Ok(None)
            }
            late => Ok(late),
        }
    }
}

impl<S: BlobStore + ?Sized> FaultyStore<S> {
    fn damaged(&self, digest: &Digest) -> StoreError {
        StoreError::Corrupt {
            digest: *digest,
            found: Digest::sha256(b"damaged"),
            store: self.inner.identity().to_owned(),
        }
    }
}

impl FaultSchedule {
    /// Counts a call and returns its fault.
    fn next_fault(&mut self, call: StoreCall) -> Option<StoreFault> {
        let count = self.counts.entry(call).or_default();
        *count += 1;
        let injected = self.faults.remove(&(call, *count));
        let is_counted = call != StoreCall::PutMany;
        let exhausted = is_counted && self.calls_left == Some(0);
        if is_counted {
            self.calls_left = self.calls_left.map(|left| left.saturating_sub(1));
        }
        if exhausted || self.is_down {
            return Some(StoreFault::Fail);
        }
        injected.or_else(|| self.always.get(&call).copied())
    }
}

fn injected_error(call: StoreCall) -> StoreError {
    let source = io::Error::new(io::ErrorKind::ConnectionReset, "injected fault");
    StoreError::Io { action: "handle (injected fault)", path: format!("{call:?}"), source }
}

/// Ends a call that succeeded.
fn end_call<T>(call: StoreCall, late: Option<StoreFault>, value: T) -> Result<T, StoreError> {
    if late == Some(StoreFault::FailAfter) { Err(injected_error(call)) } else { Ok(value) }
}

#[async_trait]
impl<S: BlobStore + ?Sized> BlobStore for FaultyStore<S> {
    fn identity(&self) -> &str {
        self.inner.identity()
    }

    async fn put_bytes(&self, bytes: Bytes, media_type: MediaType) -> Result<BlobRef, StoreError> {
        let late = self.begin_call(StoreCall::PutBytes).await?;
        end_call(StoreCall::PutBytes, late, self.inner.put_bytes(bytes, media_type).await?)
    }

    async fn put_file(&self, file: &Path, media_type: MediaType) -> Result<BlobRef, StoreError> {
        let late = self.begin_call(StoreCall::PutFile).await?;
        end_call(StoreCall::PutFile, late, self.inner.put_file(file, media_type).await?)
    }

    async fn put_many(&self, contents: Vec<BlobContent>) -> Result<Vec<BlobRef>, StoreError> {
        let late = self.begin_call(StoreCall::PutMany).await?;
        let mut blobs = Vec::with_capacity(contents.len());
        for content in contents {
            blobs.push(match content {
                BlobContent::Bytes(bytes, media_type) => self.put_bytes(bytes, media_type).await?,
                BlobContent::File(file, media_type)
                | BlobContent::HashedFile(file, media_type, _) => {
                    self.put_file(&file, media_type).await?
                }
            });
        }
        end_call(StoreCall::PutMany, late, blobs)
    }

    async fn contains(&self, digest: &Digest) -> Result<bool, StoreError> {
        let late = self.begin_call(StoreCall::Contains).await?;
        end_call(StoreCall::Contains, late, self.inner.contains(digest).await?)
    }

    async fn get_bytes(&self, digest: &Digest, max_bytes: u64) -> Result<Bytes, StoreError> {
        let late = self.begin_call(StoreCall::GetBytes).await?;
        let bytes = self.inner.get_bytes(digest, max_bytes).await?;
        if late == Some(StoreFault::Corrupt) {
            return Err(self.damaged(digest));
        }
        end_call(StoreCall::GetBytes, late, bytes)
    }

    async fn get_file(&self, digest: &Digest, to: &Path) -> Result<(), StoreError> {
        let late = self.begin_call(StoreCall::GetFile).await?;
        if late == Some(StoreFault::Corrupt) {
            return Err(self.damaged(digest));
        }
        end_call(StoreCall::GetFile, late, self.inner.get_file(digest, to).await?)
    }

    async fn get(&self, digest: &Digest) -> Result<Box<dyn AsyncRead + Send + Unpin>, StoreError> {
        let late = self.begin_call(StoreCall::Get).await?;
        let mut reader = self.inner.get(digest).await?;
        let mut bytes = Vec::new();
        match late {
            Some(StoreFault::Corrupt | StoreFault::FailAfter) => {
                let read = reader.read_to_end(&mut bytes).await;
                read.map_err(|error| StoreError::from_read(digest, error))?;
            }
            _ => return Ok(reader),
        }
        if late == Some(StoreFault::FailAfter) {
            bytes.truncate(bytes.len() / 2);
            let lost = io::Error::new(io::ErrorKind::ConnectionReset, "injected fault");
            let broken_off = stream::iter([Ok(Bytes::from(bytes)), Err(lost)]);
            return Ok(Box::new(StreamReader::new(broken_off)));
        }
        match bytes.last_mut() {
            Some(last) => *last ^= 1,
            None => bytes.push(0),
        }
        let store = self.inner.identity();
        Ok(Box::new(VerifyingReader::new(Cursor::new(bytes), *digest, store, || ())))
    }

    async fn put_document(&self, path: &str, bytes: Bytes) -> Result<bool, StoreError> {
        let late = self.begin_call(StoreCall::PutDocument).await?;
        end_call(StoreCall::PutDocument, late, self.inner.put_document(path, bytes).await?)
    }

    async fn has_exclusive_documents(&self) -> Result<bool, StoreError> {
        let replaces = self.with_schedule(|orders| orders.replaces_documents);
        Ok(!replaces && self.inner.has_exclusive_documents().await?)
    }

    async fn list_documents(&self, prefix: &str) -> Result<Vec<String>, StoreError> {
        let late = self.begin_call(StoreCall::ListDocuments).await?;
        end_call(StoreCall::ListDocuments, late, self.inner.list_documents(prefix).await?)
    }

    async fn get_document(&self, path: &str) -> Result<Option<Bytes>, StoreError> {
        let late = self.begin_call(StoreCall::GetDocument).await?;
        end_call(StoreCall::GetDocument, late, self.inner.get_document(path).await?)
    }

    async fn renew(&self, digest: &Digest) -> Result<bool, StoreError> {
        let late = self.begin_call(StoreCall::Renew).await?;
        end_call(StoreCall::Renew, late, self.inner.renew(digest).await?)
    }

    async fn stat_blob(&self, digest: &Digest) -> Result<Option<StoredBlob>, StoreError> {
        let late = self.begin_call(StoreCall::StatBlob).await?;
        end_call(StoreCall::StatBlob, late, self.inner.stat_blob(digest).await?)
    }

    async fn list_blobs(&self, first_byte: u8) -> Result<Vec<StoredBlob>, StoreError> {
        let late = self.begin_call(StoreCall::ListBlobs).await?;
        end_call(StoreCall::ListBlobs, late, self.inner.list_blobs(first_byte).await?)
    }

    async fn list_damaged(&self) -> Result<Vec<Digest>, StoreError> {
        let late = self.begin_call(StoreCall::ListBlobs).await?;
        end_call(StoreCall::ListBlobs, late, self.inner.list_damaged().await?)
    }

    async fn remove_blob(&self, digest: &Digest, limit: SystemTime) -> Result<bool, StoreError> {
        let late = self.begin_call(StoreCall::Remove).await?;
        end_call(StoreCall::Remove, late, self.inner.remove_blob(digest, limit).await?)
    }

    async fn remove_document(&self, path: &str) -> Result<bool, StoreError> {
        let late = self.begin_call(StoreCall::Remove).await?;
        end_call(StoreCall::Remove, late, self.inner.remove_document(path).await?)
    }

    async fn remove_store(&self) -> Result<(), StoreError> {
        let late = self.begin_call(StoreCall::Remove).await?;
        end_call(StoreCall::Remove, late, self.inner.remove_store().await?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn faulty_store_faults_hit_ordered_calls() {
        let store = FaultyStore::new(Arc::new(MemoryStore::default()));
        let put = async |text: &'static str| store.put_bytes(text.into(), MediaType::Text).await;
        store.inject(StoreCall::PutBytes, 2, StoreFault::Fail);
        store.inject(StoreCall::PutBytes, 3, StoreFault::FailAfter);
        store.inject(StoreCall::PutBytes, 4, StoreFault::DiskFull);
        let blob = put("one").await.expect("stored");
        assert!(put("two").await.unwrap_err().is_transient());
        assert!(!store.contains(&Digest::sha256(b"two")).await.expect("answered"));
        assert!(put("three").await.unwrap_err().is_transient());
        assert!(store.contains(&Digest::sha256(b"three")).await.expect("answered"));
        assert!(matches!(put("four").await, Err(StoreError::DiskFull { .. })));
        put("four").await.expect("stored");
        assert_eq!(store.count(StoreCall::PutBytes), 5);

        store.inject(StoreCall::Get, 1, StoreFault::Corrupt);
        let mut text = String::new();
        let mut reader = store.get(&blob.digest).await.expect("stored");
        let error = reader.read_to_string(&mut text).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        store.inject_always(StoreCall::GetBytes, Some(StoreFault::Corrupt));
        for _ in 0..2 {
            let read = store.get_bytes(&blob.digest, 10).await;
            assert!(matches!(read, Err(StoreError::Corrupt { .. })));
        }
        store.inject_always(StoreCall::GetBytes, None);
        assert_eq!(store.get_bytes(&blob.digest, 10).await.expect("stored"), "one");
    }
}
