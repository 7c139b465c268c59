//! The blob store of a run.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rollout_store::{BlobStore, CachedStore, StoreError, StoreUrl};

use super::LaunchError;
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
    put_cache_before(rollout_store::open(url).await?, url, cache).await
}

/// The same with a store that must exist.
///
/// # Errors
/// [`StoreError`]; [`StoreError::Absent`] without a store at this place.
pub async fn open_existing_cached(
    url: &StoreUrl,
    cache: &StoreCache,
) -> Result<Arc<dyn BlobStore>, StoreError> {
    put_cache_before(rollout_store::open_existing(url).await?, url, cache).await
}

async fn put_cache_before(
    store: Arc<dyn BlobStore>,
    url: &StoreUrl,
    cache: &StoreCache,
) -> Result<Arc<dyn BlobStore>, StoreError> {
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

/// Opens the store to start a run with: `named`, the one that the run was first started with, or
/// that in the directory `default`.
///
/// # Errors
/// [`LaunchError::NoStore`] or [`LaunchError::Store`] when the run was first started with a store
/// that is missing, or was replaced by another one.
pub(super) async fn open_for_run(
    named: Option<StoreUrl>,
    run_dir: &Path,
    default: PathBuf,
    cache: Option<&StoreCache>,
) -> Result<(StoreUrl, Arc<dyn BlobStore>), LaunchError> {
    let noted = match named {
        Some(_) => None,
        None => StoreReference::read(run_dir),
    };
    let url = find_or_default(named, run_dir, default)?;
    let store = match &noted {
        Some(reference) => {
            let store = rollout_store::open_existing(&url).await?;
            check_identity(&*store, &url, reference)?;
            store
        }
        None => rollout_store::open(&url).await?,
    };
    let store = match cache {
        Some(cache) => put_cache_before(store, &url, cache).await?,
        None => store,
    };
    Ok((url, store))
}

/// Refuses another store at the place of the one that a run used.
fn check_identity(
    store: &dyn BlobStore,
    url: &StoreUrl,
    reference: &StoreReference,
) -> Result<(), StoreError> {
    let (found, expected) = (store.identity(), &reference.identity);
    if found == expected {
        return Ok(());
    }
    let reason = format!("it has the identity {found}, and the store of the run has {expected}");
    Err(StoreError::Unusable { path: url.shown(), reason })
}

/// The store to start a run with: `named`, the one that the run was first started with, or
/// `otherwise`.
///
/// # Errors
/// [`NoStore`] when the run was first started with a store that is missing.
fn find_or_default(
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
