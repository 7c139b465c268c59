//! Requests about a farm as a whole: policy version, pause, resume, close, delete. Each is durable
//! when its call returns.

use std::sync::Arc;
use std::time::Duration;

use rollout_protocol::farm::FarmStatus;
use rollout_protocol::wire::control::StopLevel;
use rollout_worker::supervise;
use tokio::time::timeout;

use super::error::FarmError;
use super::hosted_farm::{FarmStage, HostedFarm};
use crate::daemon::Daemon;
use crate::daemon::record::RecordError;

/// How long the executions of a farm that is being removed have for their end. Then they are killed.
const DISCARD_TIMEOUT: Duration = Duration::from_secs(60);

impl HostedFarm {
    /// Says that the trainer's policy has this version.
    ///
    /// # Errors
    /// [`FarmError`].
    pub async fn set_policy_version(&self, version: u64) -> Result<FarmStatus, FarmError> {
        let session = self.session().await?;
        match session.handle().set_policy_version(version).await {
            Ok(status) => Ok(status),
            Err(_) => Err(self.gone().await),
        }
    }

    /// Pauses the farm.
    ///
    /// # Errors
    /// [`FarmError`].
    pub async fn pause(&self) -> Result<FarmStatus, FarmError> {
        match self.session().await?.pause().await {
            Ok(status) => Ok(status),
            Err(_) => Err(self.gone().await),
        }
    }

    /// Closes the farm: no more groups are admitted, and it ends when every sample has ended and every
    /// completion is acknowledged. One that has ended stays so.
    ///
    /// # Errors
    /// [`FarmError`].
    pub async fn close(&self) -> Result<(), FarmError> {
        let session = match self.session().await {
            Err(FarmError::Ended) => return Ok(()),
            session => session?,
        };
        match session.handle().close().await {
            Ok(_) => Ok(()),
            Err(_) => match self.gone().await {
                FarmError::Ended => Ok(()),
                error => Err(error),
            },
        }
    }
}

impl Daemon {
    /// Ends a pause, with the version of the policy from now on if it changed. A farm whose last
    /// session failed is opened again.
    ///
    /// # Errors
    /// [`FarmError`].
    pub async fn resume_farm(
        &self,
        farm: &HostedFarm,
        version: Option<u64>,
    ) -> Result<FarmStatus, FarmError> {
        let has_failed = farm.record().failure.is_some();
        if has_failed {
            farm.update(&self.dir, |record| {
                record.failure = None;
                Ok::<(), RecordError>(())
            })
            .await?;
            self.wake.notify_one();
        }
        match farm.session().await?.resume(version).await {
            Ok(status) => Ok(status),
            Err(_) => Err(farm.gone().await),
        }
    }

    /// Cancels the groups of a farm and removes its record and its run directory. Its blobs stay until
    /// they are collected.
    ///
    /// # Errors
    /// [`FarmError`].
    pub async fn delete_farm(self: &Arc<Self>, farm: &Arc<HostedFarm>) -> Result<(), FarmError> {
        let (daemon, farm) = (Arc::clone(self), Arc::clone(farm));
        self.finish(async move { daemon.delete_farm_files(&farm).await }).await
    }

    async fn delete_farm_files(&self, farm: &HostedFarm) -> Result<(), FarmError> {
        farm.update(&self.dir, |record| {
            record.is_deleted = true;
            Ok::<(), RecordError>(())
        })
        .await?;
        if timeout(DISCARD_TIMEOUT, discard(farm)).await.is_err() {
            tracing::warn!("farm {}: killed executions that did not end in time", farm.id());
            kill(farm).await;
        }
        let (dir, id) = (Arc::clone(&self.dir), farm.id().clone());
        supervise::blocking(move || dir.remove(&id)).await?;
        self.farms.table().remove(farm);
        Ok(())
    }
}

/// Ends the session of a farm with all its executions.
async fn discard(farm: &HostedFarm) {
    let mut stage = farm.stage();
    loop {
        let now = stage.borrow_and_update().clone();
        match now {
            FarmStage::Idle => return,
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
