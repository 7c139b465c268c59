//! The blob store of a run.

use std::path::{Path, PathBuf};

use rollout_worker::store::StoreUrl;

use crate::results::files::store::{self, NoStore, StoreReference};

/// The store of an existing run: `named`, or the one that the run used.
///
/// # Errors
/// [`NoStore`].
pub fn find(named: Option<StoreUrl>, run_dir: &Path) -> Result<StoreUrl, NoStore> {
    match named {
        Some(named) => Ok(named),
        None => store::find(run_dir),
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
        None if StoreReference::read(run_dir).is_some() => store::find(run_dir),
        None => Ok(default.into()),
    }
}
