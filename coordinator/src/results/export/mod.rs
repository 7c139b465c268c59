//! `rollout export`: the results of a run in the formats of other tools. Reads only the run's
//! records, its journal if it has not ended, and its blob store, so it does not depend on the result
//! files that the run wrote.
//!
//! * Trials are exported in the plan's order, one at a time: only the file position of each is kept
//!   in memory.
//! * Outputs are written atomically: complete or not at all.
//! * Text of agents and tasks is escaped where the format requires it: CSV cells are no formulas.
//!
//! The process does nothing besides the export, so blocking file I/O on the async thread is fine.

mod columns;
mod csv;
mod harbor;
mod source;
#[cfg(test)]
mod tests;
mod trajectories;
mod trial_rows;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rollout_base::shown_path::shown;
use rollout_protocol::Timestamp;
use rollout_protocol::id::RunId;
use rollout_store::BlobStore;

use crate::plan::JobPlanError;
use crate::results::files::{FileError, TrialFilesError};
use crate::results::rows::RowsError;
pub use crate::results::rows::until_stopped;
use crate::results::settlements::{SettledTrials, SettlementsError};
use crate::results::tables::{self, TablesError};
use source::ExportSource;
pub use trajectories::DEFAULT_MIN_REWARD;
use trajectories::LeftOut;

/// The format of an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum ExportFormat {
    /// A job directory in Harbor's layout, for its viewer and tools.
    Harbor,
    /// A JSON object per line and trial.
    Jsonl,
    /// A line per trial, for spreadsheets.
    Csv,
    /// A row per trial, for data frames.
    #[cfg(feature = "parquet")]
    Parquet,
    /// Analysis tables of trials, tries, metrics, events, agents and comparisons.
    Tables,
    /// A directory with a trajectory per trial, in Harbor's interchange format.
    Atif,
    /// A JSON object per line and trial, with its trajectory.
    TracesJsonl,
    /// Conversations of trials with a high reward, as chat messages to train a model on.
    Sft,
}

impl ExportFormat {
    /// Whether the format is text, which can be written to standard output.
    pub const fn is_text(self) -> bool {
        matches!(self, Self::Jsonl | Self::Csv | Self::TracesJsonl | Self::Sft)
    }

    /// Whether the format is a directory, which must be new or empty.
    pub const fn is_new_directory(self) -> bool {
        matches!(self, Self::Tables | Self::Atif)
    }
}

/// Parameters of an export.
#[derive(Debug)]
pub struct ExportRequest {
    /// The run's directory.
    pub run_dir: PathBuf,
    /// Its blob store.
    pub store: Arc<dyn BlobStore>,
    /// Output format.
    pub format: ExportFormat,
    /// The file to write; for Harbor, the directory in which to create the job's directory; for
    /// tables and trajectories, their directory. Standard output when absent, for text formats only.
    pub out: Option<PathBuf>,
    /// For Harbor, the directory that documents name instead of the one with the job's directory.
    pub shown_in: Option<PathBuf>,
    /// For `sft`, the least reward of a trial.
    pub min_reward: f64,
}

/// The fields of a run's manifest that exports contain.
#[derive(Debug, Clone)]
pub struct RunHeader {
    /// The run.
    pub run: RunId,
    /// Name of the job.
    pub job: String,
    /// Start of the run.
    pub created_at: Timestamp,
    /// Last change of the run's state.
    pub updated_at: Timestamp,
    /// Whether all trials are settled.
    pub is_completed: bool,
    /// Trials with a terminal record.
    pub settled: u64,
}

/// Summary of an export.
#[derive(Debug, PartialEq, Eq)]
pub struct ExportSummary {
    /// The file or directory; `None` for standard output.
    pub path: Option<PathBuf>,
    /// Trials exported.
    pub trials: u64,
    /// Settled trials that are left out because the run has not written their records yet.
    pub missing: u64,
    /// Trials in the records that are no longer in the plan.
    pub unplanned: u64,
    /// Whether there are more reward keys than columns for them.
    pub keys_left_out: bool,
    /// Trials without a trajectory, for formats that have them.
    pub without_trajectory: u64,
    /// Trials that are left out because they have no reward, or too small a one.
    pub below_reward: u64,
    /// Files and directories that are left out of an archive, because their paths are too deep or too
    /// long for one. A directory counts once.
    pub paths_left_out: u64,
}

