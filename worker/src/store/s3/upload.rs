//! Writes of objects: one request for small content, parts for large files.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use aws_sdk_s3::primitives::{ByteStream, Length};
use aws_sdk_s3::types::{ChecksumAlgorithm, CompletedMultipartUpload, CompletedPart};
use bytes::Bytes;
use data_encoding::BASE64;
use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use rollout_protocol::blob::{BlobRef, MediaType};
use rollout_protocol::digest::{Digest, DigestHasher};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::super::age::needs_renewal;
use super::super::{BlobContent, StoreError};
use super::error::{RequestError, ServiceAnswer};
use super::{ObjectHead, S3StoreInner, blob_path};
use crate::supervise;

/// Files up to this size are read into memory.
const SMALL_FILE_BYTES: u64 = 1024 * 1024;

/// Content up to this size is sent without asking first whether it is present: the service refuses
/// it then. A service may refuse without reading the body, which breaks the connection if the body
/// is larger than the buffers of the system.
const UNASKED_BYTES: usize = 32 * 1024;

/// Files above this size are sent in parts, so that a lost connection repeats little.
const SINGLE_PUT_BYTES: u64 = 16 * 1024 * 1024;

/// Size of a part, unless the file would have too many.
const PART_BYTES: u64 = 8 * 1024 * 1024;

/// Most parts of an object.
const MAX_PARTS: u64 = 10_000;

/// Parts of one file that are sent concurrently.
const PARALLEL_PARTS: usize = 4;

/// Requests with content that a store sends concurrently: bounds connections and memory whatever
/// the number of executions that end at once.
const PARALLEL_UPLOADS: usize = 32;

/// Buffer for reading files.
const BUFFER_BYTES: usize = 256 * 1024;

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

