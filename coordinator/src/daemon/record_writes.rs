//! Changes of the records of runs and farms. A record is changed by one at a time, and its file is
//! written first.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rollout_base::supervise;

use super::disk_retries::DiskRetries;
use super::record::RecordError;
use super::state_dir::{DaemonDir, StoredRecord};

/// State of the writes of one record.
#[derive(Debug, Default)]
pub(super) struct RecordWrites {
    /// Held while the record is written.
    turn: tokio::sync::Mutex<()>,
    /// Whether what a session left could not be noted. Cleared by the holder of `turn`.
    is_unwritten: AtomicBool,
    retries: DiskRetries,
}

/// A run or a farm, which has a record in memory and in a file.
pub(super) trait RecordOwner {
    /// The record.
    type Record: StoredRecord + Clone + PartialEq + Send + 'static;

    /// The state of its writes.
    fn writes(&self) -> &RecordWrites;

    /// A copy of the record in memory.
    fn copy_record(&self) -> Self::Record;

    /// Replaces the record in memory.
    fn replace_record(&self, record: Self::Record);

    /// Changes a record so that a session which failed with the disk is tried again. Returns whether
    /// there is one.
    fn allow_retry(record: &mut Self::Record) -> bool;
}

impl RecordWrites {
    /// Whether something that a session left is not in the file.
    pub(super) fn is_unwritten(&self) -> bool {
        self.is_unwritten.load(Ordering::Relaxed)
    }

    /// The retries of sessions that failed with the disk.
    pub(super) fn retries(&self) -> &DiskRetries {
        &self.retries
    }
}

/// Changes the record, durably; a change that `change` refuses has no effect.
///
/// # Errors
/// The refusal, or that of the file system.
pub(super) async fn update<O: RecordOwner, E: From<RecordError>>(
    owner: &O,
    dir: &Arc<DaemonDir>,
    change: impl FnOnce(&mut O::Record) -> Result<(), E>,
) -> Result<(), E> {
    let _turn = owner.writes().turn.lock().await;
    let mut record = owner.copy_record();
    change(&mut record)?;
    if record == owner.copy_record() {
        return Ok(());
    }
    write(dir, record.clone()).await?;
    replace(owner, record, false);
    Ok(())
}

/// Notes what a session left. It holds in this process even if it cannot be written: a session that
/// failed must not begin again at once. [`write_noted`] writes it later.
///
/// # Errors
/// That of the file system.
pub(super) async fn note<O: RecordOwner>(
    owner: &O,
    dir: &Arc<DaemonDir>,
    change: impl FnOnce(&mut O::Record),
) -> Result<(), RecordError> {
    let _turn = owner.writes().turn.lock().await;
    let mut record = owner.copy_record();
    change(&mut record);
    let written = write(dir, record.clone()).await;
    replace(owner, record, written.is_err());
    written
}

/// Writes what could not be noted, and lets a session begin again that failed with the disk. Returns
/// whether there is one.
///
/// # Errors
/// That of the file system.
pub(super) async fn write_noted<O: RecordOwner>(
    owner: &O,
    dir: &Arc<DaemonDir>,
) -> Result<bool, RecordError> {
    let _turn = owner.writes().turn.lock().await;
    let mut record = owner.copy_record();
    let may_begin = O::allow_retry(&mut record);
    if may_begin || owner.writes().is_unwritten() {
        write(dir, record.clone()).await?;
        replace(owner, record, false);
    }
    Ok(may_begin)
}

/// Writes a record, durably.
async fn write<R: StoredRecord + Send + 'static>(
    dir: &Arc<DaemonDir>,
    record: R,
) -> Result<(), RecordError> {
    let dir = Arc::clone(dir);
    supervise::blocking(move || dir.write_record(&record)).await
}

fn replace<O: RecordOwner>(owner: &O, record: O::Record, is_unwritten: bool) {
    owner.writes().is_unwritten.store(is_unwritten, Ordering::Relaxed);
    owner.replace_record(record);
}
