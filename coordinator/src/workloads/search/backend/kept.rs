//! The repository of a search as whoever tidies up wants it.

use std::collections::BTreeSet;

use tokio::runtime::Handle;

use super::shop::of;
use crate::workloads::search::driver::{Keeper, Left, Wanted, WorkError};
use crate::workloads::search::manifest::Cleanup;
use crate::workloads::search::repository::Repository;

/// The repository of a search that nobody goes on with at the moment.
#[derive(Debug)]
pub struct Kept {
    /// Waits for what is asynchronous.
    pub handle: Handle,
    /// The repository.
    pub repository: Repository,
}

impl Keeper for Kept {
    fn keep(
        &mut self,
        wanted: &Wanted,
        deferred: &BTreeSet<String>,
    ) -> Result<Vec<Left>, WorkError> {
        kept(&self.handle, &self.repository, wanted, deferred)
    }

    fn remove(&mut self, item: &Cleanup) -> Result<(), String> {
        removed(&self.handle, &self.repository, item)
    }
}

pub(super) fn kept(
    handle: &Handle,
    repository: &Repository,
    wanted: &Wanted,
    deferred: &BTreeSet<String>,
) -> Result<Vec<Left>, WorkError> {
    handle.block_on(repository.keep(wanted, deferred)).map_err(of("cannot keep the repository"))
}

pub(super) fn removed(
    handle: &Handle,
    repository: &Repository,
    item: &Cleanup,
) -> Result<(), String> {
    handle.block_on(repository.remove(item)).map_err(|error| error.chain())
}
