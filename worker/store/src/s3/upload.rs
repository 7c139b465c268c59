//! Writes of objects: one request for small content, parts for large files.

use std::io;
use std::path::Path;
use std::time::Duration;

use aws_sdk_s3::config::timeout::TimeoutConfig;
use aws_sdk_s3::config::{Builder, Config};
use aws_sdk_s3::primitives::{ByteStream, Length};
use aws_sdk_s3::types::{ChecksumAlgorithm, CompletedMultipartUpload, CompletedPart};
use bytes::Bytes;
use data_encoding::BASE64;
use futures_util::{TryFutureExt as _, TryStreamExt as _};
use rollout_base::supervise;
use rollout_protocol::blob::{BlobRef, MediaType};
use rollout_protocol::digest::Digest;
use tokio::sync::{Semaphore, SemaphorePermit};

use super::super::age::needs_renewal;
use super::super::{BlobContent, StoreError};
use super::error::{RequestError, ServiceAnswer};
use super::file_parts::{FileContent, FilePart, LargeFile, UploadError, changed, read_file};
use super::{ObjectHead, S3StoreInner, blob_path};

/// Content up to this size is sent without asking first whether it is present: the service refuses
/// it then. A service may refuse without reading the body, which breaks the connection if the body
/// is larger than the buffers of the system.
const UNASKED_BYTES: usize = 32 * 1024;

/// Files above this size are sent in parts, so that a lost connection repeats little.
const SINGLE_PUT_BYTES: u64 = 16 * 1024 * 1024;

/// Parts of one file that are sent concurrently.
const PARALLEL_PARTS: usize = 4;

/// Requests with content that a store sends concurrently: bounds connections and memory whatever
/// the number of executions that end at once.
const PARALLEL_UPLOADS: usize = 32;

/// Buffer for reading files.
const BUFFER_BYTES: usize = 256 * 1024;

/// Limit on sending a large file or a part and on the answer. All of [`PARALLEL_UPLOADS`] may be
/// parts that share a slow connection: at 12 Mbit/s they arrive in this time.
const SEND_TIMEOUT: Duration = Duration::from_secs(180);

/// Attempts while another request creates the same object.
const CONFLICT_ATTEMPTS: u32 = 5;

/// Permits of the requests that send content.
#[derive(Debug)]
pub(super) struct UploadPermits(Semaphore);

impl Default for UploadPermits {
    fn default() -> Self {
        Self(Semaphore::new(PARALLEL_UPLOADS))
    }
}

impl UploadPermits {
    async fn acquire(&self) -> SemaphorePermit<'_> {
        self.0.acquire().await.expect("it is never closed")
    }
}

impl ObjectHead {
    /// Whether content of this length need not be sent again: the object has its length, and is
    /// young enough.
    fn is_good(&self, size_bytes: u64) -> bool {
        self.size_bytes == size_bytes && !needs_renewal(self.modified)
    }
}

impl S3StoreInner {
    /// Stores content.
    pub(super) async fn put(&self, content: BlobContent) -> Result<BlobRef, StoreError> {
        match content {
            BlobContent::Bytes(bytes, media_type) => self.put_bytes(bytes, media_type).await,
            BlobContent::File(file, media_type) => self.put_file(&file, media_type).await,
            BlobContent::HashedFile(file, media_type, digest) => {
                self.put_hashed_file(&file, media_type, digest).await
            }
        }
    }

    /// Stores a small blob.
    pub(super) async fn put_bytes(
        &self,
        bytes: Bytes,
        media_type: MediaType,
    ) -> Result<BlobRef, StoreError> {
        let blob = BlobRef::for_bytes(&bytes, media_type);
        let path = blob_path(&blob.digest);
        let unasked = bytes.len() <= UNASKED_BYTES;
        for _ in 0..CONFLICT_ATTEMPTS {
            if self.damaged.contains(&blob.digest) {
                break;
            }
            if unasked && self.put_object(&path, &bytes, &blob.digest, media_type, true).await? {
                return Ok(blob);
            }
            match self.head(&path).await? {
                Some(found) if found.is_good(blob.size_bytes) => return Ok(blob),
                // The service has just refused it because another request is creating it.
                None if unasked => {}
                // Absent, old, or of a wrong length and so damaged.
                None | Some(_) => break,
            }
        }
        let repair = self.damaged.begin_repair().await;
        self.put_object(&path, &bytes, &blob.digest, media_type, false).await?;
        repair.finish(&blob.digest);
        Ok(blob)
    }

