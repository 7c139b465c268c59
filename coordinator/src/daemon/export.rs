//! Results of a run in the formats of other tools.

use std::cell::Cell;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rollout_base::shared_limit::{LimitReached, SharedPlace};
use rollout_base::supervise::{self, TaskPanic};
use rollout_store::archive::{self, ArchiveError, ArchiveLimits, ArchivePath, FilterDecision};
use tempfile::TempDir;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::disk::{UserDisk, bytes_in};
use super::failure::RunFault;
use super::hosted_run::HostedRun;
use super::principal::Principal;
use super::record::HostedKind;
use super::{Daemon, DaemonError, RecordError};
use crate::launch::export as launch;
use crate::results::export::{
    ExportError, ExportFormat, ExportRequest, ExportSummary, until_stopped,
};

/// Exports at a time: each takes a processor and space on the disk.
pub(super) const CONCURRENT_EXPORTS: u64 = 4;

/// Directory that documents of exports name: where the archive is unpacked is not known.
const SHOWN_IN: &str = "/jobs";

/// Time between two looks at the size of an export that is being made.
const MEASURE_INTERVAL: Duration = Duration::from_millis(200);

/// How much longer than a look the pause after it is: a look reads all directories.
const PAUSE_PER_MEASUREMENT: u32 = 4;

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
    /// Its part of the disk.
    _room: SharedPlace,
}

/// Why an export failed.
enum ExportFault {
    Export(ExportError),
    Record(RecordError),
    Daemon(DaemonError),
}

impl Daemon {
    /// Exports the results of a run for a user.
    ///
    /// # Errors
    /// [`DaemonError`].
    pub async fn export(
        &self,
        user: &Principal,
        run: &HostedRun,
        format: ExportFormat,
        min_reward: f64,
    ) -> Result<HostedExport, DaemonError> {
        if run.kind() == HostedKind::Tree {
            let reason = "it is a search, whose results are in its overview";
            return Err(DaemonError::Conflict { action: "export", reason });
        }
        let turn = self.exports.acquire(&user.limit_user(), 0, 1).await;
        let run_dir = run.directory().clone();
        if !run_dir.join("plan.json").exists() {
            return Err(DaemonError::Conflict { action: "export", reason: "it has not begun" });
        }
        let store = self.store_of(run).await?;
        let scratch = self.dir.uploads();
        let runtime = Handle::current();
        let (disk, user) = (Arc::clone(&self.disk), user.limit_user());
        let (_wanted, unwanted) = oneshot::channel();
        let exported = supervise::blocking(move || {
            // The turn ends with the export, also if the client has gone.
            let _turn = turn;
            let shown_in = Some(PathBuf::from(SHOWN_IN));
            let request = ExportRequest { run_dir, store, format, out: None, shown_in, min_reward };
            let room = disk.room(&user, 1).map_err(ExportFault::Daemon)?;
            runtime.block_on(export(request, &scratch, (disk, room), unwanted))
        });
        exported.await.map_err(|fault| match fault {
            ExportFault::Export(error) => self.failed(RunFault::Export(error)),
            ExportFault::Record(error) => error.into(),
            ExportFault::Daemon(error) => error,
        })
    }
}

async fn export(
    request: ExportRequest,
    scratch: &Path,
    (disk, room): (Arc<UserDisk>, SharedPlace),
    unwanted: oneshot::Receiver<()>,
) -> Result<HostedExport, ExportFault> {
    let failed = |error| ExportFault::Record(RecordError::file("write in", scratch)(error));
    let directory = tempfile::Builder::new().prefix(".tmp-export").tempdir_in(scratch);
    let directory = directory.map_err(failed)?;
    let content = directory.path().join("content");
    if request.format == ExportFormat::Harbor {
        std::fs::create_dir(&content).map_err(failed)?;
    }
    let is_archive = request.format == ExportFormat::Harbor || request.format.is_new_directory();
    let request = ExportRequest { out: Some(content.clone()), ..request };
    let (stop, (finish, finished)) = (Arc::new(AtomicBool::new(false)), oneshot::channel());
    let ends = [finished, unwanted];
    let taken = (Arc::clone(&disk), room);
    let measuring = measure(directory.path().to_owned(), taken, Arc::clone(&stop), ends);
    // A task of its own: some formats are written without a pause.
    let mut measuring = supervise::spawn("export size", measuring);
    let summary = tokio::select! {
        summary = until_stopped(stop, launch::export(&request)) => summary,
        measured = &mut measuring => return Err(outgrown(&measured)),
    };
    drop(finish);
    let mut room = match measuring.await {
        Ok(Ok(room)) => room,
        ended => return Err(outgrown(&ended)),
    };
    let mut summary = summary.map_err(ExportFault::Export)?;
    disk.grow(&mut room, bytes_in(directory.path())).map_err(no_disk)?;
    let path = match is_archive {
        false => content,
        true => {
            let path = directory.path().join("content.tar");
            // The archive is about as large as the files, which stay until it is sent.
            let bytes = room.amount().saturating_mul(2);
            disk.grow(&mut room, bytes).map_err(no_disk)?;
            summary.paths_left_out = pack(&content, &path).map_err(|error| match error {
                ArchiveError::Io { .. } => failed(io::Error::other(error)),
                error => not_packable(&error),
            })?;
            path
        }
    };
    let size_bytes = path.metadata().map_err(failed)?.len();
    Ok(HostedExport { summary, path, size_bytes, is_archive, _directory: directory, _room: room })
}

