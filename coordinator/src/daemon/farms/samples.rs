//! Records of samples, and the model calls of their agents, as long as their completions are not
//! acknowledged.

use std::sync::Arc;

use rollout_protocol::farm::{Completion, PolicyVersions};
use rollout_protocol::record::TrialRecord;
use rollout_worker::store::BlobStore;

use super::error::FarmError;
use super::hosted_farm::HostedFarm;
use crate::daemon::Daemon;
use crate::daemon::failure::RunFault;
use crate::results::files::content;
use crate::results::view::{self, CapturedError, CapturedFile};

/// Path of the trajectories among the files of a sample.
const TRAJECTORIES: &str = "gateway/trajectories.jsonl";

/// The model calls of a sample.
#[derive(Debug)]
pub struct RecordedCalls {
    /// Versions of the policy around the sample.
    pub policy: PolicyVersions,
    /// The store that has the trajectories.
    pub store: Arc<dyn BlobStore>,
    /// The trajectories, one a line; `None` if the agent made no call that is in one.
    pub trajectories: Option<CapturedFile>,
}

impl Daemon {
    /// The record of the execution that decided a sample.
    ///
    /// # Errors
    /// [`FarmError`].
    pub async fn sample_record(
        &self,
        farm: &HostedFarm,
        cursor: u64,
    ) -> Result<TrialRecord, FarmError> {
        self.recorded(farm, cursor).await.map(|(_, _, record)| record)
    }

    /// The model calls of the execution that decided a sample.
    ///
    /// # Errors
    /// [`FarmError`].
    pub async fn sample_calls(
        &self,
        farm: &HostedFarm,
        cursor: u64,
    ) -> Result<RecordedCalls, FarmError> {
        let (completion, store, record) = self.recorded(farm, cursor).await?;
        let summary = record.gateway.as_ref().ok_or(FarmError::NoGateway)?;
        let trajectories = match summary.trajectories {
            0 => None,
            _ => {
                let files = view::captured_files(&record, Some(TRAJECTORIES));
                files.map_err(|error| self.failed(RunFault::Captured(error)))?.into_iter().next()
            }
        };
        Ok(RecordedCalls { policy: completion.policy, store, trajectories })
    }

    async fn recorded(
        &self,
        farm: &HostedFarm,
        cursor: u64,
    ) -> Result<(Arc<Completion>, Arc<dyn BlobStore>, TrialRecord), FarmError> {
        let session = match farm.session().await {
            // Everything is acknowledged.
            Err(FarmError::Ended) => return Err(FarmError::NoCompletion),
            session => session?,
        };
        let completion = session.handle().completion(cursor).ok_or(FarmError::NoCompletion)?;
        let execution = completion.result.execution.as_ref().ok_or(FarmError::NoSampleRecord)?;
        let blob = execution.record.as_ref().ok_or(FarmError::NoSampleRecord)?;
        let store = Arc::clone(session.documents().store());
        let (item, exec) = (completion.sample.item(), Some(execution.exec));
        let record = content::read_record_of(&*store, blob, item, exec).await;
        let record = record
            .map_err(|error| self.failed(RunFault::Captured(CapturedError::Record(error))))?;
        Ok((completion, store, record))
    }
}
