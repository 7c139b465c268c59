//! Deletion of farms. It is durable before the executions of a farm have ended: a farm whose workers
//! are out of reach is removed when they are back, also by a later start of the daemon.

use std::sync::Arc;
use std::time::Duration;

use rollout_base::supervise;
use rollout_protocol::wire::control::StopLevel;
use tokio::time::timeout;

use super::error::FarmError;
use super::hosted_farm::{FarmStage, HostedFarm};
use crate::daemon::Daemon;
use crate::daemon::record::RecordError;

/// First and longest pause before a deleted farm is opened again whose session failed.
const REOPEN_PAUSES: [Duration; 2] = [Duration::from_secs(5), Duration::from_secs(300)];

impl Daemon {
    /// Cancels the groups of a farm and removes its record and its run directory. Its blobs stay until
    /// they are collected. Executions in this process that have not ended after
    /// [`removal_wait`](crate::daemon::DaemonOptions::removal_wait) are killed. Those on workers are
    /// ended later, and the farm is gone for its users.
    ///
    /// # Errors
    /// [`FarmError`].
    pub async fn delete_farm(self: &Arc<Self>, farm: &Arc<HostedFarm>) -> Result<(), FarmError> {
        let (daemon, deleted) = (Arc::clone(self), Arc::clone(farm));
        self.finish(async move { daemon.note_deletion(&deleted).await }).await?;
        let (daemon, deleted) = (Arc::clone(self), Arc::clone(farm));
        let removal = self.finish(async move { daemon.remove_farm(&deleted).await });
        let mut removal = std::pin::pin!(removal);
        match timeout(self.options.removal_wait, &mut removal).await {
            Ok(removed) => removed,
            Err(_) if self.is_remote() => {
                tracing::warn!(
                    "farm {}: its workers have not ended its samples yet; it is removed when they \
                     have",
                    farm.id()
                );
                Ok(())
            }
            Err(_) => {
                tracing::warn!("farm {}: killed executions that did not end in time", farm.id());
                kill(farm).await;
                removal.await
            }
        }
    }

    /// Goes on with the removal of farms that an earlier daemon deleted.
    pub(in crate::daemon) fn remove_deleted_farms(self: &Arc<Self>) {
        for farm in self.farms.table().deleted() {
            let daemon = Arc::clone(self);
            self.keep(supervise::spawn("removal of a farm", async move {
                if let Err(error) = daemon.remove_farm(&farm).await {
                    tracing::error!("cannot remove the deleted farm {}: {error}", farm.id());
                }
            }));
        }
    }

    async fn note_deletion(&self, farm: &HostedFarm) -> Result<(), FarmError> {
        farm.update(&self.dir, |record| {
            record.is_deleted = true;
            Ok::<(), RecordError>(())
        })
        .await?;
        self.farms.table().release_key(farm);
        Ok(())
    }

    async fn remove_farm(&self, farm: &HostedFarm) -> Result<(), FarmError> {
        if !self.discard_farm(farm).await {
            return Ok(());
        }
        self.remove_files(farm.id()).await?;
        self.farms.table().remove(farm);
        Ok(())
    }

    /// Ends the executions of a deleted farm. Returns whether none is left; otherwise the daemon
    /// stops, and its next start goes on.
    async fn discard_farm(&self, farm: &HostedFarm) -> bool {
        let mut stage = farm.stage();
        let [mut pause, longest] = REOPEN_PAUSES;
        loop {
            let now = stage.borrow_and_update().clone();
            match now {
                FarmStage::Idle if !farm.has_remote_executions(self.is_remote()) => return true,
                FarmStage::Idle => {
                    if self.stopping().is_some() {
                        return false;
                    }
                    if farm.record().failure.is_some() {
                        tokio::time::sleep(pause).await;
                        pause = longest.min(pause * 2);
                        if !self.forget_failure(farm).await {
                            continue;
                        }
                    }
                    self.wake.notify_one();
                }
                FarmStage::Open(session) => {
                    // An error says that it has ended.
                    let _ended = session.handle().discard().await;
                }
                FarmStage::Queued | FarmStage::Opening => {}
            }
            // The sender lives as long as the farm.
            let _changed = stage.changed().await;
        }
    }

    /// Returns whether the farm can be opened again.
    async fn forget_failure(&self, farm: &HostedFarm) -> bool {
        let forgotten = farm.update(&self.dir, |record| {
            record.failure = None;
            Ok::<(), RecordError>(())
        });
        match forgotten.await {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!("cannot open the deleted farm {} again: {error}", farm.id());
                false
            }
        }
    }
}

/// Kills the session of a farm.
async fn kill(farm: &HostedFarm) {
    let mut stage = farm.stage();
    loop {
        let now = stage.borrow_and_update().clone();
        match now {
            FarmStage::Idle => return,
            FarmStage::Open(session) => session.request_stop(StopLevel::Kill),
            FarmStage::Queued | FarmStage::Opening => {}
        }
        let _changed = stage.changed().await;
    }
}
