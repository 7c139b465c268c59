//! Directories of tables: `<table>.jsonl`, and `<table>.parquet` if the program has that feature.

#[cfg(test)]
mod tests;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rollout_protocol::id::RunId;
use rollout_protocol::record::Settlement;

use super::agent_summary::AgentSummaries;
use super::comparisons::Comparisons;
use super::event_counts::{EventCountsByAgent, EventCountsByTrial};
use super::guardrails::Guardrails;
use super::metrics_long::MetricsLong;
use super::trials::Trials;
use super::tries::Tries;
use super::{TableSink, TablesError, derive};
use crate::plan::JobPlan;
use crate::results::files::durable::{remove, sync_dir};
use crate::results::files::{FileError, layout};
#[cfg(feature = "parquet")]
use crate::results::rows::ParquetRows;
use crate::results::rows::{RowOutput, RowsError, Table, parent, write_line};
use crate::results::settlements::{SettledTrials, SettlementsError};

/// Trials of written tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WrittenTables {
    /// Trials with rows.
    pub(crate) trials: u64,
    /// Settlements of trials that are no longer in the plan.
    pub(crate) unplanned: u64,
}

/// Writes the tables of settled trials to a directory that is empty or missing: completely or not at
/// all.
///
/// # Errors
/// [`TablesError`]; `out` is then unchanged.
pub(crate) fn write_directory(
    settled: &SettledTrials,
    run: RunId,
    out: &Path,
) -> Result<WrittenTables, TablesError> {
    write_staged(out, |staging| write_files(settled, run, staging))
}

/// Writes the tables of these trials, in plan order with their ordinals, to a directory that is
/// empty or missing: completely or not at all.
///
/// # Errors
/// [`TablesError`]; `out` is then unchanged.
pub(crate) fn write_settlements(
    run: RunId,
    plan: &JobPlan,
    settled: impl Iterator<Item = (u64, Settlement)>,
    out: &Path,
) -> Result<(), TablesError> {
    write_staged(out, |staging| write_rows(run, plan, settled.map(Ok), staging))
}

/// Fills a new directory beside `out`, then gives it that name.
fn write_staged<T>(
    out: &Path,
    write: impl FnOnce(&Path) -> Result<T, TablesError>,
) -> Result<T, TablesError> {
    check_empty(out)?;
    let failed =
        |action, path: &Path, error| RowsError::from(FileError::with_context(action, path)(error));
    let beside = parent(out);
    fs::create_dir_all(beside).map_err(|error| failed("create", beside, error))?;
    let staging = tempfile::Builder::new()
        .prefix(".new-")
        .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .tempdir_in(beside)
        .map_err(|error| failed("create a directory in", beside, error))?;
    let written = write(staging.path())?;
    match fs::rename(staging.path(), out) {
        // The directory has its new name.
        Ok(()) => drop(staging.keep()),
        Err(error) if is_occupied(&error) => return Err(TablesError::NotEmpty(out.to_owned())),
        Err(error) => return Err(failed("move a directory to", out, error).into()),
    }
    sync_dir(beside).map_err(RowsError::from)?;
    Ok(written)
}

/// Replaces the tables in the directory of a complete run with this number of settled trials, each
/// file atomically. Does nothing in a directory without `plan.json`.
///
/// # Errors
/// [`TablesError`]; the remaining files are then unchanged.
pub(crate) fn write_to_run(run_dir: &Path, run: RunId, trials: u64) -> Result<(), TablesError> {
    let tables = run_dir.join(layout::TABLES);
    let settled = match SettledTrials::open(run_dir) {
        Err(SettlementsError::NoPlan(_)) => return Ok(()),
        opened => opened?,
    };
    if settled.len() != trials {
        return Err(TablesError::Incomplete { found: settled.len(), expected: trials });
    }
    fs::create_dir_all(&tables)
        .map_err(FileError::with_context("create", &tables))
        .map_err(RowsError::from)?;
    write_files(&settled, run, &tables)?;
    sync_dir(run_dir).map_err(RowsError::from)?;
    Ok(())
}

