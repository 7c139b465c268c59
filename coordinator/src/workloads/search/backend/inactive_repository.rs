//! The repository of a search without a running session, for cleanup.

use std::collections::BTreeSet;

use tokio::runtime::Handle;

use super::live::backend_error;
use crate::workloads::search::driver::{
    BackendError, DesiredRepositoryState, FailedRemoval, RepositoryMaintenance,
};
use crate::workloads::search::manifest::DeferredCleanup;
use crate::workloads::search::repository::SearchRepository;

/// The repository of a search without a running session.
#[derive(Debug)]
pub struct InactiveRepository {
    /// Runtime for asynchronous calls.
    pub handle: Handle,
    /// The repository.
    pub repository: SearchRepository,
}

impl RepositoryMaintenance for InactiveRepository {
    fn reconcile(
        &mut self,
        wanted: &DesiredRepositoryState,
        deferred: &BTreeSet<String>,
    ) -> Result<Vec<FailedRemoval>, BackendError> {
        reconcile_repository(&self.handle, &self.repository, wanted, deferred)
    }

    fn remove(&mut self, item: &DeferredCleanup) -> Result<(), String> {
        remove_from_repository(&self.handle, &self.repository, item)
    }
}

pub(super) fn reconcile_repository(
    handle: &Handle,
    repository: &SearchRepository,
    wanted: &DesiredRepositoryState,
    deferred: &BTreeSet<String>,
) -> Result<Vec<FailedRemoval>, BackendError> {
    handle
        .block_on(repository.reconcile(wanted, deferred))
        .map_err(backend_error("cannot reconcile the repository"))
}

pub(super) fn remove_from_repository(
    handle: &Handle,
    repository: &SearchRepository,
    item: &DeferredCleanup,
) -> Result<(), String> {
    handle.block_on(repository.remove(item)).map_err(|error| error.chain())
}
