//! The blob store in a bucket of a service that speaks the S3 protocol.
//!
//! Keys below the prefix are the paths of a store in a directory:
//! ```text
//! store.json                identity and format, created once
//! blobs/<2 hex>/<62 hex>    blobs by their SHA-256
//! docs/<path>               documents
//! damaged/<64 hex>          copies of blobs whose content was found wrong
//! ```
//! An object appears complete or not at all, and its upload is acknowledged when it is durable.
//! Every request that writes carries the SHA-256 of its body, which the service compares. Nothing
//! depends on conditional writes but which of several racing writers creates a document: blobs of
//! one name are equal.

mod client;
mod downloaded_file;
mod error;
mod file_parts;
mod identity;
mod quarantine;
mod remove;
mod upload;

use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use async_trait::async_trait;
use aws_sdk_s3::Client;
#[cfg(any(test, feature = "testing"))]
use aws_sdk_s3::config::Credentials;
use aws_sdk_s3::operation::get_object::GetObjectOutput;
use aws_sdk_s3::primitives::{ByteStream, DateTime};
use bytes::{Bytes, BytesMut};
use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use rollout_protocol::blob::{BlobRef, MediaType};
use rollout_protocol::digest::{Digest, DigestHasher};
use rollout_protocol::limits;
use tokio::io::{AsyncRead, AsyncReadExt as _};

use self::downloaded_file::DownloadedFile;
use self::error::RequestError;
use super::age::needs_renewal;
use super::verify::{self, VerifyingReader};
use super::{
    BlobContent, BlobStore, S3Location, StoreError, StoredBlob, check_document_path,
    check_document_size, directory_of_prefix,
};

/// Contents of a batch that are stored concurrently: most of the time of a small request is spent
/// waiting.
const PARALLEL_PUTS: usize = 16;

/// Memory for content that is read before its size is known to be right.
const READ_BUFFER_BYTES: usize = 64 * 1024;

/// A store in S3. Clones share one handle.
#[derive(Debug, Clone)]
pub struct S3Store {
    inner: Arc<S3StoreInner>,
}

#[derive(Debug)]
struct S3StoreInner {
    client: Client,
    location: S3Location,
    /// The location as text, for messages.
    url: String,
    identity: String,
    uploads: upload::UploadPermits,
    damaged: quarantine::DamagedBlobs,
}

impl S3Store {
    /// Opens the store at `location` with the credentials of the environment (variables, profile
    /// files, web identity, container, instance). It is created if it does not exist; the bucket is
    /// not.
    ///
    /// # Errors
    /// [`StoreError`]; [`StoreError::Unusable`] when a newer version wrote the store.
    pub async fn open(location: S3Location) -> Result<Self, StoreError> {
        let client = client::connect(&location, None).await;
        Self::with_client(client, location).await
    }

    /// Opens the store at `location` if there is one.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn open_existing(location: S3Location) -> Result<Option<Self>, StoreError> {
        let client = client::connect(&location, None).await;
        let url = location.to_string();
        let identity = identity::read(&client, &location, &url).await?;
        Ok(identity.map(|identity| Self::with_identity(client, location, identity.id)))
    }

    /// Opens the store with a key.
    ///
    /// # Errors
    /// [`StoreError`].
    #[cfg(any(test, feature = "testing"))]
    pub async fn open_with_key(
        location: S3Location,
        key_id: &str,
        secret: &str,
    ) -> Result<Self, StoreError> {
        let credentials = Credentials::new(key_id, secret, None, None, "test");
        let client = client::connect(&location, Some(credentials)).await;
        Self::with_client(client, location).await
    }

    /// Replaces the bytes stored under a digest, as a failing disk would.
    ///
    /// # Errors
    /// [`StoreError`].
    #[cfg(any(test, feature = "testing"))]
    pub async fn damage(&self, digest: &Digest, bytes: Bytes) -> Result<(), StoreError> {
        let inner = &*self.inner;
        let request = inner.client.put_object().bucket(&inner.location.bucket);
        let key = inner.location.key(&blob_path(digest));
        let sent = request.key(key).body(ByteStream::from(bytes)).send().await;
        sent.map(drop).map_err(|error| inner.failed(error, "write to"))
    }

    async fn with_client(client: Client, location: S3Location) -> Result<Self, StoreError> {
        let url = location.to_string();
        let identity = identity::open(&client, &location, &url).await?;
        Ok(Self::with_identity(client, location, identity.id))
    }

    fn with_identity(client: Client, location: S3Location, identity: String) -> Self {
        let inner = S3StoreInner {
            client,
            url: location.to_string(),
            location,
            identity,
            uploads: upload::UploadPermits::default(),
            damaged: quarantine::DamagedBlobs::default(),
        };
        Self { inner: Arc::new(inner) }
    }
}

/// Facts about an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ObjectHead {
    /// Its length; 0 if the service does not tell it.
    size_bytes: u64,
    /// When it was written; now if the service does not tell it.
    modified: SystemTime,
}

#[async_trait]
impl BlobStore for S3Store {
    fn identity(&self) -> &str {
        &self.inner.identity
    }

