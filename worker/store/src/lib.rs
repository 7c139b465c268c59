//! Blobs, archives and git repositories, and what a process owns on its host.
//!
//! * the root: blob stores, immutable bytes named by their SHA-256, behind one contract ([`BlobStore`])
//! * [`archive`]: deterministic tar archives of directories, and safe reading of hostile ones
//! * [`git`]: the only place that runs git; bare repositories and bundles
//! * [`host`]: ownership of resources on a host, proofs of death, worker directories
//!
//! # Requirements for every implementation
//! * A blob that [`BlobStore::put_file`] or [`BlobStore::put_bytes`] returned is durable and
//!   complete.
//! * Bytes are verified on write and on read; bytes that do not match their digest are never
//!   returned.
//! * Storing content that is already present is cheap and adds nothing.
//! * Documents ([`BlobStore::put_document`]) have separate paths, are small, and appear atomically.
//! * A blob has a modification time. Storing content that is present sets it to now when it is older
//!   than [`limits::BLOB_RENEWAL`], so that a collection of unneeded blobs, which removes by age,
//!   keeps what a run has just stored.

mod age;
pub mod archive;
mod cache;
#[cfg(any(test, feature = "testing"))]
pub mod contract;
mod copy;
pub mod fs;
pub mod git;
pub mod host;
mod identity;
mod json;
mod memory;
#[cfg(feature = "s3")]
pub mod s3;
mod s3_location;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod url;
mod verify;

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use async_trait::async_trait;
use bytes::Bytes;
use rollout_base::shortage::Shortage;
use rollout_base::shown_path::shown;
use rollout_protocol::blob::{BlobRef, MediaType};
use rollout_protocol::digest::Digest;
use rollout_protocol::limits;
use tokio::io::AsyncRead;

pub use self::cache::CachedStore;
pub use self::fs::FsStore;
pub use self::json::{get_json, put_json};
pub use self::memory::MemoryStore;
#[cfg(feature = "s3")]
pub use self::s3::S3Store;
pub use self::s3_location::{InvalidS3Location, S3Location};
pub use self::url::{InvalidStoreUrl, StoreUrl, open, open_existing};
pub use self::verify::VerifyingReader;

/// Stores blobs.
#[async_trait]
pub trait BlobStore: Send + Sync + fmt::Debug {
    /// The identity of the store: two handles with the same identity see the same blobs.
    fn identity(&self) -> &str;

    /// The directory on this host that holds the blobs, if there is one.
    fn directory(&self) -> Option<&Path> {
        None
    }

    /// Stores a small blob.
    ///
    /// # Errors
    /// [`StoreError`].
    async fn put_bytes(&self, bytes: Bytes, media_type: MediaType) -> Result<BlobRef, StoreError>;

    /// Stores the content of a local file. The file may be linked or copied, so it must not be
    /// changed afterwards; it is not removed, so that storing it can be retried.
    ///
    /// # Errors
    /// [`StoreError`].
    async fn put_file(&self, file: &Path, media_type: MediaType) -> Result<BlobRef, StoreError>;

    /// Stores several contents, all durable when this returns. Cheaper than one by one if a store
    /// pays per sync. References have the order of the contents.
    ///
    /// # Errors
    /// [`StoreError`]; some of the contents may have been stored then.
    async fn put_many(&self, contents: Vec<BlobContent>) -> Result<Vec<BlobRef>, StoreError> {
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
        Ok(blobs)
    }

    /// Whether the blob is present (its content is checked on read, not here).
    ///
    /// # Errors
    /// [`StoreError`].
    async fn contains(&self, digest: &Digest) -> Result<bool, StoreError>;

    /// Whether a caller can rely on the blob as if it had just stored it: it is present, and its
    /// modification time was renewed if that was needed. Otherwise the caller has to store the
    /// content.
    ///
    /// # Errors
    /// [`StoreError`].
    async fn renew(&self, digest: &Digest) -> Result<bool, StoreError>;

    /// Size and modification time of a blob; `None` if it is absent.
    ///
    /// # Errors
    /// [`StoreError`].
    async fn stat_blob(&self, digest: &Digest) -> Result<Option<StoredBlob>, StoreError>;

    /// The blobs whose digest begins with this byte, in any order: 256 calls list the store.
    ///
    /// # Errors
    /// [`StoreError`].
    async fn list_blobs(&self, first_byte: u8) -> Result<Vec<StoredBlob>, StoreError>;

    /// Digests of the blobs that were found damaged and moved aside, ascending. Some may have been
    /// stored again since.
    ///
    /// # Errors
    /// [`StoreError`].
    async fn list_damaged(&self) -> Result<Vec<Digest>, StoreError>;

    /// Removes a blob unless it was modified after `limit`, which is checked again immediately
    /// before. Returns whether it was removed.
    ///
    /// # Errors
    /// [`StoreError`].
    async fn remove_blob(&self, digest: &Digest, limit: SystemTime) -> Result<bool, StoreError>;

