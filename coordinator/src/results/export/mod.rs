//! `rollout export`: the results of a run in the forms of other tools. Everything comes from the
//! run's records and its blob store, so it does not matter which files the run itself left.
//!
//! * Trials come in the plan's order, one at a time: what is kept of each is a place in a file.
//! * An output appears whole or not at all.
//! * Text that agents and tasks wrote is made harmless where the form has rules of its own: cells of
//!   CSV are no formulas.
//!
//! An export is the only thing its process does, so it reads and writes files where it stands.

mod columns;
mod csv;
mod harbor;
mod json_lines;
mod output;
#[cfg(feature = "parquet")]
mod parquet;
mod source;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::Arc;

use rollout_protocol::Timestamp;
use rollout_protocol::id::RunId;
use rollout_worker::store::BlobStore;

use crate::plan::JobPlanError;
use crate::results::files::{FileError, TrialFilesError};
use output::ExportOutput;
use source::ExportSource;

/// The form of an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum ExportFormat {
    /// A directory as Harbor's jobs leave it, for its viewer and its tools.
    Harbor,
    /// An object per trial, a line each.
    Jsonl,
    /// A line per trial, for spreadsheets.
    Csv,
    /// A row per trial, for data frames.
    #[cfg(feature = "parquet")]
    Parquet,
}

impl ExportFormat {
    /// Whether the form is text that can go to standard output.
    pub const fn is_text(self) -> bool {
        matches!(self, Self::Jsonl | Self::Csv)
    }
}

/// What to export.
#[derive(Debug)]
pub struct ExportRequest {
    /// The run's directory.
    pub run_dir: PathBuf,
    /// Its blob store.
    pub store: Arc<dyn BlobStore>,
    /// The form.
    pub format: ExportFormat,
    /// The file to write or, for Harbor, the directory of jobs to write a job's directory into.
    /// Standard output when absent, which only text may go to.
    pub out: Option<PathBuf>,
}

/// The header of a run's state, as far as exports show it.
#[derive(Debug, Clone)]
pub struct RunHeader {
    /// Run.
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

/// What was exported.
#[derive(Debug, PartialEq, Eq)]
pub struct ExportSummary {
    /// The file or directory; none when it went to standard output.
    pub path: Option<PathBuf>,
    /// Trials in it.
    pub trials: u64,
    /// Settled trials that are not in it, because the run's records are not written to their end.
    pub behind: u64,
    /// Trials in the records that the plan has no more.
    pub unplanned: u64,
    /// Whether there are more keys of rewards than columns for them.
    pub keys_left_out: bool,
}

/// Why a run could not be exported.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The directory is none of a run.
    #[error("{} is no run: it has no {what}", path.display())]
    NoRun {
        /// The directory.
        path: PathBuf,
        /// What a run has.
        what: &'static str,
    },
    /// The header of the run's state cannot be read.
    #[error(transparent)]
    Header(Box<dyn std::error::Error + Send + Sync>),
    /// A file operation failed.
    #[error(transparent)]
    File(#[from] FileError),
    /// A document of the run is not what it should be.
    #[error("{} cannot be understood", path.display())]
    Document {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
    /// The plan is damaged or of a newer format.
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
    /// There is something where the export is to go.
    #[error("{} exists already", .0.display())]
    Exists(PathBuf),
    /// The form needs a place.
    #[error("this form cannot go to standard output")]
    NeedsPlace,
    /// The rows cannot be written.
    #[cfg(feature = "parquet")]
    #[error("cannot write the rows")]
    Parquet(#[from] ::parquet::errors::ParquetError),
}

/// Exports a run with that header.
///
/// # Errors
/// [`ExportError`]; nothing is at the place of the output then that was not there before.
pub async fn export(
    request: &ExportRequest,
    header: RunHeader,
) -> Result<ExportSummary, ExportError> {
    let mut source = ExportSource::open(&request.run_dir, header, Arc::clone(&request.store))?;
    let path = match request.format {
        ExportFormat::Harbor => {
            let jobs = request.out.as_deref().ok_or(ExportError::NeedsPlace)?;
            Some(harbor::write(&mut source, jobs).await?)
        }
        format => write_rows(&mut source, format, request.out.clone()).await?,
    };
    Ok(ExportSummary {
        path,
        trials: source.len(),
        behind: source.missing_records(),
        unplanned: source.unplanned(),
        keys_left_out: request.format == ExportFormat::Csv && source.keys_left_out(),
    })
}

async fn write_rows(
    source: &mut ExportSource,
    format: ExportFormat,
    out: Option<PathBuf>,
) -> Result<Option<PathBuf>, ExportError> {
    if out.is_none() && !format.is_text() {
        return Err(ExportError::NeedsPlace);
    }
    let mut output = ExportOutput::open(out)?;
    match format {
        ExportFormat::Jsonl => json_lines::write(source, &mut output).await?,
        ExportFormat::Csv => csv::write(source, &mut output).await?,
        #[cfg(feature = "parquet")]
        ExportFormat::Parquet => parquet::write(source, &mut output).await?,
        ExportFormat::Harbor => unreachable!("it has no rows"),
    }
    output.finish()
}