    async fn put_bytes(&self, bytes: Bytes, media_type: MediaType) -> Result<BlobRef, StoreError> {
        self.inner.put_bytes(bytes, media_type).await
    }

    async fn put_file(&self, file: &Path, media_type: MediaType) -> Result<BlobRef, StoreError> {
        self.inner.put_file(file, media_type).await
    }

    async fn put_many(&self, contents: Vec<BlobContent>) -> Result<Vec<BlobRef>, StoreError> {
        let puts = contents.into_iter().map(|content| self.inner.put(content));
        let puts: Vec<_> = puts.collect();
        stream::iter(puts).buffered(PARALLEL_PUTS).try_collect().await
    }

    async fn contains(&self, digest: &Digest) -> Result<bool, StoreError> {
        self.inner.wait_for_quarantine(digest).await;
        let found = self.inner.head(&blob_path(digest)).await?;
        Ok(found.is_some())
    }

    /// An object cannot be renewed without its content: an old one has to be stored again.
    async fn renew(&self, digest: &Digest) -> Result<bool, StoreError> {
        self.inner.wait_for_quarantine(digest).await;
        let found = self.inner.head(&blob_path(digest)).await?;
        let damaged = self.inner.damaged.contains(digest);
        Ok(!damaged && found.is_some_and(|found| !needs_renewal(found.modified)))
    }

    async fn stat_blob(&self, digest: &Digest) -> Result<Option<StoredBlob>, StoreError> {
        let found = self.inner.head(&blob_path(digest)).await?;
        let digest = *digest;
        Ok(found.map(|ObjectHead { size_bytes, modified }| StoredBlob {
            digest,
            size_bytes,
            modified,
        }))
    }

    async fn list_blobs(&self, first_byte: u8) -> Result<Vec<StoredBlob>, StoreError> {
        self.inner.list_blobs(first_byte).await
    }

    async fn list_damaged(&self) -> Result<Vec<Digest>, StoreError> {
        self.inner.list_damaged().await
    }

    async fn remove_blob(&self, digest: &Digest, limit: SystemTime) -> Result<bool, StoreError> {
        self.inner.remove_blob(digest, limit).await
    }

    async fn remove_document(&self, path: &str) -> Result<bool, StoreError> {
        self.inner.remove_document(path).await
    }

    async fn remove_store(&self) -> Result<(), StoreError> {
        self.inner.remove_store().await
    }

    async fn get_bytes(&self, digest: &Digest, max_bytes: u64) -> Result<Bytes, StoreError> {
        let object = self.inner.get_blob(digest).await?;
        let size_bytes = object.content_length().and_then(|n| u64::try_from(n).ok());
        let too_large =
            |size_bytes| StoreError::TooLarge { digest: *digest, size_bytes, max_bytes };
        if let Some(size_bytes) = size_bytes.filter(|size_bytes| *size_bytes > max_bytes) {
            return Err(too_large(size_bytes));
        }
        let read = read_limited(object.body, max_bytes).await;
        let bytes = read.map_err(|source| self.inner.broken_off(source))?;
        if bytes.len() as u64 > max_bytes {
            return Err(too_large(bytes.len() as u64));
        }
        let checked = verify::check(digest, Digest::sha256(&bytes), &self.inner.identity);
        if checked.is_err() {
            self.inner.quarantine(digest).await;
        }
        checked.map(|()| bytes)
    }

    async fn get_file(&self, digest: &Digest, to: &Path) -> Result<(), StoreError> {
        let object = self.inner.get_blob(digest).await?;
        let mut file = DownloadedFile::create(to).await?;
        let (mut body, mut hasher) = (object.body, DigestHasher::default());
        let failed = |error| self.inner.broken_off(std::io::Error::other(error));
        while let Some(bytes) = body.try_next().await.map_err(failed)? {
            hasher.update(&bytes);
            file = file.write(bytes).await?;
        }
        let checked = verify::check(digest, hasher.finish(), &self.inner.identity);
        if let Err(error) = checked {
            self.inner.quarantine(digest).await;
            return Err(error);
        }
        file.persist().await
    }

    async fn get(&self, digest: &Digest) -> Result<Box<dyn AsyncRead + Send + Unpin>, StoreError> {
        let object = self.inner.get_blob(digest).await?;
        let (inner, digest) = (Arc::clone(&self.inner), *digest);
        let on_damage = move || inner.quarantine_later(digest);
        let body = object.body.into_async_read();
        Ok(Box::new(VerifyingReader::new(body, digest, &self.inner.identity, on_damage)))
    }

    async fn put_document(&self, path: &str, bytes: Bytes) -> Result<bool, StoreError> {
        check_document_path(path)?;
        check_document_size(path, bytes.len() as u64)?;
        let path = format!("docs/{path}");
        // Before the conditional write, because some services ignore the condition.
        if self.inner.head(&path).await?.is_some() {
            return Ok(false);
        }
        self.inner.create_object(&path, bytes, MediaType::Bytes).await
    }

