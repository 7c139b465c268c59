//! Export of a run directory.

use crate::engine::journal::RunLayout;
use crate::engine::{RunManifest, RunState};
use crate::results::export::{self, ExportError, ExportRequest, ExportSummary, RunHeader};

/// Exports the results of a run.
///
/// # Errors
/// [`ExportError`]; the output path is then unchanged.
pub async fn export(request: &ExportRequest) -> Result<ExportSummary, ExportError> {
    let manifest = RunManifest::read(&RunLayout::new(&request.run_dir))
        .map_err(|error| ExportError::Header(error.into()))?;
    let manifest = manifest.ok_or_else(|| ExportError::NotRunDirectory {
        path: request.run_dir.clone(),
        what: "manifest.json",
    })?;
    let header = RunHeader {
        run: manifest.run,
        job: manifest.job,
        created_at: manifest.created_at,
        updated_at: manifest.updated_at,
        is_completed: manifest.state == RunState::Completed,
        settled: manifest.settled,
    };
    export::export(request, header).await
}
