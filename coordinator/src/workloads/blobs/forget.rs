//! Removal of the documents of a run whose directory is removed: without it, a collection cannot tell
//! a removed directory from one that is out of reach.

use std::path::Path;

use rollout_protocol::id::RunId;
use rollout_store::{BlobStore, StoreError};

use super::runs::RUN_DOCUMENTS;
use crate::results::files::store::{RUNS, own_registration};

/// Removes the documents of a run, the registration of its directory last. When another directory of
/// the run is registered, only this registration is removed.
///
/// # Errors
/// [`StoreError`]; a collection reports the run as missing then.
pub async fn forget_run(
    store: &dyn BlobStore,
    run: RunId,
    directory: &Path,
) -> Result<(), StoreError> {
    let own = own_registration(run, directory);
    let registered = store.list_documents(&format!("{RUNS}{run}/")).await?;
    if registered.iter().all(|path| *path == own) {
        for kind in RUN_DOCUMENTS {
            for path in store.list_documents(&format!("{kind}{run}/")).await? {
                store.remove_document(&path).await?;
            }
        }
    }
    store.remove_document(&own).await?;
    Ok(())
}
