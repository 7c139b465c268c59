//! The state of executions on a worker's disk: a worker's death loses no finished execution, and
//! unfinished ones can be reported lost.
//!
//! ```text
//! <worker>/scratch/<exec>/execution.json   unfinished, may have an environment: reported lost
//! <worker>/spool/<exec>/entry.json         finished: stored and reported by this or another worker
//! <worker>/spool/<exec>/<n>                its files
//! ```
//! An entry is complete before the scratch directory is removed, and is removed when the queue has
//! acknowledged its report, `entry.json` first. Storing and reporting twice is harmless: blobs are
//! named by their content, reports by their execution.

mod entry;
mod persist;
mod publish;
mod recover;
mod scratch;

#[cfg(test)]
mod tests;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rollout_base::fs_make::make_directory;
use rollout_base::supervise;
use rollout_base::warning_limiter::WarningLimiter;
use rollout_base::write_check::check_writes;
use rollout_protocol::id::ExecId;

pub(crate) use self::entry::SpoolEntry;
pub(crate) use self::publish::{publish, publish_unspooled, unreadable_report};
pub(crate) use self::recover::unpublishable_error;
pub use self::recover::{RecoverError, Recovery, RecoverySummary, recover};
pub use self::scratch::ScratchMark;

use crate::executor::Finished;

/// Name of the directory of spooled executions in a worker directory.
const SPOOL_DIR: &str = "spool";
/// Name of the directory of scratch directories in a worker directory.
const SCRATCH_DIR: &str = "scratch";

/// The finished executions of a live worker that are not reported yet.
#[derive(Debug)]
pub(crate) struct Spool {
    worker_dir: PathBuf,
    bytes: AtomicU64,
}

impl Spool {
    pub(crate) fn new(worker_dir: PathBuf) -> Self {
        Self { worker_dir, bytes: AtomicU64::new(0) }
    }

    /// The scratch directory of an execution.
    pub(crate) fn scratch(&self, exec: ExecId) -> PathBuf {
        self.worker_dir.join(SCRATCH_DIR).join(exec.to_string())
    }

    /// Bytes of executions that are not reported yet.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Whether executions can be spooled, as far as a small file shows.
    pub(crate) async fn takes_writes(&self) -> bool {
        let dir = self.worker_dir.join(SPOOL_DIR);
        let check = move || make_directory(&dir, 0).and_then(|()| check_writes(&dir));
        supervise::blocking(check).await.is_ok()
    }

    /// Makes a finished execution durable and removes its scratch directory; `marker` is whether a
    /// result marker is written later. May be retried.
    pub(crate) async fn persist(
        &self,
        finished: &Finished,
        marker: bool,
    ) -> io::Result<SpoolEntry> {
        let (worker_dir, finished) = (self.worker_dir.clone(), finished.clone());
        let write = move || persist::persist(&worker_dir, finished, marker);
        let entry = supervise::blocking(write).await?;
        self.bytes.fetch_add(entry.bytes, Ordering::Relaxed);
        Ok(entry)
    }

    /// The execution with its files where [`persist`](Self::persist) has left them when it failed.
    pub(crate) async fn locate_files(&self, finished: &Finished) -> Finished {
        let finished = finished.clone();
        if finished.files.is_empty() {
            return finished;
        }
        let (.., exec) = finished.record.ids();
        let dir = self.entry_dir(exec);
        supervise::blocking(move || persist::locate_files(&dir, finished)).await
    }

    /// Removes the entry of an execution whose report is acknowledged.
    pub(crate) async fn remove(&self, entry: SpoolEntry) {
        let SpoolEntry { dir, bytes, .. } = entry;
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        supervise::blocking(move || discard(&dir)).await;
    }

    /// Removes the scratch directory of an execution that left nothing.
    pub(crate) async fn clear_scratch(&self, exec: ExecId) {
        let scratch = self.scratch(exec);
        supervise::blocking(move || discard(&scratch)).await;
    }

    /// Removes what an execution that could not be spooled has left: its scratch directory, and a part
    /// of an entry.
    pub(crate) async fn clear_unspooled(&self, exec: ExecId) {
        let dirs = [self.entry_dir(exec), self.scratch(exec)];
        supervise::blocking(move || dirs.iter().for_each(|dir| discard(dir))).await;
    }

    fn entry_dir(&self, exec: ExecId) -> PathBuf {
        self.worker_dir.join(SPOOL_DIR).join(exec.to_string())
    }
}

/// Files that a disk did not let go. Every execution leaves some on one that takes no writes.
static LEFT: WarningLimiter = WarningLimiter::new();

/// Removes an entry or a scratch directory that is no longer needed. If that fails or this process
/// dies in it, the worker that adopts the worker directory removes it.
fn discard(dir: &Path) {
    unmark(dir);
    match fs::remove_dir_all(dir) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => LEFT.warn(&format_args!("cannot remove {}: {error}", dir.display())),
    }
}

/// Removes what tells that a directory holds an execution: half a directory must not be taken for a
/// whole one.
fn unmark(dir: &Path) {
    for mark in [entry::ENTRY_FILE, scratch::MARK_FILE] {
        match fs::remove_file(dir.join(mark)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                LEFT.warn(&format_args!("cannot remove {mark} in {}: {error}", dir.display()));
            }
            _ => {}
        }
    }
}
