//! Repair of the parts of a search beside its journal: its repository, its checkouts, and the
//! outputs of its evals. All of them can be made again from the blob store.

use std::collections::BTreeSet;
use std::sync::Arc;

use rollout_base::supervise;
use rollout_engine::journal::RunLayout;
use rollout_store::BlobStore;

use super::RepairError;
use crate::workloads::search::backend::{OutputRepair, compare_outputs};
use crate::workloads::search::driver::{DesiredRepositoryState, SearchDirectory, SearchError};
use crate::workloads::search::manifest::SearchManifest;
use crate::workloads::search::repository::{RepositoryError, SearchRepository};

/// The damaged parts of a search beside its journal.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct SearchRepair {
    /// Descriptions of the parts.
    pub damaged: Vec<String>,
    /// Whether a blob store is there from which they are made again.
    pub is_repairable: bool,
}

/// Repairs a search that this process owns. A simulated search and a job have no such parts.
pub(super) async fn repair(
    layout: &RunLayout,
    store: Option<&Arc<dyn BlobStore>>,
    dry_run: bool,
) -> Result<SearchRepair, RepairError> {
    if !RunLayout::is_search(layout.root()) {
        return Ok(SearchRepair::default());
    }
    let directory = SearchDirectory::new(layout.root());
    let found = directory.clone();
    let manifest = match supervise::blocking(move || found.read()).await {
        // Nothing else has what it has.
        Err(error @ SearchError::Damaged { .. }) => {
            return Ok(SearchRepair { damaged: vec![error.to_string()], is_repairable: false });
        }
        manifest => manifest?,
    };
    let Some(manifest) = manifest.filter(|manifest| !manifest.run_config.dry_run) else {
        return Ok(SearchRepair::default());
    };
    let mut damaged = match SearchRepository::damages(layout.root()).await {
        // Without the index of its commits, nothing makes the repository again.
        Err(error @ RepositoryError::Unusable { .. }) => {
            return Ok(SearchRepair { damaged: vec![error.to_string()], is_repairable: false });
        }
        damaged => damaged?,
    };
    let Some(store) = store else { return Ok(SearchRepair { damaged, is_repairable: false }) };
    if !damaged.is_empty() && !dry_run {
        restore_repository(&directory, &manifest, store).await?;
    }
    let action = if dry_run { OutputRepair::None } else { OutputRepair::Replace };
    let outputs = compare_outputs(&directory, &manifest, &**store, action).await?;
    let missing = outputs.differing.into_iter().chain(outputs.absent);
    damaged.extend(missing.map(|(_, path)| path));
    Ok(SearchRepair { damaged, is_repairable: true })
}

/// Makes the repository, its references and the checkouts again. The next session repeats removals
/// that fail.
async fn restore_repository(
    directory: &SearchDirectory,
    manifest: &SearchManifest,
    store: &Arc<dyn BlobStore>,
) -> Result<(), RepairError> {
    let (run, name) = (directory.root(), &manifest.tree_run_id);
    let repository = SearchRepository::open(run, name, Arc::clone(store)).await?;
    let wanted = DesiredRepositoryState::from_manifest(manifest);
    let waiting = manifest.state.deferred_cleanup.iter();
    let deferred: BTreeSet<String> = waiting.map(|item| item.path.clone()).collect();
    let _failed_removals = repository.reconcile(&wanted, &deferred).await?;
    Ok(())
}
