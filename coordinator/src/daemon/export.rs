//! Results of a run in the formats of other tools.

use std::path::{Path, PathBuf};

use rollout_worker::archive::{self, ArchiveLimits, FilterDecision};
use rollout_worker::supervise;
use tempfile::TempDir;
use tokio::runtime::Handle;

use super::failure::RunFault;
use super::hosted_run::HostedRun;
use super::record::HostedKind;
use super::{Daemon, DaemonError, RecordError};
use crate::launch::export as launch;
use crate::results::export::{ExportError, ExportFormat, ExportRequest, ExportSummary};

/// Exports at a time: each takes a processor and space on the disk.
pub(super) const CONCURRENT_EXPORTS: usize = 2;

/// Limits of an archive: none, because everything in it is in the blob store.
const NO_LIMITS: ArchiveLimits = ArchiveLimits { entries: u64::MAX, bytes: u64::MAX };

/// A finished export.
#[derive(Debug)]
pub struct HostedExport {
    /// Its counts.
    pub summary: ExportSummary,
    /// The file with its content; of a directory, a tar archive. It is removed with this.
    pub path: PathBuf,
    /// Size of the content, bytes.
    pub size_bytes: u64,
    /// Whether it is an archive.
    pub is_archive: bool,
    /// Holds the file.
    _directory: TempDir,
}

/// Why an export failed.
enum ExportFault {
    Export(ExportError),
    Record(RecordError),
}

impl Daemon {
    /// Exports the results of a run.
    ///
    /// # Errors
    /// [`DaemonError`].
    pub async fn export(
        &self,
        run: &HostedRun,
        format: ExportFormat,
        min_reward: f64,
    ) -> Result<HostedExport, DaemonError> {
        if run.kind() == HostedKind::Tree {
            let reason = "it is a search, whose results are in its overview";
            return Err(DaemonError::Conflict { action: "export", reason });
        }
        // It is never closed.
        let _turn = self.exports.acquire().await.ok();
        let run_dir = run.directory().clone();
        if !run_dir.join("plan.json").exists() {
            return Err(DaemonError::Conflict { action: "export", reason: "it has not begun" });
        }
        let store = self.store_of(run).await?;
        let scratch = self.dir.uploads();
        let runtime = Handle::current();
        let exported = supervise::blocking(move || {
            let request = ExportRequest { run_dir, store, format, out: None, min_reward };
            runtime.block_on(export(request, &scratch))
        });
        exported.await.map_err(|fault| match fault {
            ExportFault::Export(error) => self.failed(RunFault::Export(error)),
            ExportFault::Record(error) => error.into(),
        })
    }
}

async fn export(request: ExportRequest, scratch: &Path) -> Result<HostedExport, ExportFault> {
    let failed = |error| ExportFault::Record(RecordError::file("write in", scratch)(error));
    let directory = tempfile::Builder::new().prefix(".tmp-export").tempdir_in(scratch);
    let directory = directory.map_err(failed)?;
    let content = directory.path().join("content");
    if request.format == ExportFormat::Harbor {
        std::fs::create_dir(&content).map_err(failed)?;
    }
    let is_archive = request.format == ExportFormat::Harbor || request.format.is_new_directory();
    let request = ExportRequest { out: Some(content.clone()), ..request };
    let summary = launch::export(&request).await.map_err(ExportFault::Export)?;
    let path = match is_archive {
        false => content,
        true => {
            let path = directory.path().join("content.tar");
            let all = |_: &Path, _: bool| FilterDecision::Include;
            let packed = archive::pack(&content, &path, NO_LIMITS, &all);
            packed.map_err(|error| failed(std::io::Error::other(error)))?;
            path
        }
    };
    let size_bytes = path.metadata().map_err(failed)?.len();
    Ok(HostedExport { summary, path, size_bytes, is_archive, _directory: directory })
}
