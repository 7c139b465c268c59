//! Reading of reports from where the journal ends, and the check that their records are stored.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use rollout_base::backoff::{OutageLog, error_chain};
use rollout_protocol::Timestamp;
use rollout_protocol::digest::Digest;
use rollout_protocol::error::{ErrorCode, ErrorType, TrialError};
use rollout_protocol::id::RunId;
use rollout_protocol::wire::position::{PositionedReport, ReportBatch, ReportPosition};
use rollout_protocol::wire::report::{Report, ReportBody};
use rollout_queue::traits::{Dispatch, QueueError};
use rollout_store::BlobStore;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// Reports read at once.
const MAX_REPORTS_PER_READ: usize = 4096;
/// How long one read waits for reports.
const READ_TIMEOUT: Duration = Duration::from_secs(5);
/// Records checked at the same time.
const MAX_CONCURRENT_LOOKUPS: usize = 64;
/// Delay before a missing record is looked for again.
const LOOKUP_RETRY_DELAY: Duration = Duration::from_secs(1);

/// Reads the reports of a run.
#[derive(Debug)]
pub(super) struct ReportReader {
    pub(super) run: RunId,
    pub(super) dispatch: Arc<dyn Dispatch>,
    pub(super) store: Arc<dyn BlobStore>,
    /// How long a missing record is looked for.
    pub(super) lease: Duration,
    /// Number of results read so far.
    pub(super) results: Arc<AtomicU64>,
}

impl ReportReader {
    /// Reads until the receiver is closed.
    pub(super) async fn read(self, from: Option<ReportPosition>, to: mpsc::Sender<ReportBatch>) {
        let mut position = from;
        let outage = OutageLog::new("reading reports");
        let mut backoff = outage.backoff();
        while !to.is_closed() {
            match self
                .dispatch
                .reports(self.run, position, MAX_REPORTS_PER_READ, READ_TIMEOUT)
                .await
            {
                Ok(batch) => {
                    backoff.succeeded();
                    if batch.read_to.is_none() {
                        continue;
                    }
                    position = batch.reports.last().map_or(position, |last| Some(last.position));
                    let reports = self.checked(batch.reports).await;
                    let batch = ReportBatch { reports, ..batch };
                    if to.send(batch).await.is_err() {
                        return;
                    }
                }
                // The stream was replaced: reading starts over, which is harmless.
                Err(QueueError::Position) => {
                    if position.take().is_none() {
                        backoff.wait_after_failure(&QueueError::Position).await;
                    }
                }
                Err(error) => backoff.wait_after_failure(&error).await,
            }
        }
    }

    async fn checked(&self, batch: Vec<PositionedReport>) -> Vec<PositionedReport> {
        let results =
            batch.iter().filter(|r| matches!(r.report.body, ReportBody::Result(_))).count();
        self.results.fetch_add(results as u64, Ordering::Relaxed);
        if batch.iter().all(|reported| record_digest(&reported.report).is_none()) {
            return batch;
        }
        let looks = batch.into_iter().map(|reported| self.check(reported));
        stream::iter(looks).buffered(MAX_CONCURRENT_LOOKUPS).collect().await
    }

    /// A result without its record is worthless: it becomes a failure of the infrastructure.
    async fn check(&self, reported: PositionedReport) -> PositionedReport {
        let Some(record) = record_digest(&reported.report) else { return reported };
        if self.is_stored(&record).await {
            return reported;
        }
        let PositionedReport { position, report } = reported;
        let message = format!("the record {record} of the execution is not in the blob store");
        tracing::error!("execution {}: {message}", report.exec);
        let kind = ErrorType::InternalError;
        let error = TrialError::transient(kind, ErrorCode::STORE_FAILED, message);
        PositionedReport { position, report: report.failed(error, Timestamp::now()) }
    }

    /// Whether a record is stored. An unreachable store counts as yes: the worker had the store's
    /// answer before it reported.
    async fn is_stored(&self, record: &Digest) -> bool {
        let asked = Instant::now();
        loop {
            match self.store.contains(record).await {
                Ok(true) => return true,
                Ok(false) if asked.elapsed() >= self.lease => return false,
                Ok(false) => tokio::time::sleep(LOOKUP_RETRY_DELAY).await,
                Err(error) => {
                    let reason = error_chain(&error);
                    tracing::warn!(
                        "cannot look for record {record}, assuming that it is stored: {reason}"
                    );
                    return true;
                }
            }
        }
    }
}

fn record_digest(report: &Report) -> Option<Digest> {
    match &report.body {
        ReportBody::Result(body) => body.record.as_ref().map(|record| record.digest),
        ReportBody::Started | ReportBody::Lost { .. } | ReportBody::Events(_) => None,
    }
}