/// A file whose digests are known.
struct HashedFile {
    path: PathBuf,
    digest: Digest,
    size_bytes: u64,
    part_bytes: u64,
    /// Digests of its parts; empty if it is sent in one request.
    parts: Vec<Digest>,
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
        let hashed = match supervise::blocking(move || read_file(path)).await? {
            FileContent::Small(bytes) => return self.put_bytes(bytes, media_type).await,
            FileContent::Large(hashed) => hashed,
        };
        let (digest, size_bytes) = (hashed.digest, hashed.size_bytes);
        let path = blob_path(&digest);
        let blob = BlobRef { digest, size_bytes, media_type: Some(media_type) };
        let damaged = self.damaged.contains(&digest);
        let found = self.head(&path).await?;
        if !damaged && found.is_some_and(|found| found.is_good(size_bytes)) {
            return Ok(blob);
        }
        let repair = match damaged {
            true => Some(self.damaged.begin_repair().await),
            false => None,
        };
        if hashed.parts.is_empty() {
            self.put_whole_file(&path, &hashed, media_type).await?;
        } else {
            self.put_parts(&path, &hashed, media_type).await?;
        }
        if let Some(repair) = repair {
            repair.finish(&digest);
        }
        Ok(blob)
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
        file: &HashedFile,
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
            .send()
            .await;
        sent.map(drop).map_err(|error| self.failed(error, "write to"))
    }

    /// Sends a file in parts. An upload that fails is aborted; one whose process is killed is left
    /// to the bucket's rules.
    async fn put_parts(
        &self,
        path: &str,
        file: &HashedFile,
        media_type: MediaType,
    ) -> Result<(), StoreError> {
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
                tracing::debug!("cannot abort an upload: {}", crate::backoff::error_chain(&error));
            }
        }
        sent
    }

    async fn send_parts(
        &self,
        key: &str,
        upload: &str,
        file: &HashedFile,
    ) -> Result<(), StoreError> {
        let parts = file.parts.iter().enumerate();
        let sends: Vec<_> = parts
            .map(|(index, digest)| self.send_part(key, upload, file, index, *digest))
            .collect();
        let sent = stream::iter(sends).buffered(PARALLEL_PARTS).try_collect::<Vec<_>>().await?;
        self.client
            .complete_multipart_upload()
            .bucket(&self.location.bucket)
            .key(key)
            .upload_id(upload)
            .multipart_upload(CompletedMultipartUpload::builder().set_parts(Some(sent)).build())
            .send()
            .await
            .map(drop)
            .map_err(|error| self.failed(error, "write to"))
    }

    async fn send_part(
        &self,
        key: &str,
        upload: &str,
        file: &HashedFile,
        index: usize,
        digest: Digest,
    ) -> Result<CompletedPart, StoreError> {
        let _permit = self.uploads.acquire().await;
        let start = index as u64 * file.part_bytes;
        let length = file.part_bytes.min(file.size_bytes - start);
        let body = section(&file.path, start, length).await?;
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

/// The content of a file to store.
enum FileContent {
    Small(Bytes),
    Large(HashedFile),
}

/// Reads a small file, or hashes a large one.
fn read_file(path: PathBuf) -> Result<FileContent, StoreError> {
    let failed = |error| StoreError::io("read", &path, error);
    let mut file = File::open(&path).map_err(|error| StoreError::io("open", &path, error))?;
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Err(failed(io::Error::other("not a regular file")));
    }
    let size_bytes = metadata.len();
    if size_bytes <= SMALL_FILE_BYTES {
        let mut bytes = Vec::with_capacity(usize::try_from(size_bytes).unwrap_or(0));
        file.take(SMALL_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
        if bytes.len() as u64 > SMALL_FILE_BYTES {
            return Err(failed(io::Error::other("it grew while it was read")));
        }
        return Ok(FileContent::Small(Bytes::from(bytes)));
    }
    let part_bytes = PART_BYTES.max(size_bytes.div_ceil(MAX_PARTS));
    let in_parts = size_bytes > SINGLE_PUT_BYTES;
    let (digest, parts, read) = hash(&mut file, in_parts.then_some(part_bytes)).map_err(failed)?;
    if read != size_bytes {
        return Err(failed(io::Error::other("its size changed while it was read")));
    }
    Ok(FileContent::Large(HashedFile { path, digest, size_bytes, part_bytes, parts }))
}

/// The digest of a file, those of its parts, and the number of bytes.
fn hash(file: &mut File, part_bytes: Option<u64>) -> io::Result<(Digest, Vec<Digest>, u64)> {
    let mut buffer = vec![0; BUFFER_BYTES];
    let (mut whole, mut size, mut parts) = (DigestHasher::default(), 0_u64, Vec::new());
    let (mut part, mut part_size) = (DigestHasher::default(), 0_u64);
    loop {
        let room = part_bytes.map_or(u64::MAX, |bytes| bytes - part_size);
        let limit = buffer.len().min(usize::try_from(room).unwrap_or(usize::MAX));
        let read = match file.read(&mut buffer[..limit]) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            read => read?,
        };
        whole.update(&buffer[..read]);
        size += read as u64;
        if part_bytes.is_some() {
            part.update(&buffer[..read]);
            part_size += read as u64;
            if part_size > 0 && (read == 0 || Some(part_size) == part_bytes) {
                parts.push(std::mem::take(&mut part).finish());
                part_size = 0;
            }
        }
        if read == 0 {
            return Ok((whole.finish(), parts, size));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Seek as _, Write as _};

    use super::*;

    #[test]
    fn parts_of_file_cover_it_without_empty_one() {
        let mut file = tempfile::tempfile().expect("a file");
        let content: Vec<u8> = (0..1_000_u32).flat_map(u32::to_le_bytes).collect();
        file.write_all(&content).expect("written");
        for part_bytes in [1, 7, 1_000, 2_000, 4_000, 5_000] {
            file.rewind().expect("a file");
            let (whole, parts, size) = hash(&mut file, Some(part_bytes)).expect("readable");
            assert_eq!((whole, size), (Digest::sha256(&content), 4_000));
            let chunks = content.chunks(usize::try_from(part_bytes).expect("small"));
            assert!(chunks.map(Digest::sha256).eq(parts), "{part_bytes}");
        }
    }
}
