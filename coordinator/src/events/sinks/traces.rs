//! Traces sink: a span for each item, from its place in the queue to its result, and one for each
//! wait of an item before an execution.
//!
//! Spans of executions come from workers. Items that earlier sessions settled have their spans from
//! these sessions.

mod item;

use std::collections::BTreeMap;
use std::io;

use async_trait::async_trait;
use rollout_base::traces::{TraceSpan, Tracer};
use rollout_protocol::Timestamp;
use rollout_protocol::event::{EventKind, RunEvent};
use rollout_protocol::id::{ExecId, ItemId, TryId};
use rollout_protocol::record::Settlement;

use self::item::{ItemTrace, RunTrace};
use crate::events::ReportError;
use crate::events::sink::{Delivery, EventBatch, EventSink, RunResult, SinkReport, Workload};

/// The sink.
#[derive(Debug)]
pub(super) struct TracesSink {
    tracer: Tracer,
    /// Whether all items wait from the start of the run. Those of a search come with time.
    has_plan: bool,
    run: Option<RunTrace>,
    /// When this session began to work.
    opened_at: Option<Timestamp>,
    /// Items that began or wait for another try. The others have no state of their own.
    items: BTreeMap<ItemId, ItemTrace>,
    dropped: u64,
}

impl TracesSink {
    pub(super) fn start(tracer: Tracer, workload: Workload<'_>) -> io::Result<Box<dyn EventSink>> {
        let has_plan = matches!(workload, Workload::Job(_));
        let (run, opened_at, items) = (None, None, BTreeMap::new());
        Ok(Box::new(Self { tracer, has_plan, run, opened_at, items, dropped: 0 }))
    }

    fn apply(&mut self, event: &RunEvent) {
        let at = event.at;
        match &event.kind {
            EventKind::RunStarted { run, job, epoch, started_at, .. } => {
                self.run = Some(RunTrace {
                    run: *run,
                    job: job.clone(),
                    session: *epoch,
                    started_at: self.has_plan.then_some(*started_at),
                });
            }
            EventKind::RunOpened => self.opened_at = Some(at),
            EventKind::TrialPhase { item, try_id, exec, .. }
            | EventKind::TrialParked { item, try_id, exec, .. } => {
                self.begin(*item, *try_id, *exec, at);
            }
            EventKind::TrialRetry { item, try_id, exec, error, .. } => {
                self.begin(*item, *try_id, *exec, at);
                self.item(*item).retry(at, *exec, error);
            }
            EventKind::TrialLost { item, try_id, exec, .. } => {
                self.begin(*item, *try_id, *exec, at);
                self.item(*item).requeue(at, "lost", *exec);
            }
            EventKind::ExecutionEnded { item, exec, .. } => {
                // Its item may be settled.
                if let Some(trace) = self.items.get_mut(item) {
                    trace.note(at, "superseded", *exec);
                }
            }
            EventKind::TrialReopened { item, .. } => {
                self.items.insert(*item, ItemTrace::reopened(at));
            }
            EventKind::TrialSettled { replayed: false, settlement, .. } => self.settle(settlement),
            EventKind::RunEnded { .. } => self.items.clear(),
            _ => {}
        }
    }

    fn item(&mut self, item: ItemId) -> &mut ItemTrace {
        let queued_at = self.opened_at.filter(|_| self.has_plan);
        self.items.entry(item).or_insert_with(|| ItemTrace::queued(queued_at))
    }

    /// Ends the wait of an item before an execution.
    fn begin(&mut self, item: ItemId, try_id: TryId, exec: ExecId, at: Timestamp) {
        let Some(run) = &self.run else { return };
        let (run, is_own) = (run.run, run.session == try_id.epoch);
        let trace = self.item(item);
        trace.see(at);
        // An execution that an earlier session offered has begun some time ago. Its report says when.
        if is_own && let Some(span) = trace.begin(run, item, (try_id, exec), at) {
            self.export(span);
        }
    }

    fn settle(&mut self, settlement: &Settlement) {
        let Some(run) = &self.run else { return };
        let (id, session, started_at) = (run.run, run.session, run.started_at);
        let item = settlement.item;
        if let Some(by) = &settlement.by {
            let began = by.timestamps.as_ref().map(|times| times.started_at);
            let began = began.unwrap_or(settlement.settled_at).min(settlement.settled_at);
            let trace = self.item(item);
            if by.try_id.epoch != session {
                trace.wait_since(started_at);
            }
            // The events of its phases may have been missed.
            if let Some(span) = trace.begin(id, item, (by.try_id, by.exec), began) {
                self.export(span);
            }
        }
        let trace = self.items.remove(&item).unwrap_or_default();
        if let Some(run) = &self.run {
            self.export(trace.settled(run, settlement));
        }
    }

    fn export(&self, span: TraceSpan) {
        if let Some((_, exporter)) = self.tracer.exporter(|| span.trace) {
            exporter.export(span);
        }
    }
}

#[async_trait]
impl EventSink for TracesSink {
    fn delivery(&self) -> Delivery {
        Delivery::Lossy
    }

    async fn accept(&mut self, batch: &EventBatch) {
        for event in batch.iter() {
            self.apply(event);
        }
    }

    async fn dropped(&mut self, events: u64) {
        if self.dropped == 0 {
            tracing::warn!("the run is faster than its traces: some items have no span");
        }
        self.dropped += events;
    }

    async fn finish(
        self: Box<Self>,
        _result: Option<RunResult>,
    ) -> Result<SinkReport, ReportError> {
        Ok(SinkReport::default())
    }
}

#[cfg(test)]
mod tests;