    /// Stores a file.
    pub(super) async fn put_file(
        &self,
        file: &Path,
        media_type: MediaType,
    ) -> Result<BlobRef, StoreError> {
        let path = file.to_owned();
        let large = match supervise::blocking(move || read_file(path)).await? {
            FileContent::Small(bytes) => return self.put_bytes(bytes, media_type).await,
            FileContent::Large(large) => large,
        };
        match self.put_large_file(&large, media_type).await {
            Ok(()) => Ok(large.blob(media_type)),
            Err(UploadError::Store(error)) => Err(error),
            Err(UploadError::Changed) => Err(changed(file)),
        }
    }

    /// Stores a file that had this digest when it was written.
    async fn put_hashed_file(
        &self,
        file: &Path,
        media_type: MediaType,
        digest: Digest,
    ) -> Result<BlobRef, StoreError> {
        let found = tokio::fs::metadata(file).await;
        let found = found.map_err(|error| StoreError::io("open", file, error))?;
        if found.len() <= SINGLE_PUT_BYTES {
            return self.put_file(file, media_type).await;
        }
        let large = LargeFile { path: file.to_owned(), digest, size_bytes: found.len() };
        match self.put_large_file(&large, media_type).await {
            Ok(()) => Ok(large.blob(media_type)),
            Err(UploadError::Store(error)) => Err(error),
            Err(UploadError::Changed) => self.put_file(file, media_type).await,
        }
    }

    async fn put_large_file(
        &self,
        file: &LargeFile,
        media_type: MediaType,
    ) -> Result<(), UploadError> {
        let path = blob_path(&file.digest);
        let damaged = self.damaged.contains(&file.digest);
        let found = self.head(&path).await?;
        if !damaged && found.is_some_and(|found| found.is_good(file.size_bytes)) {
            return Ok(());
        }
        let repair = match damaged {
            true => Some(self.damaged.begin_repair().await),
            false => None,
        };
        if file.size_bytes > SINGLE_PUT_BYTES {
            self.put_parts(&path, file, media_type).await?;
        } else {
            self.put_whole_file(&path, file, media_type).await?;
        }
        if let Some(repair) = repair {
            repair.finish(&file.digest);
        }
        Ok(())
    }

    /// Creates a small object unless it exists; returns whether it was created.
    pub(super) async fn create_object(
        &self,
        path: &str,
        bytes: Bytes,
        media_type: MediaType,
    ) -> Result<bool, StoreError> {
        let digest = Digest::sha256(&bytes);
        for _ in 0..CONFLICT_ATTEMPTS {
            if self.put_object(path, &bytes, &digest, media_type, true).await? {
                return Ok(true);
            }
            if self.head(path).await?.is_some() {
                return Ok(false);
            }
            // Another request was creating or removing it, and has not.
        }
        let source = "other requests keep writing the same object".into();
        Err(StoreError::Unanswered { store: self.url.clone(), action: "write to", source })
    }

    /// Writes an object in one request. With `if_absent` an existing one stays, if the service
    /// knows the condition; then the answer is `false`.
    async fn put_object(
        &self,
        path: &str,
        bytes: &Bytes,
        digest: &Digest,
        media_type: MediaType,
        if_absent: bool,
    ) -> Result<bool, StoreError> {
        let _permit = self.uploads.acquire().await;
        let sent = self
            .client
            .put_object()
            .bucket(&self.location.bucket)
            .key(self.location.key(path))
            .content_type(media_type.as_str())
            .checksum_sha256(BASE64.encode(digest.as_bytes()))
            .set_if_none_match(if_absent.then(|| "*".to_owned()))
            .body(ByteStream::from(bytes.clone()))
            .customize()
            .disable_payload_signing()
            .send()
            .await;
        match sent.map_err(RequestError::from) {
            Ok(_) => Ok(true),
            Err(error) if error.answer().is_some_and(ServiceAnswer::is_conflict) => Ok(false),
            Err(error) => Err(self.failed(error, "write to")),
        }
    }

