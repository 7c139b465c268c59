//! Upload of a spooled execution, and its report.

use std::path::PathBuf;

use bytes::Bytes;
use rollout_protocol::Timestamp;
use rollout_protocol::blob::BlobRef;
use rollout_protocol::error::{ErrorCode, ErrorType, TrialError};
use rollout_protocol::phase::Phase;
use rollout_protocol::record::{Durations, ExecutionRecord, LostReason, Timestamps, Verdict};
use rollout_protocol::wire::marker::ResultMarker;
use rollout_protocol::wire::report::{Report, ReportBody, ResultBody};

use super::entry::SpoolEntry;
use crate::backoff::{OutageLog, error_chain};
use crate::shown_path::shown;
use crate::store::{BlobContent, BlobStore, StoreError, put_json};
use crate::supervise;

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
                    return unstorable_report(entry, &format!("{} is missing", shown(&file)));
                }
                backoff.wait_after_failure(&error).await;
            }
            Err(error) => return unstorable_report(entry, &error_chain(&error)),
        }
    }
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
        return Ok(unstorable_report(
            entry,
            &format!("{file} changed on disk: its digest is now {found}"),
        ));
    }
    let record = entry.record_with(blobs);
    let blob = put_json(store, &record).await?;
    if entry.marker {
        put_marker(store, &record, &blob).await?;
    }
    Ok(match entry.stopped {
        None => result_report(&record, blob),
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

fn unstorable_report(entry: &SpoolEntry, reason: &str) -> Report {
    let record = &entry.record;
    let message = format!("cannot store the result: {reason}");
    let (.., exec) = record.ids();
    tracing::error!("execution {exec}: {message}");
    let error = TrialError::transient(ErrorType::InternalError, ErrorCode::STORE_FAILED, message)
        .in_phase(Phase::Collection);
    let (durations, timestamps) = (record.durations().clone(), record.timestamps().clone());
    if let Some(phase) = entry.stopped {
        // A stopped execution has no verdict, and the failure gives it none.
        let (reason, phase) = (LostReason::Stopped, Some(phase));
        let Verdict { cost, model_use, .. } = record.verdict();
        return record.report(ReportBody::Lost { reason, phase, record: None, cost, model_use });
    }
    record.report(failed_body(error, durations, timestamps))
}

/// The report of an execution with a verdict, made from its record in the store.
pub fn result_report(record: &ExecutionRecord, blob: BlobRef) -> Report {
    record.report(ReportBody::Result(Box::new(ResultBody {
        verdict: record.verdict(),
        durations: record.durations().clone(),
        timestamps: record.timestamps().clone(),
        record: Some(blob),
    })))
}

fn failed_body(error: TrialError, durations: Durations, timestamps: Timestamps) -> ReportBody {
    let verdict = Verdict::failed(error);
    ReportBody::Result(Box::new(ResultBody { verdict, durations, timestamps, record: None }))
}

/// The same report with an error instead of its body.
pub fn failed_report(report: Report, error: TrialError) -> Report {
    let (durations, timestamps) = match &report.body {
        ReportBody::Result(body) => (body.durations.clone(), body.timestamps.clone()),
        ReportBody::Started | ReportBody::Lost { .. } | ReportBody::Events(_) => {
            (Durations::default(), Timestamps::instant(Timestamp::now()))
        }
    };
    Report { body: failed_body(error, durations, timestamps), ..report }
}
