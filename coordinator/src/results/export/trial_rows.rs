//! Exports with a row per trial, in one file or on standard output.

use std::path::PathBuf;

use super::columns::{ExportRow, ExportTable};
use super::source::ExportSource;
use super::{ExportError, ExportFormat, csv};
#[cfg(feature = "parquet")]
use crate::results::rows::ParquetRows;
use crate::results::rows::{RowOutput, write_line};

/// Writes the trials to a file, or to standard output without `out`. Returns the file's path.
pub(super) async fn write(
    source: &ExportSource,
    format: ExportFormat,
    out: Option<PathBuf>,
) -> Result<Option<PathBuf>, ExportError> {
    if out.is_none() && !format.is_text() {
        return Err(ExportError::NeedsOutputPath);
    }
    let mut output = RowOutput::open(out)?;
    match format {
        ExportFormat::Jsonl => write_json_lines(source, &mut output).await?,
        ExportFormat::Csv => csv::write(source, &mut output).await?,
        #[cfg(feature = "parquet")]
        ExportFormat::Parquet => output = write_parquet(source, output).await?,
        ExportFormat::Harbor
        | ExportFormat::Tables
        | ExportFormat::Atif
        | ExportFormat::TracesJsonl
        | ExportFormat::Sft => {
            unreachable!("this export is no list of trials")
        }
    }
    Ok(output.finish()?)
}

/// JSON Lines: an object per trial.
async fn write_json_lines(
    source: &ExportSource,
    output: &mut RowOutput,
) -> Result<(), ExportError> {
    let (run, job) = (source.header.run, &source.header.job);
    let mut line = Vec::new();
    for index in 0..source.len() {
        let trial = source.trial(index).await?;
        write_line::<ExportTable>(&ExportRow::new(run, job, &trial), &mut line);
        output.write_bytes(&line)?;
    }
    Ok(())
}

/// Parquet: a row per trial.
#[cfg(feature = "parquet")]
async fn write_parquet(source: &ExportSource, output: RowOutput) -> Result<RowOutput, ExportError> {
    let (run, job) = (source.header.run, &source.header.job);
    let mut rows = ParquetRows::create::<ExportTable>(output)?;
    for index in 0..source.len() {
        let trial = source.trial(index).await?;
        rows.add::<ExportTable>(&ExportRow::new(run, job, &trial))?;
    }
    Ok(rows.finish()?)
}
