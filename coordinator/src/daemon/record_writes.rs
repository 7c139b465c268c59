//! Changes of the records of runs and farms. A record is changed by one at a time, and its file is
//! written first.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rollout_worker::supervise;

use super::record::RecordError;
use super::state_dir::{DaemonDir, StoredRecord};

/// State of the writes of one record.
#[derive(Debug, Default)]
pub(super) struct RecordWrites {
    /// Held while the record is written.
    turn: tokio::sync::Mutex<()>,
    /// Whether [`write_noted`] has something to do: what a session left could not be noted, or is to
    /// be tried again. Cleared by the holder of `turn`.
    is_unwritten: AtomicBool,
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

    /// Changes a record so that a session which failed is tried again.
    fn allow_retry(record: &mut Self::Record);
}

impl RecordWrites {
    /// Whether something that a session left is not in the file, or is to be tried again.
    pub(super) fn is_unwritten(&self) -> bool {
        self.is_unwritten.load(Ordering::Relaxed)
    }

    /// Lets [`write_noted`] try a session again that failed because of its disk, also if the failure
    /// could be noted.
    pub(super) fn retry_when_writable(&self) {
        self.is_unwritten.store(true, Ordering::Relaxed);
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

/// Writes what could not be noted. A session that failed then failed with the same disk, as far as is
/// known: it is tried again.
///
/// # Errors
/// That of the file system.
pub(super) async fn write_noted<O: RecordOwner>(
    owner: &O,
    dir: &Arc<DaemonDir>,
) -> Result<(), RecordError> {
    let _turn = owner.writes().turn.lock().await;
    if !owner.writes().is_unwritten() {
        return Ok(());
    }
    let mut record = owner.copy_record();
    O::allow_retry(&mut record);
    write(dir, record.clone()).await?;
    replace(owner, record, false);
    Ok(())
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