    /// Removes a named document; returns whether it existed.
    ///
    /// # Errors
    /// [`StoreError`].
    async fn remove_document(&self, path: &str) -> Result<bool, StoreError>;

    /// Removes the store itself, which must have no blobs and no documents. Its handles are
    /// useless afterwards.
    ///
    /// # Errors
    /// [`StoreError`]; [`StoreError::InUse`] when it has blobs or documents, or a process is
    /// writing to it.
    async fn remove_store(&self) -> Result<(), StoreError>;

    /// Reads a whole small blob.
    ///
    /// # Errors
    /// [`StoreError`]; [`StoreError::TooLarge`] if it exceeds `max_bytes`.
    async fn get_bytes(&self, digest: &Digest, max_bytes: u64) -> Result<Bytes, StoreError>;

    /// Writes a blob to a new local file, which is verified and complete when this returns.
    ///
    /// # Errors
    /// [`StoreError`]; the file does not exist then.
    async fn get_file(&self, digest: &Digest, to: &Path) -> Result<(), StoreError>;

    /// Streams a blob. The reader fails at its end if the bytes do not match the digest.
    ///
    /// # Errors
    /// [`StoreError`].
    async fn get(&self, digest: &Digest) -> Result<Box<dyn AsyncRead + Send + Unpin>, StoreError>;

    /// Creates a small named document if it does not exist; returns whether it was created. Of
    /// several racing calls, one wins. The document is durable in either case.
    ///
    /// A path is relative and plain: at most 1,024 bytes of `[A-Za-z0-9._-]` in components of at
    /// most 255 bytes that do not begin with a dot, separated by single `/`.
    ///
    /// # Errors
    /// [`StoreError`].
    async fn put_document(&self, path: &str, bytes: Bytes) -> Result<bool, StoreError>;

    /// Whether one of several racing calls of [`put_document`](Self::put_document) wins for sure.
    /// Some services ignore the condition that an object must be new; on them the last call may win
    /// after others have returned `true`.
    ///
    /// # Errors
    /// [`StoreError`].
    async fn has_exclusive_documents(&self) -> Result<bool, StoreError> {
        Ok(true)
    }

    /// Names of the documents whose path starts with `prefix`, ascending. A prefix may end anywhere
    /// in a path; the empty one lists everything.
    ///
    /// # Errors
    /// [`StoreError`].
    async fn list_documents(&self, prefix: &str) -> Result<Vec<String>, StoreError>;

    /// Reads a named document; `None` if it does not exist.
    ///
    /// # Errors
    /// [`StoreError`].
    async fn get_document(&self, path: &str) -> Result<Option<Bytes>, StoreError>;
}

/// A blob in a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredBlob {
    /// Its name.
    pub digest: Digest,
    /// Length of what is stored, which may be damaged.
    pub size_bytes: u64,
    /// When it was stored or renewed, by the clock of the file system or service. One that does
    /// not tell it is as new as can be.
    pub modified: SystemTime,
}

/// Content to store.
#[derive(Debug, Clone)]
pub enum BlobContent {
    /// Bytes in memory.
    Bytes(Bytes, MediaType),
    /// A local file, under the conditions of [`BlobStore::put_file`].
    File(PathBuf, MediaType),
    /// The same with the digest that its content had when it was written: a store can look for the
    /// blob before it reads the file, and reads it once. A file whose content has changed since is
    /// stored under the digest of what it has now.
    HashedFile(PathBuf, MediaType, Digest),
}

impl BlobContent {
    /// A local file, with its digest if that is known.
    pub fn of_file(file: PathBuf, media_type: MediaType, digest: Option<Digest>) -> Self {
        match digest {
            Some(digest) => Self::HashedFile(file, media_type, digest),
            None => Self::File(file, media_type),
        }
    }
}

