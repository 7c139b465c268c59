//! Finishing what a dead worker began to report.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_util::{StreamExt as _, stream};
use rollout_protocol::error::{ErrorClass, ErrorCode, ErrorType, RetryClass, TrialError};
use rollout_protocol::id::{ExecId, RunId};
use rollout_protocol::record::LostReason;
use rollout_protocol::wire::report::Report;

use super::entry::Kept;
use super::publish::{failed_report, publish};
use super::{SCRATCH, SPOOL, ScratchMark, discard};
use crate::outage::Outage;
use crate::port::{Refused, WorkSource};
use crate::store::BlobStore;
use crate::supervise;

/// Executions whose files are stored at the same time.
const AT_ONCE: usize = 8;

/// What became of the executions of a dead worker.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Finished ones that were stored and reported.
    pub published: usize,
    /// Unfinished ones that were reported lost.
    pub lost: usize,
    /// Entries left where they are, of other runs or unreadable. With any of them the worker
    /// directory must stay.
    pub left: usize,
}

/// A worker directory that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("reading {}", path.display())]
pub struct RecoverError {
    /// What.
    pub path: PathBuf,
    /// The system's error.
    #[source]
    pub source: io::Error,
}

/// Stores and reports what the worker directory of a dead worker holds, of one run or of all, and
/// removes what was acknowledged. Unfinished executions are lost for `reason`. Returns when all is
/// acknowledged, however long store and queue need: a queue that acknowledges what is journalled
/// needs a coordinator that reads meanwhile.
/// The caller holds the directory's lock, and removes the directory when nothing is left.
///
/// Dropping it or dying in it is harmless: whoever does it again says the same again.
///
/// # Errors
/// [`RecoverError`].
pub async fn recover(
    worker_dir: &Path,
    run: Option<RunId>,
    reason: LostReason,
    store: Arc<dyn BlobStore>,
    source: Arc<dyn WorkSource>,
) -> Result<Recovered, RecoverError> {
    let dir = worker_dir.to_owned();
    let found = supervise::blocking(move || Found::read(&dir, run)).await?;
    let counts =
        Recovered { published: found.kept.len(), lost: found.lost.len(), left: found.left };
    let outage = Outage::new("the blob store");
    let (store, outage) = (&*store, &outage);
    let publishing: Vec<_> = found.kept.iter().map(|kept| publish(store, outage, kept)).collect();
    let mut reports: Vec<Report> = stream::iter(publishing).buffered(AT_ONCE).collect().await;
    reports.extend(found.lost.into_iter().map(|mark| mark.lost(reason)));
    report(&*source, reports).await;
    let done = found.done;
    supervise::blocking(move || done.iter().for_each(|dir| discard(dir))).await;
    Ok(counts)
}

/// What is in a worker directory.
#[derive(Debug, Default)]
struct Found {
    kept: Vec<Kept>,
    lost: Vec<ScratchMark>,
    /// What is removed when all is acknowledged.
    done: Vec<PathBuf>,
    left: usize,
}

impl Found {
    fn read(worker_dir: &Path, run: Option<RunId>) -> Result<Self, RecoverError> {
        let mut found = Self::default();
        let wanted = |of: RunId| run.is_none_or(|run| run == of);
        let mut finished: Vec<ExecId> = Vec::new();
        for dir in directories(&worker_dir.join(SPOOL))? {
            match Kept::read(&dir) {
                // Its scratch directory is still there, and tells whose it was.
                Ok(None) => {}
                Ok(Some(kept)) => {
                    finished.push(kept.entry.record.exec);
                    if !wanted(kept.entry.record.run) {
                        found.left += 1;
                        continue;
                    }
                    found.kept.push(kept);
                }
                Err(error) => {
                    tracing::error!("left as it is: {}: {error}", dir.display());
                    finished.extend(named_by(&dir));
                    found.left += 1;
                    continue;
                }
            }
            found.done.push(dir);
        }
        for dir in directories(&worker_dir.join(SCRATCH))? {
            if let Some(mark) = ScratchMark::read(&dir)
                && !finished.contains(&mark.exec)
            {
                if !wanted(mark.run) {
                    found.left += 1;
                    continue;
                }
                found.lost.push(mark);
            }
            found.done.push(dir);
        }
        Ok(found)
    }
}

/// The execution whose directory it is.
fn named_by(dir: &Path) -> Option<ExecId> {
    dir.file_name()?.to_str()?.parse().ok()
}

/// The directories in a directory, by name; none when it does not exist.
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

/// Says reports until each is acknowledged.
async fn report(source: &dyn WorkSource, mut reports: Vec<Report>) {
    let outage = Outage::new("the queue");
    let mut patience = outage.patience();
    while !reports.is_empty() {
        match source.report(reports.clone()).await {
            Ok(answers) => {
                let mut full = None;
                let said = std::mem::take(&mut reports).into_iter().zip(answers);
                for (report, answer) in said {
                    match answer {
                        Ok(()) => {}
                        Err(refused @ Refused::Full) => {
                            reports.push(report);
                            full = Some(refused);
                        }
                        Err(refused @ Refused::TooLarge { .. }) => {
                            reports.push(failed_report(report, unsayable(&refused)));
                        }
                    }
                }
                match full {
                    Some(refused) => patience.failed(&refused).await,
                    None => patience.works(),
                }
            }
            Err(error) => patience.failed(&error).await,
        }
    }
}

/// What is reported in the place of a report that is too large.
pub(crate) fn unsayable(refused: &Refused) -> TrialError {
    let message = format!("the report could not be published: {refused}");
    TrialError::new(
        ErrorType::InternalError,
        ErrorCode::BUG,
        ErrorClass::Infrastructure,
        RetryClass::Permanent,
        message,
    )
}
