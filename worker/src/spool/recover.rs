//! Recovery of a dead worker's directory: its executions are stored and reported.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_util::{StreamExt as _, stream};
use rollout_base::backoff::OutageLog;
use rollout_base::shown_path::shown;
use rollout_base::supervise;
use rollout_protocol::Timestamp;
use rollout_protocol::error::{ErrorClass, ErrorCode, ErrorType, RetryClass, TrialError};
use rollout_protocol::id::{ExecId, RunId};
use rollout_protocol::record::LostReason;
use rollout_protocol::wire::delivery::PublishError;
use rollout_protocol::wire::heartbeat::ActiveExecution;
use rollout_protocol::wire::report::Report;
use rollout_queue::traits::WorkSource;
use rollout_store::BlobStore;

use super::entry::SpoolEntry;
use super::publish::publish;
use super::{SCRATCH_DIR, SPOOL_DIR, ScratchMark, discard};

/// Executions whose files are stored concurrently.
const CONCURRENT_STORES: usize = 8;
/// Most reports sent in one batch.
const REPORT_BATCH_SIZE: usize = 256;

/// Counts of the recovered executions of a dead worker.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RecoverySummary {
    /// Finished executions that were stored and reported.
    pub published: usize,
    /// Unfinished executions that were reported lost.
    pub lost: usize,
    /// Entries left in place, of other runs or unreadable. The worker directory must stay while it
    /// holds any.
    pub skipped: usize,
}

/// A worker directory that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read {}", shown(path))]
pub struct RecoverError {
    /// The path that cannot be read.
    pub path: PathBuf,
    /// The error of the system.
    #[source]
    pub source: io::Error,
}

/// Stores and reports the executions in the directory of a dead worker, see [`Recovery`].
///
/// # Errors
/// [`RecoverError`].
pub async fn recover(
    worker_dir: &Path,
    run: Option<RunId>,
    reason: LostReason,
    store: Arc<dyn BlobStore>,
    source: Arc<dyn WorkSource>,
) -> Result<RecoverySummary, RecoverError> {
    Ok(Recovery::read(worker_dir, run).await?.publish(reason, &*store, &*source, |_| {}).await)
}

/// The executions of a dead worker that must be stored or reported. The caller holds the lock of
/// the worker directory, and removes the directory when nothing is left in it.
#[derive(Debug, Default)]
pub struct Recovery {
    entries: Vec<SpoolEntry>,
    lost: Vec<(ScratchMark, PathBuf)>,
    /// Directories that are removed without a report.
    unreported_dirs: Vec<PathBuf>,
    skipped: usize,
}

impl Recovery {
    /// Reads the executions in a worker directory, of one run or of all.
    ///
    /// # Errors
    /// [`RecoverError`].
    pub async fn read(worker_dir: &Path, run: Option<RunId>) -> Result<Self, RecoverError> {
        let dir = worker_dir.to_owned();
        supervise::blocking(move || Self::read_blocking(&dir, run)).await
    }

    /// Its finished executions, for heartbeats: they must not be run again.
    pub fn finished(&self) -> Vec<ActiveExecution> {
        self.entries.iter().map(SpoolEntry::heartbeat_entry).collect()
    }

    /// Reports the unfinished executions lost for `reason`, then stores and reports the finished
    /// ones, and removes what was acknowledged; `said` is called with each finished execution.
    /// Returns when every report is acknowledged, however long store and queue need. A queue that
    /// acknowledges only journalled reports needs a coordinator that reads meanwhile.
    ///
    /// Dropping it or dying in it is harmless: a repetition sends the same reports again.
    pub async fn publish(
        self,
        reason: LostReason,
        store: &dyn BlobStore,
        source: &dyn WorkSource,
        mut on_published: impl FnMut(ExecId),
    ) -> RecoverySummary {
        let counts = RecoverySummary {
            published: self.entries.len(),
            lost: self.lost.len(),
            skipped: self.skipped,
        };
        remove_directories(self.unreported_dirs).await;
        let (lost, dirs): (Vec<_>, Vec<_>) =
            self.lost.into_iter().map(|(mark, dir)| (mark.lost_report(reason), dir)).unzip();
        send_reports(source, lost).await;
        remove_directories(dirs).await;
        let outage = &OutageLog::new("the blob store");
        let publishing: Vec<_> = (self.entries.into_iter())
            .map(|entry| async move { (publish(store, outage, &entry).await, entry.dir) })
            .collect();
        let stored = stream::iter(publishing).buffer_unordered(CONCURRENT_STORES);
        let mut stored = std::pin::pin!(stored.ready_chunks(REPORT_BATCH_SIZE));
        while let Some(stored) = stored.next().await {
            let (reports, dirs): (Vec<_>, Vec<_>) = stored.into_iter().unzip();
            let execs: Vec<ExecId> = reports.iter().map(|report| report.exec).collect();
            send_reports(source, reports).await;
            remove_directories(dirs).await;
            execs.into_iter().for_each(&mut on_published);
        }
        counts
    }

