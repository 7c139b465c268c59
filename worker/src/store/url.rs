//! Addresses of blob stores, and the one place that opens them.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use super::{BlobStore, FsStore, StoreError};

/// The address of a blob store: a path, or `file://` and an absolute path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreUrl {
    /// A store in a directory.
    Directory(PathBuf),
}

/// Text that is no address of a blob store.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadStoreUrl {
    /// A file URL with a relative path.
    #[error("`{0}`: a file URL has an absolute path, `file:///path`")]
    Relative(String),
    /// A store in S3.
    #[error("stores in S3 are not supported yet: give a directory that all hosts share")]
    S3,
    /// Another scheme.
    #[error("`{0}`: expected a directory or a `file://` URL as a blob store")]
    Scheme(String),
}

impl FromStr for StoreUrl {
    type Err = BadStoreUrl;

    fn from_str(text: &str) -> Result<Self, BadStoreUrl> {
        let Some((scheme, rest)) = text.split_once("://") else {
            return Ok(Self::Directory(PathBuf::from(text)));
        };
        match scheme {
            "file" if rest.starts_with('/') => Ok(Self::Directory(PathBuf::from(rest))),
            "file" => Err(BadStoreUrl::Relative(text.to_owned())),
            "s3" => Err(BadStoreUrl::S3),
            _ => Err(BadStoreUrl::Scheme(text.to_owned())),
        }
    }
}

impl From<PathBuf> for StoreUrl {
    fn from(directory: PathBuf) -> Self {
        Self::Directory(directory)
    }
}

impl StoreUrl {
    /// The directory of the store.
    pub fn directory(&self) -> &Path {
        match self {
            Self::Directory(directory) => directory,
        }
    }
}

/// Opens a store. A store in a directory is created if it does not exist.
///
/// # Errors
/// [`StoreError`]; [`StoreError::Unusable`] when a newer version wrote the store.
pub async fn open(url: &StoreUrl) -> Result<Arc<dyn BlobStore>, StoreError> {
    match url {
        StoreUrl::Directory(directory) => Ok(Arc::new(FsStore::open(directory).await?)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_are_directories() {
        let good = |text: &str| text.parse::<StoreUrl>().expect(text).directory().to_owned();
        assert_eq!(good("blobs"), PathBuf::from("blobs"));
        assert_eq!(good("file:///shared/blobs"), PathBuf::from("/shared/blobs"));
        for bad in ["file://blobs", "s3://bucket/x", "http://x/y"] {
            assert!(bad.parse::<StoreUrl>().is_err(), "{bad}");
        }
    }
}
