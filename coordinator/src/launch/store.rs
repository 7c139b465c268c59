//! The blob store of a run.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rollout_worker::store::{self, BlobStore, CachedStore, StoreError, StoreUrl};

use crate::results::files::store::{self as run_store, NoStore, StoreReference};

/// A cache of what is read from a store in a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreCache {
    /// Directory of the cache; it may be shared by processes.
    pub directory: PathBuf,
    /// Limit on its size, in MiB; 0 for no cache.
    pub max_mb: u64,
}

/// Opens a store, with a cache in front of it unless its blobs are local.
///
/// # Errors
/// [`StoreError`] of the store or of the cache.
pub async fn open_cached(
    url: &StoreUrl,
    cache: &StoreCache,
) -> Result<Arc<dyn BlobStore>, StoreError> {
    let store = store::open(url).await?;
    if !matches!(url, StoreUrl::S3(_)) || cache.max_mb == 0 {
        return Ok(store);
    }
    let max_bytes = cache.max_mb.saturating_mul(1024 * 1024);
    Ok(Arc::new(CachedStore::open(store, &cache.directory, max_bytes).await?))
}

/// The store of an existing run: `named`, or the one that the run used.
///
/// # Errors
/// [`NoStore`].
pub fn find(named: Option<StoreUrl>, run_dir: &Path) -> Result<StoreUrl, NoStore> {
    match named {
        Some(named) => Ok(named),
        None => run_store::find(run_dir),
    }
}

/// The store to start a run with: `named`, the one that the run was first started with, or
/// `otherwise`.
///
/// # Errors
/// [`NoStore`] when the run was first started with a store that is missing.
pub(super) fn find_or_default(
    named: Option<StoreUrl>,
    run_dir: &Path,
    default: PathBuf,
) -> Result<StoreUrl, NoStore> {
    match named {
        Some(named) => Ok(named),
        None if StoreReference::read(run_dir).is_some() => run_store::find(run_dir),
        None => Ok(default.into()),
    }
}
