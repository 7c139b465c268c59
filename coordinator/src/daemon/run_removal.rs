//! Removal of runs and farms: of their files, and before that of what they have elsewhere: documents in
//! the blob store, and messages and a lock entry on a server. What is out of reach stays: the removal of
//! files does not wait for it, and `rollout gc` finds it later.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rollout_base::backoff::error_chain;
use rollout_base::supervise;
use rollout_engine::journal::{JournalError, RunLayout, SegmentIndex};
use rollout_protocol::id::RunId;
#[cfg(feature = "nats")]
use rollout_queue::nats::{ConnectError, NatsOptions};
#[cfg(feature = "nats")]
use rollout_queue::traits::QueueError;
use rollout_store::StoreError;
use tokio::time::timeout;

use super::Daemon;
use super::record::RecordError;
use super::state_dir::StoredId;
#[cfg(feature = "nats")]
use crate::launch::nats::forget_runs;
use crate::launch::store::find;
use crate::workloads::blobs::forget_run;

/// Longest wait for the blob store, and for the server.
const LIMIT: Duration = Duration::from_secs(30);

/// Why something of a removed run stays.
#[derive(Debug, thiserror::Error)]
enum RemovalFault {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[cfg(feature = "nats")]
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[cfg(feature = "nats")]
    #[error(transparent)]
    Queue(#[from] QueueError),
    #[error("no answer for {} s", LIMIT.as_secs())]
    Late,
}

impl Daemon {
    /// Continues the removal of runs that an earlier daemon deleted.
    pub(super) fn remove_deleted_runs(self: &Arc<Self>) {
        for id in std::mem::take(&mut *self.deleted_runs()) {
            let daemon = Arc::clone(self);
            self.keep(supervise::spawn("removal of a run", async move {
                if let Err(error) = daemon.remove_files(&id).await {
                    tracing::warn!("cannot remove the deleted run {id}: {error}");
                }
            }));
        }
    }

    /// Removes all that a run or a farm has, its record last.
    ///
    /// # Errors
    /// [`RecordError`]; the rest stays for another attempt.
    pub(super) async fn remove_files<I: StoredId + Clone + Send + Sync + 'static>(
        &self,
        id: &I,
    ) -> Result<(), RecordError> {
        let directory = self.dir.run_dir(id);
        let of = directory.clone();
        match supervise::blocking(move || runs_in(&of)).await {
            Ok(runs) => self.forget(&id.to_string(), &directory, &runs).await,
            Err(error) => {
                let reason = error_chain(&error);
                tracing::warn!("cannot tell what the run {id} has in the store: {reason}");
            }
        }
        let (dir, id) = (Arc::clone(&self.dir), id.clone());
        supervise::blocking(move || dir.remove(&id)).await
    }

    /// Removes what runs have elsewhere. A store and a server that are both out of reach cost one wait.
    async fn forget(&self, id: &str, directory: &Path, runs: &BTreeSet<RunId>) {
        if runs.is_empty() {
            return;
        }
        let in_store = forget_in_named_store(id, directory, runs);
        #[cfg(feature = "nats")]
        tokio::join!(in_store, Box::pin(self.forget_in_queue(id, runs)));
        #[cfg(not(feature = "nats"))]
        in_store.await;
    }

    /// Removes what runs have on the server, if there is one.
    #[cfg(feature = "nats")]
    async fn forget_in_queue(&self, id: &str, runs: &BTreeSet<RunId>) {
        let Some(options) = &self.options.nats else { return };
        let removed = timeout(LIMIT, self.forget_on_server(options, runs)).await;
        if let Err(fault) = removed.unwrap_or(Err(RemovalFault::Late)) {
            let reason = error_chain(&fault);
            tracing::warn!("the server still has messages of the deleted run {id}: {reason}");
        }
    }

    #[cfg(feature = "nats")]
    async fn forget_on_server(
        &self,
        options: &NatsOptions,
        runs: &BTreeSet<RunId>,
    ) -> Result<(), RemovalFault> {
        let nats = self.output_connection.open(options).await?;
        Ok(forget_runs(&nats, &nats.kv_store(), runs).await?)
    }
}

/// Removes the documents of runs from their store. What stays there is told.
async fn forget_in_named_store(id: &str, directory: &Path, runs: &BTreeSet<RunId>) {
    let stored = timeout(LIMIT, forget_in_store(directory, runs)).await;
    let Err(fault) = stored.unwrap_or(Err(RemovalFault::Late)) else { return };
    let reason = error_chain(&fault);
    let options: Vec<_> = runs.iter().map(|run| format!("--forget {run}")).collect();
    tracing::warn!(
        "the blob store still lists the deleted run {id}: {reason}; `rollout gc --store` needs `{}`",
        options.join(" ")
    );
}

/// Removes the documents of runs from the store that a run directory names, if there still is one.
async fn forget_in_store(directory: &Path, runs: &BTreeSet<RunId>) -> Result<(), RemovalFault> {
    let Ok(url) = find(None, directory) else { return Ok(()) };
    let store = match rollout_store::open_existing(&url).await {
        Err(StoreError::Absent { .. }) => return Ok(()),
        opened => opened?,
    };
    for run in runs {
        forget_run(&*store, *run, directory).await?;
    }
    Ok(())
}

/// The ids of a run directory in its journal. Blocks.
fn runs_in(directory: &Path) -> Result<BTreeSet<RunId>, JournalError> {
    let index = SegmentIndex::read(&RunLayout::new(directory))?;
    Ok(index.openings().map(|opened| opened.run).collect())
}
