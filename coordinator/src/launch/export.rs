//! Export of a run directory.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use rollout_protocol::event::EventKind;
use rollout_protocol::record::Settlement;

use crate::engine::journal::RunLayout;
use crate::engine::{RunManifest, RunState};
use crate::results::export::{self, ExportError, ExportRequest, ExportSummary, RunHeader};
use crate::results::view::{NumberedEvent, RunDirectory};

/// Exports the results of a run.
///
/// # Errors
/// [`ExportError`]; the output path is then unchanged.
pub async fn export(request: &ExportRequest) -> Result<ExportSummary, ExportError> {
    let header = header(&request.run_dir)?;
    let late = late_settlements(&request.run_dir, &header);
    export::export(request, header, late).await
}

/// Exports the analysis tables of a run to the directory `out`.
///
/// # Errors
/// [`ExportError`]; the output path is then unchanged.
pub fn export_tables(run_dir: &Path, out: &Path) -> Result<ExportSummary, ExportError> {
    let header = header(run_dir)?;
    let late = late_settlements(run_dir, &header);
    export::export_tables(run_dir, out, &header, late)
}

/// The settlements in the journal of a run that has not ended: its process writes records later, or was
/// killed before it could. A journal that cannot be read adds none.
fn late_settlements(run_dir: &Path, header: &RunHeader) -> Vec<Settlement> {
    if header.is_completed {
        return Vec::new();
    }
    let mut settled = HashMap::new();
    let mut see = |event: NumberedEvent| match event.event.kind {
        EventKind::TrialSettled { settlement, .. } => {
            settled.insert(settlement.item, Arc::unwrap_or_clone(settlement));
        }
        EventKind::TrialReopened { item, .. } => {
            settled.remove(&item);
        }
        _ => {}
    };
    let read = RunDirectory::open(run_dir).and_then(|run| run.view(None, Some(&mut see)));
    if let Err(error) = read {
        tracing::warn!("cannot read the journal of {}: {error}", run_dir.display());
    }
    settled.into_values().collect()
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
