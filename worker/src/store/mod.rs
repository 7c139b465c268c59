//! Blob stores: immutable bytes named by their SHA-256.
//!
//! # Obligations of every implementation
//! * A blob that [`BlobStore::put_file`] or [`BlobStore::put_bytes`] returned is durable and whole.
//! * Bytes are verified on write and on read; what does not match its digest is never returned.
//! * Storing content that is present is cheap and stores nothing twice.
//! * Documents ([`BlobStore::put_document`]) live at paths of their own, are small, and are replaced
//!   atomically.

use std::fmt;
use std::path::Path;

use async_trait::async_trait;
use bytes::Bytes;
use rollout_protocol::blob::{BlobRef, MediaType};
use rollout_protocol::digest::Digest;
use tokio::io::AsyncRead;

/// Stores blobs.
#[async_trait]
pub trait BlobStore: Send + Sync + fmt::Debug {
    /// The identity of the store: two handles with the same identity see the same blobs.
    fn identity(&self) -> &str;

    /// Stores a small blob.
    ///
    /// # Errors
    /// [`StoreError`].
    async fn put_bytes(&self, bytes: Bytes, media_type: MediaType) -> Result<BlobRef, StoreError>;

    /// Stores the content of a local file. The file may be linked, copied or moved away: it must
    /// not be changed afterwards.
    ///
    /// # Errors
    /// [`StoreError`].
    async fn put_file(&self, file: &Path, media_type: MediaType) -> Result<BlobRef, StoreError>;

    /// Whether the blob is present (its content is checked on read, not here).
    ///
    /// # Errors
    /// [`StoreError`].
    async fn contains(&self, digest: &Digest) -> Result<bool, StoreError>;

    /// Reads a small blob whole.
    ///
    /// # Errors
    /// [`StoreError`]; [`StoreError::TooLarge`] when it exceeds `max_bytes`.
    async fn get_bytes(&self, digest: &Digest, max_bytes: u64) -> Result<Bytes, StoreError>;

    /// Writes a blob to a new local file, verified and complete when this returns.
    ///
    /// # Errors
    /// [`StoreError`]; the file does not exist then.
    async fn get_file(&self, digest: &Digest, to: &Path) -> Result<(), StoreError>;

    /// Streams a blob. The reader fails at its end when the bytes do not match the digest.
    ///
    /// # Errors
    /// [`StoreError`].
    async fn get(&self, digest: &Digest) -> Result<Box<dyn AsyncRead + Send + Unpin>, StoreError>;

    /// Creates a small named document if it does not exist; whether it was created.
    ///
    /// # Errors
    /// [`StoreError`].
    async fn put_document(&self, path: &str, bytes: Bytes) -> Result<bool, StoreError>;

    /// Names of the documents whose path starts with `prefix`, ascending.
    ///
    /// # Errors
    /// [`StoreError`].
    async fn list_documents(&self, prefix: &str) -> Result<Vec<String>, StoreError>;

    /// Reads a named document.
    ///
    /// # Errors
    /// [`StoreError`]; `None` when there is none.
    async fn get_document(&self, path: &str) -> Result<Option<Bytes>, StoreError>;
}

/// Why a store could not do what it was asked for.
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
    /// The stored bytes are not what their name says.
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
        /// The bound.
        max_bytes: u64,
    },
    /// A document path that is not relative, plain and short.
    #[error("`{path}` is not a document path")]
    BadPath {
        /// The path.
        path: String,
    },
    /// The disk is full.
    #[error("no space left at {path}")]
    DiskFull {
        /// Where.
        path: String,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// Another input or output error.
    #[error("{action} {path}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: String,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
}

impl StoreError {
    /// Whether trying again later could help.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::DiskFull { .. } | Self::Io { .. } => true,
            Self::Missing { .. }
            | Self::Corrupt { .. }
            | Self::TooLarge { .. }
            | Self::BadPath { .. } => false,
        }
    }
}