    fn read_blocking(worker_dir: &Path, run: Option<RunId>) -> Result<Self, RecoverError> {
        let mut found = Self::default();
        let wanted = |of: RunId| run.is_none_or(|run| run == of);
        let mut finished: Vec<ExecId> = Vec::new();
        for dir in directories(&worker_dir.join(SPOOL_DIR))? {
            match SpoolEntry::read(&dir) {
                // Its scratch directory is still there and identifies the execution, or its report
                // is acknowledged.
                Ok(None) => found.unreported_dirs.push(dir),
                Ok(Some(entry)) => {
                    let (run, _, _, exec) = entry.record.ids();
                    finished.push(exec);
                    if wanted(run) {
                        found.entries.push(entry);
                    } else {
                        found.skipped += 1;
                    }
                }
                Err(error) => {
                    tracing::error!(
                        "cannot read the spool entry {}, leaving it in place: {error}",
                        shown(&dir)
                    );
                    finished.extend(parse_exec_id(&dir));
                    found.skipped += 1;
                }
            }
        }
        for dir in directories(&worker_dir.join(SCRATCH_DIR))? {
            match ScratchMark::read(&dir) {
                Some(mark) if finished.contains(&mark.exec) => found.unreported_dirs.push(dir),
                Some(mark) if wanted(mark.run) => found.lost.push((mark, dir)),
                Some(_) => found.skipped += 1,
                None => found.unreported_dirs.push(dir),
            }
        }
        Ok(found)
    }
}

async fn remove_directories(dirs: Vec<PathBuf>) {
    if !dirs.is_empty() {
        supervise::blocking(move || dirs.iter().for_each(|dir| discard(dir))).await;
    }
}

/// The execution that a directory is named after.
fn parse_exec_id(dir: &Path) -> Option<ExecId> {
    dir.file_name()?.to_str()?.parse().ok()
}

/// The subdirectories of a directory, sorted by name; none when it does not exist.
fn directories(path: &Path) -> Result<Vec<PathBuf>, RecoverError> {
    let failed = |source| RecoverError { path: path.to_owned(), source };
    let entries = match fs::read_dir(path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let paths: io::Result<Vec<PathBuf>> = entries.map(|entry| Ok(entry?.path())).collect();
    let mut paths = paths.map_err(failed)?;
    paths.retain(|path| path.is_dir());
    paths.sort_unstable();
    Ok(paths)
}

/// Sends reports until each is acknowledged.
async fn send_reports(source: &dyn WorkSource, mut reports: Vec<Report>) {
    let outage = OutageLog::new("the queue");
    let mut backoff = outage.backoff();
    while !reports.is_empty() {
        match source.report(reports.clone()).await {
            Ok(answers) => {
                let mut full = None;
                let answered = std::mem::take(&mut reports).into_iter().zip(answers);
                for (report, answer) in answered {
                    match answer {
                        Ok(()) => {}
                        Err(refused @ PublishError::Full) => {
                            reports.push(report);
                            full = Some(refused);
                        }
                        Err(refused @ PublishError::TooLarge { .. }) => {
                            reports.push(
                                report.failed(unpublishable_error(&refused), Timestamp::now()),
                            );
                        }
                    }
                }
                match full {
                    Some(refused) => backoff.wait_after_failure(&refused).await,
                    None => backoff.succeeded(),
                }
            }
            Err(error) => backoff.wait_after_failure(&error).await,
        }
    }
}

/// The error that is reported instead of a report that is too large.
pub(crate) fn unpublishable_error(refused: &PublishError) -> TrialError {
    let message = format!("cannot publish the report: {refused}");
    TrialError::new(
        ErrorType::InternalError,
        ErrorCode::BUG,
        ErrorClass::Infrastructure,
        RetryClass::Permanent,
        message,
    )
}