/// Errors of blob stores.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The blob is not in the store.
    #[error("blob {digest} is not in the store {store}")]
    Missing {
        /// The blob.
        digest: Digest,
        /// The store.
        store: String,
    },
    /// The stored bytes do not match the digest.
    #[error("blob {digest} in the store {store} is damaged: its content has digest {found}")]
    Corrupt {
        /// The blob.
        digest: Digest,
        /// Digest of the content.
        found: Digest,
        /// The store.
        store: String,
    },
    /// The blob is larger than the reader allows.
    #[error("blob {digest} has {size_bytes} bytes, at most {max_bytes} are accepted here")]
    TooLarge {
        /// The blob.
        digest: Digest,
        /// Its size.
        size_bytes: u64,
        /// The limit.
        max_bytes: u64,
    },
    /// A document path that is not relative, plain and short.
    #[error("`{path}` is not a valid document path")]
    BadPath {
        /// The path.
        path: String,
    },
    /// A document above the size limit.
    #[error("document {path} has {size_bytes} bytes, at most {max_bytes} are allowed")]
    DocumentTooLarge {
        /// Its path.
        path: String,
        /// Its size.
        size_bytes: u64,
        /// The limit.
        max_bytes: u64,
    },
    /// A value or blob that is not the JSON document it should be.
    #[error("{what} is not the expected JSON document")]
    Json {
        /// The value or blob.
        what: String,
        /// The parse error.
        #[source]
        source: serde_json::Error,
    },
    /// The path is not a store that this version can use.
    #[error("{path} is not a usable blob store: {reason}")]
    Unusable {
        /// The path.
        path: String,
        /// The reason.
        reason: String,
    },
    /// The service of the store did not answer, or answered that it cannot at present.
    #[error("cannot {action} the blob store {store}: no answer")]
    Unanswered {
        /// URL of the store.
        store: String,
        /// The failed action, as an infinitive.
        action: &'static str,
        /// The cause.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The service of the store refused a request: wrong credentials, no such bucket, …
    #[error("cannot {action} the blob store {store}: {reason}")]
    Refused {
        /// URL of the store.
        store: String,
        /// The failed action, as an infinitive.
        action: &'static str,
        /// The answer of the service.
        reason: String,
    },
    /// The store has content or users, so it cannot be removed.
    #[error("cannot remove the blob store {store}: {reason}")]
    InUse {
        /// The store.
        store: String,
        /// The reason.
        reason: &'static str,
    },
    /// There is no store at this place.
    #[error("there is no blob store at {url}")]
    Absent {
        /// URL of the place.
        url: String,
    },
    /// The store is no longer at its path.
    #[error("the blob store {path} is missing: is its file system mounted?")]
    Unavailable {
        /// Its path.
        path: String,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// The disk is full.
    #[error("cannot write {path}")]
    DiskFull {
        /// The path.
        path: String,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// Another input or output error.
    #[error("cannot {action} {path}")]
    Io {
        /// The failed action, as an infinitive.
        action: &'static str,
        /// The path it failed on.
        path: String,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
}

impl StoreError {
    /// Whether a retry later could help.
    pub fn is_transient(&self) -> bool {
        match self {
            // Credentials and rights can be restored while results wait to be stored.
            Self::Refused { .. }
            | Self::Unanswered { .. }
            | Self::DiskFull { .. }
            | Self::Io { .. }
            | Self::Unavailable { .. } => true,
            Self::Missing { .. }
            | Self::Corrupt { .. }
            | Self::TooLarge { .. }
            | Self::DocumentTooLarge { .. }
            | Self::Json { .. }
            | Self::Unusable { .. }
            | Self::Absent { .. }
            | Self::InUse { .. }
            | Self::BadPath { .. } => false,
        }
    }

    /// Whether the store gave no answer, as opposed to a negative one.
    pub fn is_unanswered(&self) -> bool {
        matches!(self, Self::Io { .. } | Self::Unavailable { .. } | Self::Unanswered { .. })
    }

    /// The error of a reader of this blob: the store's, if the reader wrapped one.
    pub fn from_read(digest: &Digest, error: std::io::Error) -> Self {
        match error.downcast::<Self>() {
            Ok(error) => error,
            Err(source) => Self::Io { action: "read", path: format!("blob {digest}"), source },
        }
    }

    /// A system error; a separate variant if the disk is full.
    pub(crate) fn io(action: &'static str, path: &Path, source: std::io::Error) -> Self {
        let path = shown(path).to_string();
        match Shortage::from_io_error(&source) {
            Some(Shortage::Disk) => Self::DiskFull { path, source },
            _ => Self::Io { action, path, source },
        }
    }
}

/// The digest with these 64 hexadecimal digits; `None` for other text.
fn digest_of_hex(hex: &str) -> Option<Digest> {
    format!("sha256:{hex}").parse().ok()
}

/// Checks the path of a document.
pub(crate) fn check_document_path(path: &str) -> Result<(), StoreError> {
    let good = path.len() <= limits::ARCHIVE_PATH_BYTES
        && path.split('/').all(|component| {
            (1..=255).contains(&component.len())
                && !component.starts_with('.')
                && component.bytes().all(is_plain)
        });
    if good { Ok(()) } else { Err(StoreError::BadPath { path: limits::shorten(path.into(), 80) }) }
}

/// Checks a prefix of document paths and returns the directory that contains all of them.
pub(crate) fn directory_of_prefix(prefix: &str) -> Result<&str, StoreError> {
    let directory = prefix.rsplit_once('/').map_or("", |(directory, _)| directory);
    if !directory.is_empty() {
        check_document_path(directory)?;
    }
    if prefix.bytes().all(|byte| byte == b'/' || is_plain(byte)) && !prefix.starts_with('/') {
        Ok(directory)
    } else {
        Err(StoreError::BadPath { path: limits::shorten(prefix.into(), 80) })
    }
}

fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-')
}

/// Refuses documents above the size limit.
pub(crate) fn check_document_size(path: &str, size_bytes: u64) -> Result<(), StoreError> {
    let max_bytes = limits::DOCUMENT_BYTES;
    if size_bytes <= max_bytes {
        return Ok(());
    }
    Err(StoreError::DocumentTooLarge { path: path.to_owned(), size_bytes, max_bytes })
}