/// Why a run could not be exported.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The directory is not a run directory.
    #[error("{} is not a run directory: {what} is missing", shown(path))]
    NotRunDirectory {
        /// The directory.
        path: PathBuf,
        /// The missing file.
        what: &'static str,
    },
    /// The run's manifest cannot be read.
    #[error(transparent)]
    Header(Box<dyn std::error::Error + Send + Sync>),
    /// The journal of a run that has not ended cannot be read.
    #[error(transparent)]
    Journal(Box<dyn std::error::Error + Send + Sync>),
    /// A file operation failed.
    #[error(transparent)]
    File(#[from] FileError),
    /// A document of the run cannot be parsed.
    #[error("cannot parse {}", shown(path))]
    Document {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
    /// The plan is damaged or has a newer format.
    #[error(transparent)]
    Plan(#[from] JobPlanError),
    /// A trial's record or files cannot be read or written.
    #[error("cannot export {trial}")]
    Trial {
        /// The trial.
        trial: String,
        /// Why.
        #[source]
        source: Box<TrialFilesError>,
    },
    /// A trajectory is none.
    #[error("cannot read the trajectory of {trial}")]
    Trajectory {
        /// The trial.
        trial: String,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
    /// The output path already exists.
    #[error("{} already exists", shown(.0))]
    OutputExists(PathBuf),
    /// The format requires an output path.
    #[error("this format cannot be written to standard output")]
    NeedsOutputPath,
    /// The tables cannot be derived.
    #[error("cannot derive the tables")]
    Tables(#[source] TablesError),
    /// The rows cannot be written.
    #[cfg(feature = "parquet")]
    #[error("cannot write the rows")]
    Parquet(#[from] ::parquet::errors::ParquetError),
}

/// Exports the settled trials of the run with `header`.
///
/// # Errors
/// [`ExportError`]; the output path is then unchanged.
pub async fn export(
    request: &ExportRequest,
    header: RunHeader,
    settled: SettledTrials,
) -> Result<ExportSummary, ExportError> {
    if request.format == ExportFormat::Tables {
        let out = request.out.as_deref().ok_or(ExportError::NeedsOutputPath)?;
        return export_tables(out, &header, &settled);
    }
    let source = ExportSource::new(&request.run_dir, header, Arc::clone(&request.store), settled)?;
    let (out, all) = (request.out.clone(), LeftOut::default());
    let (path, left_out) = match request.format {
        ExportFormat::Harbor => {
            let jobs = request.out.as_deref().ok_or(ExportError::NeedsOutputPath)?;
            (Some(harbor::write(&source, jobs, request.shown_in.as_deref()).await?), all)
        }
        ExportFormat::Atif => {
            let out = request.out.as_deref().ok_or(ExportError::NeedsOutputPath)?;
            let (path, left_out) = trajectories::write_directory(&source, out).await?;
            (Some(path), left_out)
        }
        ExportFormat::TracesJsonl => trajectories::write_traces(&source, out).await?,
        ExportFormat::Sft => trajectories::write_sft(&source, request.min_reward, out).await?,
        format => (trial_rows::write(&source, format, out).await?, all),
    };
    Ok(ExportSummary {
        path,
        trials: source.len(),
        missing: source.missing_records(),
        unplanned: source.unplanned(),
        keys_left_out: request.format == ExportFormat::Csv && source.keys_left_out(),
        without_trajectory: left_out.without_trajectory,
        below_reward: left_out.below_reward,
        paths_left_out: 0,
    })
}

/// Exports the analysis tables of the run with `header` to a directory that is empty or missing.
/// Reads no blob.
///
/// # Errors
/// [`ExportError`]; the directory is then unchanged.
pub fn export_tables(
    out: &Path,
    header: &RunHeader,
    settled: &SettledTrials,
) -> Result<ExportSummary, ExportError> {
    let written = tables::write_directory(settled, header.run, out)?;
    Ok(ExportSummary {
        path: Some(out.to_owned()),
        trials: written.trials,
        missing: header.settled.saturating_sub(written.trials + written.unplanned),
        unplanned: written.unplanned,
        keys_left_out: false,
        without_trajectory: 0,
        below_reward: 0,
        paths_left_out: 0,
    })
}

impl From<RowsError> for ExportError {
    fn from(error: RowsError) -> Self {
        match error {
            RowsError::File(error) => Self::File(error),
            RowsError::OutputExists(path) => Self::OutputExists(path),
            #[cfg(feature = "parquet")]
            RowsError::Parquet(error) => Self::Parquet(error),
        }
    }
}

impl From<SettlementsError> for ExportError {
    fn from(error: SettlementsError) -> Self {
        match error {
            SettlementsError::NoPlan(path) => Self::NotRunDirectory { path, what: "plan.json" },
            SettlementsError::File(error) => Self::File(error),
            SettlementsError::Document { path, source } => Self::Document { path, source },
            SettlementsError::Plan(error) => Self::Plan(error),
        }
    }
}

impl From<TablesError> for ExportError {
    fn from(error: TablesError) -> Self {
        match error {
            TablesError::Settlements(error) => error.into(),
            TablesError::Rows(error) => error.into(),
            TablesError::NotEmpty(path) => Self::OutputExists(path),
            error @ TablesError::Incomplete { .. } => Self::Tables(error),
        }
    }
}
