//! The blobs of a run's results: a user may read them and no other blob of the store, which has those
//! of all users.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rollout_base::supervise;
use rollout_protocol::blob::BlobRef;
use rollout_protocol::digest::Digest;
use rollout_protocol::event::EventKind;
use rollout_protocol::id::ItemId;
use rollout_protocol::record::Execution;
use rollout_protocol::reference::TrialReferences;
use rollout_store::BlobStore;

use super::failure::RunFault;
use super::hosted_run::HostedRun;
use super::principal::Principal;
use super::{Daemon, DaemonError};
use crate::results::view::{self, NumberedEvent, RunDirectory, RunViewError};

/// Blobs of the results of a run, as far as they are known.
#[derive(Debug, Default)]
pub(super) struct RunBlobs {
    index: Mutex<BlobIndex>,
}

#[derive(Debug, Default)]
struct BlobIndex {
    /// Records whose references are known.
    records: HashSet<Digest>,
    /// Size of each blob.
    sizes: HashMap<Digest, u64>,
}

impl RunBlobs {
    fn size(&self, digest: &Digest) -> Option<u64> {
        self.index().sizes.get(digest).copied()
    }

    fn is_known(&self, record: &BlobRef) -> bool {
        self.index().records.contains(&record.digest)
    }

    fn add(&self, record: &BlobRef, references: &TrialReferences) {
        let outputs = references.output.iter().map(|output| &output.blob);
        let logs = references.event_logs.iter().map(|log| &log.blob);
        let artifacts = references.artifacts.iter().map(|artifact| &artifact.blob);
        let blobs = std::iter::once(record).chain(outputs).chain(logs).chain(artifacts);
        let mut index = self.index();
        index.sizes.extend(blobs.map(|blob| (blob.digest, blob.size_bytes)));
        index.records.insert(record.digest);
    }

    /// Adds blobs to which a result refers.
    pub(super) fn add_known<'a>(&self, blobs: impl IntoIterator<Item = &'a BlobRef>) {
        let sizes = blobs.into_iter().map(|blob| (blob.digest, blob.size_bytes));
        self.index().sizes.extend(sizes);
    }

    fn index(&self) -> MutexGuard<'_, BlobIndex> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Daemon {
    /// The store and the size of a blob to which a result of a run refers.
    ///
    /// # Errors
    /// [`DaemonError::NoFiles`] for another blob.
    pub async fn blob(
        &self,
        user: &Principal,
        run: &HostedRun,
        digest: &Digest,
    ) -> Result<(Arc<dyn BlobStore>, u64), DaemonError> {
        if run.blobs().size(digest).is_none() {
            self.index_blobs(user, run).await?;
        }
        let size = run.blobs().size(digest).ok_or(DaemonError::NoFiles)?;
        Ok((self.store_of(run).await?, size))
    }

    /// Adds the references of results that came since.
    async fn index_blobs(&self, user: &Principal, run: &HostedRun) -> Result<(), DaemonError> {
        let (turn, directory) = (self.read_turn(user).await, run.directory().clone());
        // The turn ends with the reading, also if the client has gone.
        let read = supervise::blocking(move || (turn, settled(&directory)));
        let (_turn, settled) = read.await;
        let settled = settled.map_err(|error| self.failed(RunFault::View(error)))?;
        if settled.is_empty() {
            return Ok(());
        }
        let store = self.store_of(run).await?;
        for (item, by) in settled {
            let Some(blob) = by.record.as_ref().filter(|blob| !run.blobs().is_known(blob)) else {
                continue;
            };
            let record = view::record_of(&*store, item, &by).await;
            let record = record.map_err(|error| self.failed(RunFault::Captured(error)))?;
            if let Some(record) = record {
                run.blobs().add(blob, &TrialReferences::from_record(blob, &record));
            }
        }
        Ok(())
    }
}

/// The executions that settled items of a run. Blocks.
fn settled(directory: &Path) -> Result<Vec<(ItemId, Execution)>, RunViewError> {
    let directory = match RunDirectory::open(directory) {
        Err(RunViewError::NotRunDirectory { .. }) => return Ok(Vec::new()),
        opened => opened?,
    };
    // The first session writes its journal before its plan.
    if directory.plan().is_err() {
        return Ok(Vec::new());
    }
    let mut settled = Vec::new();
    let mut see = |event: NumberedEvent| {
        if let EventKind::TrialSettled { settlement, .. } = &event.event.kind
            && let Some(by) = &settlement.by
        {
            settled.push((settlement.item, by.clone()));
        }
    };
    directory.view(None, Some(&mut see))?;
    Ok(settled)
}
