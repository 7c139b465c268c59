//! Export of a run directory.

use std::path::Path;

use rollout_engine::journal::{RunLayout, SegmentIndex};
use rollout_engine::{RunManifest, RunState};
use rollout_protocol::event::EventKind;

use crate::results::SettledTrials;
use crate::results::export::{self, ExportError, ExportRequest, ExportSummary, RunHeader};
use crate::results::view::{NumberedEvent, RunDirectory, RunViewError};

/// Exports the results of a run.
///
/// # Errors
/// [`ExportError`]; the output path is then unchanged.
pub async fn export(request: &ExportRequest) -> Result<ExportSummary, ExportError> {
    let (header, settled) = open(&request.run_dir, false)?;
    export::export(request, header, settled).await
}

/// Exports the results of a copy of a run, which another host may own.
///
/// # Errors
/// [`ExportError`]; the output path is then unchanged.
pub async fn export_copy(request: &ExportRequest) -> Result<ExportSummary, ExportError> {
    let (header, settled) = open(&request.run_dir, true)?;
    export::export(request, header, settled).await
}

/// Exports the analysis tables of a run, or of a copy of one, to the directory `out`.
///
/// # Errors
/// [`ExportError`]; the output path is then unchanged.
pub fn export_tables(
    run_dir: &Path,
    is_copy: bool,
    out: &Path,
) -> Result<ExportSummary, ExportError> {
    let (header, settled) = open(run_dir, is_copy)?;
    export::export_tables(out, &header, &settled)
}

/// Opens a run whose settled trials are to be exported.
fn open(run_dir: &Path, is_copy: bool) -> Result<(RunHeader, SettledTrials), ExportError> {
    let mut header = header(run_dir)?;
    let mut settled = SettledTrials::open(run_dir)?;
    if !header.is_completed {
        let followed = follow_journal(run_dir, is_copy, &mut settled)
            .map_err(|error| ExportError::Journal(error.into()))?;
        header.settled = followed.unwrap_or(header.settled);
    }
    Ok((header, settled))
}

/// Brings trials to the end of the journal of a run that has not ended: its process writes records
/// later, or was killed before it could, and records of trials that run again stay until it ends.
/// Returns how many trials of the plan are settled; `None` if the directory has its records alone.
fn follow_journal(
    run_dir: &Path,
    is_copy: bool,
    settled: &mut SettledTrials,
) -> Result<Option<u64>, RunViewError> {
    let mut see = |event: NumberedEvent| {
        if let EventKind::TrialSettled { ordinal, settlement, .. } = event.event.kind {
            settled.add_journaled(ordinal, &settlement);
        }
    };
    let run = RunDirectory::open(run_dir)?;
    let run = if is_copy { run.without_owner() } else { run };
    let seen = run.view(None, Some(&mut see))?;
    if seen.header.epoch == 0 {
        return Ok(None);
    }
    settled.keep(|item| seen.fold().settled_at(item));
    Ok(Some(seen.counts.settled))
}

fn header(run_dir: &Path) -> Result<RunHeader, ExportError> {
    let layout = RunLayout::new(run_dir);
    let manifest = RunManifest::read(&layout).map_err(|error| ExportError::Header(error.into()))?;
    let manifest = manifest.ok_or_else(|| ExportError::NotRunDirectory {
        path: run_dir.to_owned(),
        what: "manifest.json",
    })?;
    // A session that was killed as it began leaves the manifest of the last one.
    let index = SegmentIndex::read(&layout);
    let has_later_session = index.is_ok_and(|index| index.next_epoch() > manifest.epoch + 1);
    Ok(RunHeader {
        run: manifest.run,
        job: manifest.job,
        created_at: manifest.created_at,
        updated_at: manifest.updated_at,
        is_completed: manifest.state == RunState::Completed && !has_later_session,
        settled: manifest.settled,
    })
}
