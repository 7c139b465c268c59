//! Requests about a farm as a whole: policy version, pause, resume, close. Each is durable when its
//! call returns.

use rollout_protocol::farm::FarmStatus;

use super::error::FarmError;
use super::hosted_farm::HostedFarm;
use crate::daemon::Daemon;
use crate::daemon::record::RecordError;

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
            farm.disk_retries().forget();
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
}
