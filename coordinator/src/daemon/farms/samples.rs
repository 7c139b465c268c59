//! Records of samples, and the model calls of their agents, as long as their completions are not
//! acknowledged.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use rollout_protocol::farm::{Completion, PolicyVersions};
use rollout_protocol::record::{OutputFile, TrajectoryRecord, TrialRecord};
use rollout_store::BlobStore;
use tokio::sync::mpsc;

use super::error::FarmError;
use super::hosted_farm::HostedFarm;
use crate::daemon::Daemon;
use crate::daemon::failure::RunFault;
use crate::results::files::content;
use crate::results::view::{self, CapturedError, CapturedFile};

/// Path of the trajectories among the files of a sample.
const TRAJECTORIES: &str = "gateway/trajectories.jsonl";

/// Path of the file of tokens, which has the long lists of the trajectories.
const TOKENS: &str = "gateway/tokens.bin";

/// Largest file of tokens that is read into memory.
const TOKENS_BYTES: u64 = 256 * 1024 * 1024;

/// Pieces of trajectories that wait to be read.
const WAITING_PIECES: usize = 4;

/// The model calls of a sample.
#[derive(Debug)]
pub struct RecordedCalls {
    /// Versions of the policy around the sample.
    pub policy: PolicyVersions,
    /// The store that has the trajectories.
    pub store: Arc<dyn BlobStore>,
    /// The trajectories, one a line; `None` if the agent made no call that is in one.
    pub trajectories: Option<CapturedFile>,
    /// The file with their long lists, if there is one.
    pub tokens: Option<OutputFile>,
}

impl RecordedCalls {
    /// Sends the trajectories with all their lists, one a line.
    ///
    /// # Errors
    /// [`CapturedError`]; some of them may have been sent.
    pub async fn send(self, pieces: mpsc::Sender<Bytes>) -> Result<(), CapturedError> {
        let Some(file) = &self.trajectories else { return Ok(()) };
        let Some(tokens) = &self.tokens else {
            return view::read_captured(&*self.store, file, pieces).await;
        };
        let tokens = self.store.get_bytes(&tokens.blob.digest, TOKENS_BYTES).await;
        let tokens =
            tokens.map_err(|source| CapturedError::Store { path: TOKENS.to_owned(), source })?;
        let (to, mut packed) = mpsc::channel::<Bytes>(WAITING_PIECES);
        let reading = view::read_captured(&*self.store, file, to);
        let unpacking = async move {
            let mut rest = Vec::new();
            while let Some(piece) = packed.recv().await {
                rest.extend_from_slice(&piece);
                while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
                    let line: Vec<u8> = rest.drain(..=end).collect();
                    let line = unpacked(&line, &tokens);
                    let line = line.map_err(|source| CapturedError::Read {
                        path: TRAJECTORIES.to_owned(),
                        source,
                    })?;
                    if pieces.send(line.into()).await.is_err() {
                        return Ok(());
                    }
                }
            }
            Ok(())
        };
        let (read, unpacked) = tokio::join!(reading, unpacking);
        read.and(unpacked)
    }
}

/// A line whose long lists are in place again.
fn unpacked(line: &[u8], tokens: &[u8]) -> io::Result<Vec<u8>> {
    let mut trajectory: TrajectoryRecord = serde_json::from_slice(line)?;
    trajectory.unpack(tokens).map_err(io::Error::other)?;
    let mut line = serde_json::to_vec(&trajectory)?;
    line.push(b'\n');
    Ok(line)
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
        let tokens = record.outputs.iter().find(|file| file.path == TOKENS).cloned();
        Ok(RecordedCalls { policy: completion.policy, store, trajectories, tokens })
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
