//! Exports of trajectories, which workers make from the records of the model gateway.
//!
//! * `atif`: their files, one for each trial. `traces`: a line for each trial, with or without one.
//!   `sft`: conversations to train on, of trials whose reward is high enough.
//! * A trial without a reward has none: it never counts as 0.

mod atif;
mod sft;
mod traces;

pub(super) use atif::write as write_directory;

use std::path::PathBuf;

use rollout_protocol::blob::BlobRef;
use rollout_protocol::limits::TRAJECTORY_FILE_BYTES;
use rollout_protocol::record::ATIF_PATH;

use super::ExportError;
use super::source::{ExportSource, SettledTrial};
use crate::results::files::TrialFilesError;
use crate::results::rows::RowOutput;

/// The least reward of the trials that `sft` exports, unless a caller names another one: those that
/// passed completely.
pub const DEFAULT_MIN_REWARD: f64 = 1.0;

/// Trials that an export leaves out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct LeftOut {
    /// Trials without a trajectory.
    pub(super) without_trajectory: u64,
    /// Trials without a reward, or with too small a one.
    pub(super) below_reward: u64,
}

/// Writes a line for each trial, with its trajectory.
pub(super) async fn write_traces(
    source: &ExportSource,
    out: Option<PathBuf>,
) -> Result<(Option<PathBuf>, LeftOut), ExportError> {
    let (mut output, mut left_out) = (RowOutput::open(out)?, LeftOut::default());
    for index in 0..source.len() {
        let trial = source.trial(index).await?;
        let text = read(source, &trial).await?;
        left_out.without_trajectory += u64::from(text.is_none());
        output.write_bytes(&traces::line(source, &trial, text.as_deref())?)?;
    }
    Ok((output.finish()?, left_out))
}

/// Writes the main conversation of each trial whose reward is high enough.
pub(super) async fn write_sft(
    source: &ExportSource,
    min_reward: f64,
    out: Option<PathBuf>,
) -> Result<(Option<PathBuf>, LeftOut), ExportError> {
    let (mut output, mut left_out) = (RowOutput::open(out)?, LeftOut::default());
    for index in 0..source.len() {
        let trial = source.trial(index).await?;
        let Some(reward) = sft::reward(&trial).filter(|reward| *reward >= min_reward) else {
            left_out.below_reward += 1;
            continue;
        };
        let Some(text) = read(source, &trial).await? else {
            left_out.without_trajectory += 1;
            continue;
        };
        output.write_bytes(&sft::line(&trial, reward, &text)?)?;
    }
    Ok((output.finish()?, left_out))
}

/// The file with the trajectory of a trial.
fn file(trial: &SettledTrial) -> Option<&BlobRef> {
    let outputs = &trial.record.as_ref()?.outputs;
    outputs.iter().find(|output| output.path == ATIF_PATH).map(|output| &output.blob)
}

/// The text of the trajectory of a trial.
async fn read(source: &ExportSource, trial: &SettledTrial) -> Result<Option<String>, ExportError> {
    let Some(blob) = file(trial) else { return Ok(None) };
    let bytes = source.store.get_bytes(&blob.digest, TRAJECTORY_FILE_BYTES).await;
    let bytes = bytes.map_err(|error| store_failed(trial, error))?;
    let text = String::from_utf8(bytes.into());
    text.map(Some).map_err(|_| damaged(trial, serde::de::Error::custom("it is not UTF-8")))
}

fn store_failed(trial: &SettledTrial, source: rollout_store::StoreError) -> ExportError {
    let source = Box::new(TrialFilesError::Store { what: ATIF_PATH.to_owned(), source });
    ExportError::Trial { trial: trial.name.to_string(), source }
}

fn damaged(trial: &SettledTrial, source: serde_json::Error) -> ExportError {
    ExportError::Trajectory { trial: trial.name.to_string(), source }
}