/// Removes the tables from the directory of a run: they describe complete runs only.
///
/// # Errors
/// [`FileError`].
pub(crate) fn remove_from_run(run_dir: &Path) -> Result<(), FileError> {
    remove(&run_dir.join(layout::TABLES))
}

fn write_files(
    settled: &SettledTrials,
    run: RunId,
    directory: &Path,
) -> Result<WrittenTables, TablesError> {
    write_rows(run, settled.plan(), settled.iter(), directory)?;
    Ok(WrittenTables { trials: settled.len(), unplanned: settled.unplanned() })
}

fn write_rows(
    run: RunId,
    plan: &JobPlan,
    settled: impl Iterator<Item = Result<(u64, Settlement), SettlementsError>>,
    directory: &Path,
) -> Result<(), TablesError> {
    let mut files = TableFiles::create(directory)?;
    derive(run, plan, settled, &mut files)?;
    Ok(files.finish()?)
}

/// Refuses a file, and a directory that has entries.
fn check_empty(out: &Path) -> Result<(), TablesError> {
    match fs::read_dir(out).map(|mut entries| entries.next().is_none()) {
        Ok(true) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Ok(false) => Err(TablesError::NotEmpty(out.to_owned())),
        Err(error) if is_occupied(&error) => Err(TablesError::NotEmpty(out.to_owned())),
        Err(error) => Err(RowsError::from(FileError::with_context("read", out)(error)).into()),
    }
}

fn is_occupied(error: &io::Error) -> bool {
    use io::ErrorKind::{DirectoryNotEmpty, NotADirectory};
    matches!(error.kind(), DirectoryNotEmpty | NotADirectory)
}

/// The files of all tables, under construction.
struct TableFiles(Vec<TableFile>);

/// The files of one table.
struct TableFile {
    table: &'static str,
    json_lines: RowOutput,
    line: Vec<u8>,
    #[cfg(feature = "parquet")]
    parquet: ParquetRows<RowOutput>,
}

impl TableFiles {
    fn create(directory: &Path) -> Result<Self, RowsError> {
        Ok(Self(vec![
            TableFile::create::<Trials>(directory)?,
            TableFile::create::<Tries>(directory)?,
            TableFile::create::<MetricsLong>(directory)?,
            TableFile::create::<EventCountsByTrial>(directory)?,
            TableFile::create::<EventCountsByAgent>(directory)?,
            TableFile::create::<AgentSummaries>(directory)?,
            TableFile::create::<Comparisons>(directory)?,
            TableFile::create::<Guardrails>(directory)?,
        ]))
    }

    /// Gives every file its name.
    fn finish(self) -> Result<(), RowsError> {
        self.0.into_iter().try_for_each(TableFile::finish)
    }
}

impl TableSink for TableFiles {
    fn add<T: Table>(&mut self, row: &T::Row<'_>) -> Result<(), RowsError> {
        let file = self.0.iter_mut().find(|file| file.table == T::NAME);
        file.expect("every table has a file").add::<T>(row)
    }
}

impl TableFile {
    fn create<T: Table>(directory: &Path) -> Result<Self, RowsError> {
        let path = |extension: &str| -> Option<PathBuf> {
            Some(directory.join(format!("{}.{extension}", T::NAME)))
        };
        Ok(Self {
            table: T::NAME,
            json_lines: RowOutput::open(path("jsonl"))?,
            line: Vec::new(),
            #[cfg(feature = "parquet")]
            parquet: ParquetRows::create::<T>(RowOutput::open(path("parquet"))?)?,
        })
    }

    fn add<T: Table>(&mut self, row: &T::Row<'_>) -> Result<(), RowsError> {
        write_line::<T>(row, &mut self.line);
        self.json_lines.write_bytes(&self.line)?;
        #[cfg(feature = "parquet")]
        self.parquet.add::<T>(row)?;
        Ok(())
    }

    fn finish(self) -> Result<(), RowsError> {
        self.json_lines.finish()?;
        #[cfg(feature = "parquet")]
        self.parquet.finish()?.finish()?;
        Ok(())
    }
}
