//! The blob store of a run.

use std::path::{Path, PathBuf};

use rollout_worker::store::StoreUrl;

use crate::results::files::store::{self, NoStore, StoreReference};

/// Error of finding the store of a run.
#[derive(Debug, thiserror::Error)]
pub enum StoreNotFound {
    /// None is named, and the one that the run used is in none of the expected places.
    #[error(transparent)]
    Unknown(#[from] NoStore),
    /// The named directory has no store.
    #[error("there is no blob store in {}", .0.display())]
    Missing(PathBuf),
    /// The named store is in memory.
    #[error("cannot use a blob store in memory: it holds nothing of an earlier run")]
    InMemory,
}

/// The store of an existing run: `named`, or the one that the run used.
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
        None if StoreReference::read(run_dir).is_some() => Ok(store::find(run_dir)?.into()),
        None => Ok(default.into()),
    }
}
