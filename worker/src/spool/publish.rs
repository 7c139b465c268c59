//! Upload of a spooled execution, and its report.

use std::fs::File;
use std::io;
use std::path::PathBuf;

use bytes::Bytes;
use rollout_base::backoff::{OutageLog, error_chain};
use rollout_base::shortage::Shortage;
use rollout_base::shown_path::shown;
use rollout_base::supervise;
use rollout_base::warning_limiter::WarningLimiter;
use rollout_protocol::blob::BlobRef;
use rollout_protocol::error::{ErrorCode, ErrorType, TrialError};
use rollout_protocol::phase::Phase;
use rollout_protocol::record::{ExecutionRecord, LostReason, Verdict};
use rollout_protocol::wire::marker::ResultMarker;
use rollout_protocol::wire::report::{Report, ReportBody};
use rollout_store::{BlobContent, BlobStore, StoreError, put_json};

use super::entry::SpoolEntry;
use crate::executor::Finished;

/// Results that could not be stored. The fault of one disk or of a store concerns many.
static UNSTORABLE: WarningLimiter = WarningLimiter::new();

/// Stores a spooled execution, retrying for as long as the store is down, and returns its report.
/// An execution that the store rejects for good, or of which a file is gone, is reported as an
/// infrastructure failure.
pub(crate) async fn publish(
    store: &dyn BlobStore,
    outage: &OutageLog,
    entry: &SpoolEntry,
) -> Report {
    let mut backoff = outage.backoff();
    loop {
        match store_once(store, entry).await {
            Ok(report) => {
                backoff.succeeded();
                return report;
            }
            Err(error) if error.is_transient() => {
                if let Some(file) = find_missing_file(entry).await {
                    return entry.unstorable_report(&format!("{} is missing", shown(&file)));
                }
                backoff.wait_after_failure(&error).await;
            }
            Err(error) => return entry.unstorable_report(&error_chain(&error)),
        }
    }
}

/// Like [`publish`] for an execution that cannot be spooled, because its worker's disk takes no writes.
/// What is on that disk may be readable. An execution of which a file is not is reported as an
/// infrastructure failure.
pub(crate) async fn publish_unspooled(
    store: &dyn BlobStore,
    outage: &OutageLog,
    finished: &Finished,
    marker: bool,
) -> Report {
    let unstorable =
        |code, reason: &str| unstorable_report(&finished.record, finished.stopped, code, reason);
    let mut backoff = outage.backoff();
    loop {
        let stored = match finished.store(store).await {
            Ok(record) => store_record(store, &record, finished.stopped, marker).await,
            Err(error) => Err(error),
        };
        match stored {
            Ok(report) => {
                backoff.succeeded();
                return report;
            }
            Err(error) if error.is_transient() => {
                if let Some(reason) = find_unreadable_file(finished).await {
                    return unstorable(ErrorCode::DISK_FAILED, &reason);
                }
                backoff.wait_after_failure(&error).await;
            }
            Err(error) => return unstorable(ErrorCode::STORE_FAILED, &error_chain(&error)),
        }
    }
}

/// Why a file of an execution cannot be read, if one cannot.
async fn find_unreadable_file(finished: &Finished) -> Option<String> {
    let files: Vec<PathBuf> = finished.files.iter().map(|file| file.file.clone()).collect();
    let read = |path: &PathBuf| io::copy(&mut File::open(path)?, &mut io::sink());
    let look = move || {
        files.iter().find_map(|path| {
            let error = read(path).err().filter(is_lasting)?;
            Some(format!("{}: {error}", shown(path)))
        })
    };
    supervise::blocking(look).await
}

/// Whether a repetition ends with the same error: a host that ran out of open files or memory may have
/// some again.
fn is_lasting(error: &io::Error) -> bool {
    Shortage::from_io_error(error).is_none()
}

/// A file that no repetition can store.
async fn find_missing_file(entry: &SpoolEntry) -> Option<PathBuf> {
    let entry = entry.clone();
    supervise::blocking(move || entry.find_missing_file()).await
}

async fn store_once(store: &dyn BlobStore, entry: &SpoolEntry) -> Result<Report, StoreError> {
    let files = entry.files.iter().enumerate();
    let contents = files
        .map(|(index, file)| BlobContent::of_file(entry.file(index), file.media_type, file.digest));
    let blobs = store.put_many(contents.collect()).await?;
    if let Some((file, found)) = entry.find_changed_file(&blobs) {
        let file = shown(&file);
        let reason = format!("{file} changed on disk: its digest is now {found}");
        return Ok(entry.unstorable_report(&reason));
    }
    store_record(store, &entry.record_with(blobs), entry.stopped, entry.marker).await
}

/// Stores a complete record; returns its report.
async fn store_record(
    store: &dyn BlobStore,
    record: &ExecutionRecord,
    stopped: Option<Phase>,
    marker: bool,
) -> Result<Report, StoreError> {
    let blob = put_json(store, record).await?;
    if marker {
        put_marker(store, record, &blob).await?;
    }
    Ok(match stopped {
        None => record.result_report(blob),
        Some(phase) => record.report(ReportBody::Lost {
            reason: LostReason::Stopped,
            phase: Some(phase),
            record: Some(blob),
            cost: record.verdict().cost,
            model_use: record.verdict().model_use,
        }),
    })
}

async fn put_marker(
    store: &dyn BlobStore,
    record: &ExecutionRecord,
    blob: &BlobRef,
) -> Result<(), StoreError> {
    let (run, item, try_id, exec) = record.ids();
    let path = ResultMarker { run, item, try_id, exec, record: blob.digest }.to_string();
    let content = serde_json::to_vec(blob).expect("a reference has only text keys");
    store.put_document(&path, Bytes::from(content)).await?;
    Ok(())
}

impl SpoolEntry {
    fn unstorable_report(&self, reason: &str) -> Report {
        unstorable_report(&self.record, self.stopped, ErrorCode::STORE_FAILED, reason)
    }
}

/// The report of an execution whose files cannot be read, because their disk gives no answer.
pub(crate) fn unreadable_report(finished: &Finished) -> Report {
    let reason = "its disk gives no answer";
    unstorable_report(&finished.record, finished.stopped, ErrorCode::DISK_FAILED, reason)
}

fn unstorable_report(
    record: &ExecutionRecord,
    stopped: Option<Phase>,
    code: ErrorCode,
    reason: &str,
) -> Report {
    let message = format!("cannot store the result: {reason}");
    let (.., exec) = record.ids();
    UNSTORABLE.warn(&format_args!("execution {exec}: {message}"));
    let error =
        TrialError::transient(ErrorType::InternalError, code, message).in_phase(Phase::Collection);
    let (durations, timestamps) = (record.durations().clone(), record.timestamps().clone());
    if let Some(phase) = stopped {
        // A stopped execution has no verdict, and the failure gives it none.
        let (reason, phase) = (LostReason::Stopped, Some(phase));
        let Verdict { cost, model_use, .. } = record.verdict();
        return record.report(ReportBody::Lost { reason, phase, record: None, cost, model_use });
    }
    record.report(ReportBody::failed(error, durations, timestamps))
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    #[test]
    fn file_is_unreadable_for_good_unless_the_host_lacks_something() {
        for (errno, expected) in [
            (Errno::IO, true),
            (Errno::NOENT, true),
            (Errno::MFILE, false),
            (Errno::NFILE, false),
            (Errno::NOMEM, false),
        ] {
            assert_eq!(is_lasting(&errno.into()), expected, "{errno:?}");
        }
    }
}
