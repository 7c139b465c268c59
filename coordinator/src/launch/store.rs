//! The blob store of a run.

use std::path::{Path, PathBuf};

use rollout_worker::store::StoreUrl;

use crate::results::files::store::{self, NoStore, StoreReference};

/// The store of a run cannot be found.
#[derive(Debug, thiserror::Error)]
pub enum StoreNotFound {
    /// None is named, and the one that the run used is in none of its places.
    #[error(transparent)]
    Unknown(#[from] NoStore),
    /// There is none at the place that is named.
    #[error("there is no blob store in {}", .0.display())]
    Missing(PathBuf),
    /// The one that is named is in memory.
    #[error("a blob store in memory holds nothing of an earlier run")]
    InMemory,
}

/// The store of a run that has begun: the one that is named, or the one that the run used.
///
/// # Errors
/// [`StoreNotFound`].
pub fn find(named: Option<StoreUrl>, run_dir: &Path) -> Result<StoreUrl, StoreNotFound> {
    let Some(named) = named else { return Ok(store::find(run_dir)?.into()) };
    let directory = named.directory().ok_or(StoreNotFound::InMemory)?;
    if store::identity_of(directory).is_some() {
        return Ok(named);
    }
    Err(StoreNotFound::Missing(directory.to_owned()))
}

/// The store that a run is started with: the one that is named, the one that the run was begun
/// with, or `otherwise`.
///
/// # Errors
/// [`NoStore`] when a run was begun with a store that is gone.
pub(super) fn find_or_default(
    named: Option<StoreUrl>,
    run_dir: &Path,
    otherwise: PathBuf,
) -> Result<StoreUrl, NoStore> {
    match named {
        Some(named) => Ok(named),
        None if StoreReference::read(run_dir).is_some() => Ok(store::find(run_dir)?.into()),
        None => Ok(otherwise.into()),
    }
}
