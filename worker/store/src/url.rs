//! URLs of blob stores, and the only functions that open stores.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use super::{BlobStore, FsStore, InvalidS3Location, MemoryStore, S3Location, StoreError, identity};

use rollout_base::shown_path::shown;

/// The URL of a store in memory.
const MEMORY: &str = "memory:";

/// The URL of a blob store: a path, `file://` and an absolute path, `s3://` and a bucket, or
/// `memory:`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreUrl {
    /// A store in a directory.
    Directory(PathBuf),
    /// A store in a bucket.
    S3(S3Location),
    /// A store in memory, which exists as long as its handles.
    Memory,
}

/// Text that is not a URL of a blob store.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidStoreUrl {
    /// A file URL with a relative path.
    #[error("`{0}`: a file URL needs an absolute path: `file:///path`")]
    Relative(String),
    /// A wrong URL of a store in S3.
    #[error(transparent)]
    S3(#[from] InvalidS3Location),
    /// Another scheme. The rest of the URL may have a password and is not repeated.
    #[error("`{0}://`: expected a directory, a `file://` or an `s3://` URL as a blob store")]
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
            "s3" => Ok(Self::S3(rest.parse()?)),
            _ => Err(InvalidStoreUrl::Scheme(scheme.to_owned())),
        }
    }
}

impl StoreUrl {
    /// The place in a text, in which a directory may be hidden.
    pub fn shown(&self) -> String {
        match self {
            Self::Directory(directory) => shown(directory).to_string(),
            Self::S3(_) | Self::Memory => self.to_string(),
        }
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory(directory) => directory.display().fmt(f),
            Self::S3(location) => location.fmt(f),
            Self::Memory => f.write_str(MEMORY),
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
            Self::S3(_) | Self::Memory => None,
        }
    }
}

/// Opens a store. A store in a directory or bucket is created if it does not exist; one in memory
/// is always new.
///
/// # Errors
/// [`StoreError`]; [`StoreError::Unusable`] when a newer version wrote the store, or this program
/// was built without support for it.
pub async fn open(url: &StoreUrl) -> Result<Arc<dyn BlobStore>, StoreError> {
    match url {
        StoreUrl::Directory(directory) => Ok(Arc::new(FsStore::open(directory).await?)),
        #[cfg(feature = "s3")]
        StoreUrl::S3(location) => Ok(Arc::new(super::S3Store::open(location.clone()).await?)),
        #[cfg(not(feature = "s3"))]
        StoreUrl::S3(location) => Err(StoreError::Unusable {
            path: location.to_string(),
            reason: "this program was built without the feature `s3`".to_owned(),
        }),
        StoreUrl::Memory => Ok(Arc::new(MemoryStore::default())),
    }
}

/// Opens a store that holds something of an earlier run; never creates one.
///
/// # Errors
/// [`StoreError`]; [`StoreError::Absent`] without a store at this place.
pub async fn open_existing(url: &StoreUrl) -> Result<Arc<dyn BlobStore>, StoreError> {
    let absent = || StoreError::Absent { url: url.shown() };
    match url {
        StoreUrl::Directory(directory) => {
            let exists = directory.join(identity::IDENTITY_FILE).exists();
            if exists { open(url).await } else { Err(absent()) }
        }
        #[cfg(feature = "s3")]
        StoreUrl::S3(location) => match super::S3Store::open_existing(location.clone()).await? {
            Some(store) => Ok(Arc::new(store)),
            None => Err(absent()),
        },
        #[cfg(not(feature = "s3"))]
        StoreUrl::S3(_) => open(url).await,
        StoreUrl::Memory => Err(absent()),
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
        assert!(matches!(good("s3://bucket/x"), StoreUrl::S3(_)));
        for text in ["blobs", "s3://bucket/x?endpoint=http%3A%2F%2Fhost%3A9000", "memory:"] {
            assert_eq!(good(text).to_string(), text);
        }
        for bad in ["file://blobs", "s3://", "s3://bucket/x?key=secret", "http://x/y"] {
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

    #[tokio::test]
    async fn store_absent_is_not_created() {
        let temp = tempfile::tempdir().expect("a directory");
        let url = StoreUrl::from(temp.path().join("blobs"));
        let opened = open_existing(&url).await;
        assert!(matches!(opened, Err(StoreError::Absent { .. })), "{opened:?}");
        assert!(!temp.path().join("blobs").exists());
        open(&url).await.expect("created");
        open_existing(&url).await.expect("opened");
    }
}