    async fn put_whole_file(
        &self,
        path: &str,
        file: &LargeFile,
        media_type: MediaType,
    ) -> Result<(), StoreError> {
        let _permit = self.uploads.acquire().await;
        let body = section(&file.path, 0, file.size_bytes).await?;
        let sent = self
            .client
            .put_object()
            .bucket(&self.location.bucket)
            .key(self.location.key(path))
            .content_type(media_type.as_str())
            .checksum_sha256(BASE64.encode(file.digest.as_bytes()))
            .body(body)
            .customize()
            .disable_payload_signing()
            .config_override(sending_content())
            .send()
            .await;
        sent.map(drop).map_err(|error| self.failed(error, "write to"))
    }

    /// Sends a file in parts, each of which is read twice in a row, so once from the disk: to hash it,
    /// and to send it without holding it in memory. An upload that fails is aborted; one whose
    /// process is killed is left to the bucket's rules.
    async fn put_parts(
        &self,
        path: &str,
        file: &LargeFile,
        media_type: MediaType,
    ) -> Result<(), UploadError> {
        let (bucket, key) = (&self.location.bucket, self.location.key(path));
        let request = self.client.create_multipart_upload().bucket(bucket).key(&key);
        let created = request
            .content_type(media_type.as_str())
            .checksum_algorithm(ChecksumAlgorithm::Sha256)
            .send()
            .await
            .map_err(|error| self.failed(error, "write to"))?;
        let upload = created.upload_id().unwrap_or_default().to_owned();
        let sent = self.send_parts(&key, &upload, file).await;
        if sent.is_err() {
            let request = self.client.abort_multipart_upload().bucket(bucket).key(&key);
            if let Err(error) = request.upload_id(&upload).send().await {
                let error = self.failed(error, "write to");
                tracing::debug!(
                    "cannot abort an upload: {}",
                    rollout_base::backoff::error_chain(&error)
                );
            }
        }
        sent
    }

    async fn send_parts(
        &self,
        key: &str,
        upload: &str,
        file: &LargeFile,
    ) -> Result<(), UploadError> {
        let parts = file.part_hasher().await?.parts();
        let sends = parts.map_ok(|part| self.send_part(key, upload, &file.path, part).err_into());
        let sent = sends.try_buffered(PARALLEL_PARTS).try_collect::<Vec<_>>().await?;
        self.client
            .complete_multipart_upload()
            .bucket(&self.location.bucket)
            .key(key)
            .upload_id(upload)
            .multipart_upload(CompletedMultipartUpload::builder().set_parts(Some(sent)).build())
            .customize()
            .config_override(sending_content())
            .send()
            .await
            .map(drop)
            .map_err(|error| self.failed(error, "write to").into())
    }

    async fn send_part(
        &self,
        key: &str,
        upload: &str,
        file: &Path,
        part: FilePart,
    ) -> Result<CompletedPart, StoreError> {
        let _permit = self.uploads.acquire().await;
        let FilePart { index, start, length, digest } = part;
        let body = section(file, start, length).await?;
        let number = i32::try_from(index + 1).expect("at most 10,000 parts");
        let checksum = BASE64.encode(digest.as_bytes());
        let sent = self
            .client
            .upload_part()
            .bucket(&self.location.bucket)
            .key(key)
            .upload_id(upload)
            .part_number(number)
            .checksum_sha256(&checksum)
            .body(body)
            .customize()
            .disable_payload_signing()
            .config_override(sending_content())
            .send()
            .await
            .map_err(|error| self.failed(error, "write to"))?;
        Ok(CompletedPart::builder()
            .part_number(number)
            .checksum_sha256(checksum)
            .set_e_tag(sent.e_tag().map(str::to_owned))
            .build())
    }
}

/// Part of a file as a body that is read while it is sent, and again if it is sent again.
async fn section(path: &Path, start: u64, length: u64) -> Result<ByteStream, StoreError> {
    let body = ByteStream::read_from()
        .path(path)
        .offset(start)
        .length(Length::Exact(length))
        .buffer_size(BUFFER_BYTES)
        .build()
        .await;
    body.map_err(|error| StoreError::io("read", path, io::Error::other(error)))
}

/// Settings of a request that sends a large file or a part, or waits until parts are assembled.
fn sending_content() -> Builder {
    let timeouts = TimeoutConfig::builder().read_timeout(SEND_TIMEOUT);
    Config::builder().timeout_config(timeouts.build())
}
