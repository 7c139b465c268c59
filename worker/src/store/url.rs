//! URLs of blob stores, and the only function that opens stores.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use super::{BlobStore, FsStore, MemoryStore, StoreError};

/// The URL of a store in memory.
const MEMORY: &str = "memory:";

/// The URL of a blob store: a path, `file://` and an absolute path, or `memory:`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreUrl {
    /// A store in a directory.
    Directory(PathBuf),
    /// A store in memory, which exists as long as its handles.
    Memory,
}

/// Text that is not a URL of a blob store.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidStoreUrl {
    /// A file URL with a relative path.
    #[error("`{0}`: a file URL needs an absolute path: `file:///path`")]
    Relative(String),
    /// A store in S3.
    #[error("stores in S3 are not supported yet: use a directory that all hosts share")]
    S3,
    /// Another scheme.
    #[error("`{0}`: expected a directory or a `file://` URL as a blob store")]
    Scheme(String),
}

impl FromStr for StoreUrl {
    type Err = InvalidStoreUrl;

    fn from_str(text: &str) -> Result<Self, InvalidStoreUrl> {
        if text == MEMORY {
            return Ok(Self::Memory);
        }
        let Some((scheme, rest)) = text.split_once("://") else {
            return Ok(Self::Directory(PathBuf::from(text)));
        };
        match scheme {
            "file" if rest.starts_with('/') => Ok(Self::Directory(PathBuf::from(rest))),
            "file" => Err(InvalidStoreUrl::Relative(text.to_owned())),
            "s3" => Err(InvalidStoreUrl::S3),
            _ => Err(InvalidStoreUrl::Scheme(text.to_owned())),
        }
    }
}

impl From<PathBuf> for StoreUrl {
    fn from(directory: PathBuf) -> Self {
        Self::Directory(directory)
    }
}

impl StoreUrl {
    /// The directory of the store, if it has one.
    pub fn directory(&self) -> Option<&Path> {
        match self {
            Self::Directory(directory) => Some(directory),
            Self::Memory => None,
        }
    }
}

/// Opens a store. A store in a directory is created if it does not exist; one in memory is always
/// new.
///
/// # Errors
/// [`StoreError`]; [`StoreError::Unusable`] when a newer version wrote the store.
pub async fn open(url: &StoreUrl) -> Result<Arc<dyn BlobStore>, StoreError> {
    match url {
        StoreUrl::Directory(directory) => Ok(Arc::new(FsStore::open(directory).await?)),
        StoreUrl::Memory => Ok(Arc::new(MemoryStore::default())),
    }
}

#[cfg(test)]
mod tests {
    use rollout_protocol::blob::MediaType;

    use super::*;

    #[test]
    fn store_url_with_other_scheme_is_refused() {
        let good = |text: &str| text.parse::<StoreUrl>().expect(text);
        assert_eq!(good("blobs"), PathBuf::from("blobs").into());
        assert_eq!(good("file:///shared/blobs"), PathBuf::from("/shared/blobs").into());
        assert_eq!(good("./memory:"), PathBuf::from("./memory:").into());
        assert_eq!(good("memory:"), StoreUrl::Memory);
        assert_eq!(good("memory:").directory(), None);
        for bad in ["file://blobs", "s3://bucket/x", "http://x/y"] {
            assert!(bad.parse::<StoreUrl>().is_err(), "{bad}");
        }
    }

    #[tokio::test]
    async fn memory_stores_opened_twice_share_nothing() {
        let [one, other] = [open(&StoreUrl::Memory).await, open(&StoreUrl::Memory).await];
        let (one, other) = (one.expect("a store"), other.expect("a store"));
        let blob = one.put_bytes("text".into(), MediaType::Text).await.expect("stored");
        assert!(one.contains(&blob.digest).await.expect("asked"));
        assert!(!other.contains(&blob.digest).await.expect("asked"));
        assert_ne!(one.identity(), other.identity());
    }
}