    async fn has_exclusive_documents(&self) -> Result<bool, StoreError> {
        let S3StoreInner { client, location, url, .. } = &*self.inner;
        let identity = identity::read(client, location, url).await?;
        let identity = identity.ok_or_else(|| StoreError::Absent { url: url.clone() })?;
        identity::has_conditional_writes(client, location, url, &identity).await
    }

    async fn list_documents(&self, prefix: &str) -> Result<Vec<String>, StoreError> {
        directory_of_prefix(prefix)?;
        let (mut found, prefix) = (Vec::new(), format!("docs/{prefix}"));
        let listed = self.inner.each_object(&prefix, |path, _| {
            let path = path.strip_prefix("docs/");
            found.extend(path.filter(|path| check_document_path(path).is_ok()).map(str::to_owned));
        });
        listed.await?;
        found.sort_unstable();
        Ok(found)
    }

    async fn get_document(&self, path: &str) -> Result<Option<Bytes>, StoreError> {
        check_document_path(path)?;
        let Some(object) = self.inner.get_object(&format!("docs/{path}")).await? else {
            return Ok(None);
        };
        let read = read_limited(object.body, limits::DOCUMENT_BYTES).await;
        let bytes = read.map_err(|source| self.inner.broken_off(source))?;
        check_document_size(path, bytes.len() as u64)?;
        Ok(Some(bytes))
    }
}

impl S3StoreInner {
    fn failed(&self, error: impl Into<RequestError>, action: &'static str) -> StoreError {
        error.into().into_store_error(&self.url, action)
    }

    /// The error of an answer that ended early.
    fn broken_off(&self, source: std::io::Error) -> StoreError {
        let source = Box::new(source);
        StoreError::Unanswered { store: self.url.clone(), action: "read from", source }
    }

    /// Size and age of an object; `None` if it does not exist.
    async fn head(&self, path: &str) -> Result<Option<ObjectHead>, StoreError> {
        let request = self.client.head_object().bucket(&self.location.bucket);
        let answer = request.key(self.location.key(path)).send().await;
        match answer.map_err(RequestError::from) {
            Ok(found) => {
                let size = found.content_length().and_then(|size| u64::try_from(size).ok());
                let modified = time(found.last_modified());
                Ok(Some(ObjectHead { size_bytes: size.unwrap_or(0), modified }))
            }
            Err(error) if error.answer().is_some_and(error::ServiceAnswer::is_no_object) => {
                Ok(None)
            }
            Err(error) => Err(self.failed(error, "read from")),
        }
    }

    /// Begins to read an object; `None` if it does not exist.
    async fn get_object(&self, path: &str) -> Result<Option<GetObjectOutput>, StoreError> {
        let request = self.client.get_object().bucket(&self.location.bucket);
        let answer = request.key(self.location.key(path)).send().await;
        match answer.map_err(RequestError::from) {
            Ok(object) => Ok(Some(object)),
            Err(error) if error.answer().is_some_and(error::ServiceAnswer::is_no_object) => {
                Ok(None)
            }
            Err(error) => Err(self.failed(error, "read from")),
        }
    }

    /// Begins to read a blob.
    async fn get_blob(&self, digest: &Digest) -> Result<GetObjectOutput, StoreError> {
        match self.get_object(&blob_path(digest)).await? {
            Some(object) => Ok(object),
            None => Err(self.missing_error(digest).await?),
        }
    }

    /// The error for an absent blob: damaged if it was quarantined, missing otherwise.
    async fn missing_error(&self, digest: &Digest) -> Result<StoreError, StoreError> {
        let (digest, store) = (*digest, self.identity.clone());
        Ok(match self.hash_object(&damaged_path(&digest)).await? {
            Some(found) => StoreError::Corrupt { digest, found, store },
            None => StoreError::Missing { digest, store },
        })
    }

    /// The digest of an object's content; `None` if it does not exist.
    async fn hash_object(&self, path: &str) -> Result<Option<Digest>, StoreError> {
        let Some(object) = self.get_object(path).await? else { return Ok(None) };
        let (mut body, mut hasher) = (object.body, DigestHasher::default());
        let failed = |error| self.broken_off(std::io::Error::other(error));
        while let Some(bytes) = body.try_next().await.map_err(failed)? {
            hasher.update(&bytes);
        }
        Ok(Some(hasher.finish()))
    }
}

/// The time that a service names; now if it names none.
fn time(named: Option<&DateTime>) -> SystemTime {
    named.and_then(|time| SystemTime::try_from(*time).ok()).unwrap_or_else(SystemTime::now)
}

fn blob_path(digest: &Digest) -> String {
    let hex = digest.hex();
    format!("blobs/{}/{}", &hex[..2], &hex[2..])
}

fn damaged_path(digest: &Digest) -> String {
    format!("damaged/{}", digest.hex())
}

/// Reads a body of at most `max_bytes`, or one byte more to show that it is larger.
async fn read_limited(body: ByteStream, max_bytes: u64) -> std::io::Result<Bytes> {
    let mut bytes = BytesMut::with_capacity(READ_BUFFER_BYTES);
    let mut reader = body.into_async_read().take(max_bytes.saturating_add(1));
    while reader.read_buf(&mut bytes).await? > 0 {}
    Ok(bytes.freeze())
}
