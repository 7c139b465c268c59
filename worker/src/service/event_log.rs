//! Hook events of an execution while its harness runs: each chunk becomes a blob, and is announced
//! among the reports when it is stored.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use async_trait::async_trait;
use rollout_base::backoff::error_chain;
use rollout_protocol::blob::{BlobRef, MediaType};
use rollout_protocol::wire::event_chunk::EventChunk;
use rollout_protocol::wire::report::ReportBody;

use super::WorkerShared;
use super::execution::Execution;
use super::report::OutgoingReport;
use crate::executor::{EventLogSink, NewEventChunk};

/// Numbers of the logs and of the announcements of one execution.
#[derive(Debug, Default)]
pub(super) struct EventLogNumbers {
    logs: AtomicU32,
    announcements: AtomicU32,
}

fn next(last: &AtomicU32) -> u32 {
    last.fetch_add(1, Ordering::Relaxed).saturating_add(1)
}

/// Stores and announces the events of one execution.
#[derive(Debug)]
pub(super) struct ExecutionEventLog {
    pub(super) shared: Arc<WorkerShared>,
    pub(super) execution: Arc<Execution>,
}

#[async_trait]
impl EventLogSink for ExecutionEventLog {
    fn begin_log(&self) -> u32 {
        next(&self.execution.event_logs.logs)
    }

    async fn append(&self, chunk: NewEventChunk) {
        let Some(blob) = self.store(&chunk).await else { return };
        let NewEventChunk { log, step, offset, last_seq, total, violations, .. } = chunk;
        // A number is used once: an announcement that was given up may have been sent.
        let number = next(&self.execution.event_logs.announcements);
        let chunk = EventChunk { number, log, step, offset, blob, last_seq, total, violations };
        let body = ReportBody::Events(Box::new(chunk));
        let report = self.execution.new_report(&self.shared.config.worker, body);
        let (outgoing, receipt) = OutgoingReport::acknowledged(report);
        self.shared.outbox.push(outgoing);
        // Dropped only with a refused announcement: the next one covers later events.
        let _refused = receipt.await;
    }
}

impl ExecutionEventLog {
    /// Stores the bytes; `None` if the store refuses them for good.
    async fn store(&self, chunk: &NewEventChunk) -> Option<BlobRef> {
        let mut backoff = self.shared.store_outage.backoff();
        loop {
            match self.shared.store.put_bytes(chunk.bytes.clone(), MediaType::Text).await {
                Ok(blob) => {
                    backoff.succeeded();
                    return Some(blob);
                }
                Err(error) if error.is_transient() => backoff.wait_after_failure(&error).await,
                Err(error) => {
                    let (exec, why) = (self.execution.exec, error_chain(&error));
                    tracing::warn!("execution {exec}: cannot store events: {why}");
                    return None;
                }
            }
        }
    }
}
