//! Export of a run directory.

use std::path::Path;

use crate::engine::journal::RunLayout;
use crate::engine::{RunManifest, RunState};
use crate::results::export::{self, ExportError, ExportRequest, ExportSummary, RunHeader};

/// Exports the results of a run.
///
/// # Errors
/// [`ExportError`]; the output path is then unchanged.
pub async fn export(request: &ExportRequest) -> Result<ExportSummary, ExportError> {
    export::export(request, header(&request.run_dir)?).await
}

/// Exports the analysis tables of a run to the directory `out`.
///
/// # Errors
/// [`ExportError`]; the output path is then unchanged.
pub fn export_tables(run_dir: &Path, out: &Path) -> Result<ExportSummary, ExportError> {
    export::export_tables(run_dir, out, &header(run_dir)?)
}

fn header(run_dir: &Path) -> Result<RunHeader, ExportError> {
    let manifest = RunManifest::read(&RunLayout::new(run_dir))
        .map_err(|error| ExportError::Header(error.into()))?;
    let manifest = manifest.ok_or_else(|| ExportError::NotRunDirectory {
        path: run_dir.to_owned(),
        what: "manifest.json",
    })?;
    Ok(RunHeader {
        run: manifest.run,
        job: manifest.job,
        created_at: manifest.created_at,
        updated_at: manifest.updated_at,
        is_completed: manifest.state == RunState::Completed,
        settled: manifest.settled,
    })
}
