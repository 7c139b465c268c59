//! JSON documents as blobs.

use bytes::Bytes;
use rollout_protocol::blob::{BlobRef, MediaType};
use rollout_protocol::digest::Digest;
use rollout_protocol::limits;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{BlobStore, StoreError};

/// Stores a value as a JSON document.
///
/// # Errors
/// [`StoreError`]; [`StoreError::TooLarge`] beyond [`limits::DOCUMENT_BYTES`], since it could not
/// be read back.
/// read it back.
pub async fn put_json<T: Serialize + Sync>(
    store: &dyn BlobStore,
    value: &T,
) -> Result<BlobRef, StoreError> {
    let bytes = serde_json::to_vec(value).map_err(|source| StoreError::Json {
        what: format!("a value of type {}", std::any::type_name::<T>()),
        source,
    })?;
    if bytes.len() as u64 > limits::DOCUMENT_BYTES {
        return Err(StoreError::TooLarge {
            digest: Digest::sha256(&bytes),
            size_bytes: bytes.len() as u64,
            max_bytes: limits::DOCUMENT_BYTES,
        });
    }
    store.put_bytes(Bytes::from(bytes), MediaType::Json).await
}

/// Reads a value stored by [`put_json`].
///
/// # Errors
/// [`StoreError`]; [`StoreError::Json`] if the blob is not the expected document.
pub async fn get_json<T: DeserializeOwned>(
    store: &dyn BlobStore,
    digest: &Digest,
) -> Result<T, StoreError> {
    let bytes = store.get_bytes(digest, limits::DOCUMENT_BYTES).await?;
    serde_json::from_slice(&bytes)
        .map_err(|source| StoreError::Json { what: format!("blob {digest}"), source })
}