/// Packs a directory without the paths that no archive may have: what an agent left may be deeper
/// here than in its own archive. Gives their number.
fn pack(content: &Path, to: &Path) -> Result<u64, ArchiveError> {
    let left_out = Cell::new(0);
    let fitting = |path: &Path, _: bool| match ArchivePath::clean(path.as_os_str().as_bytes()) {
        Ok(_) => FilterDecision::Include,
        Err(_) => {
            left_out.set(left_out.get() + 1);
            FilterDecision::Exclude
        }
    };
    archive::pack(content, to, NO_LIMITS, &fitting)?;
    Ok(left_out.get())
}

/// The fault of an export whose content is no archive. Its disk has no fault.
fn not_packable(error: &ArchiveError) -> ExportFault {
    tracing::warn!("cannot make the archive of an export: {error}");
    let reason = "one of its files cannot be in an archive";
    ExportFault::Daemon(DaemonError::Conflict { action: "export", reason })
}

fn no_disk(reached: LimitReached) -> ExportFault {
    ExportFault::Daemon(DaemonError::NoDisk(reached))
}

/// The fault of an export whose measuring ended before it.
fn outgrown(measured: &Result<Result<SharedPlace, LimitReached>, TaskPanic>) -> ExportFault {
    match measured {
        Ok(Err(reached)) => no_disk(*reached),
        Ok(Ok(_)) | Err(_) => ExportFault::Daemon(DaemonError::Unfinished),
    }
}

/// Lets a room grow with the files in a directory, until these are finished. Sets `stop` if there is no
/// more room, or if the request for them has gone. The senders of both ends are dropped.
///
/// # Errors
/// [`LimitReached`]: there is no more room.
async fn measure(
    directory: PathBuf,
    (disk, mut room): (Arc<UserDisk>, SharedPlace),
    stop: Arc<AtomicBool>,
    [mut finished, mut unwanted]: [oneshot::Receiver<()>; 2],
) -> Result<SharedPlace, LimitReached> {
    let mut pause = MEASURE_INTERVAL;
    loop {
        tokio::select! {
            _ = &mut finished => return Ok(room),
            _ = &mut unwanted => {
                stop.store(true, Ordering::Relaxed);
                return Ok(room);
            }
            () = tokio::time::sleep(pause) => {}
        }
        let (began, measured, disk) = (Instant::now(), directory.clone(), Arc::clone(&disk));
        let grown = supervise::blocking(move || {
            let grown = disk.grow(&mut room, bytes_in(&measured));
            grown.map(|()| room)
        });
        match grown.await {
            Ok(grown) => room = grown,
            Err(reached) => {
                stop.store(true, Ordering::Relaxed);
                return Err(reached);
            }
        }
        pause = MEASURE_INTERVAL.max(began.elapsed() * PAUSE_PER_MEASUREMENT);
    }
}

#[cfg(test)]
mod tests {
    use rollout_protocol::limits::{ARCHIVE_DEPTH, ARCHIVE_PATH_BYTES};
    use rollout_store::archive::extract_trusted;

    use super::*;

    #[tokio::test]
    async fn paths_that_no_archive_may_have_are_left_out_of_an_export() {
        let directory = tempfile::tempdir().expect("a directory");
        let content = directory.path().join("content");
        let long = vec!["a".repeat(200); ARCHIVE_PATH_BYTES / 200 + 1].join("/");
        let deep = "d/".repeat(ARCHIVE_DEPTH);
        for path in [long.as_str(), deep.as_str()] {
            std::fs::create_dir_all(content.join(path)).expect("made");
        }
        let deepest = content.join(&deep);
        std::fs::write(deepest.join("file"), "x").expect("written");
        std::fs::write(content.join("result.json"), "{}").expect("written");
        let archive = directory.path().join("content.tar");
        assert_eq!(pack(&content, &archive).expect("packed"), 2);
        let unpacked = directory.path().join("unpacked");
        let file = tokio::fs::File::open(&archive).await.expect("an archive");
        let limits = ArchiveLimits { entries: 1000, bytes: 1024 * 1024 };
        extract_trusted(file, &unpacked, limits).await.expect("unpacked");
        assert!(unpacked.join("result.json").is_file());
        assert!(unpacked.join(&deep).is_dir());
        assert!(!unpacked.join(&deep).join("file").exists());
    }
}
