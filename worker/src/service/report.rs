//! Saying reports, many at a time, and acknowledging what they settle.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use rollout_protocol::wire::delivery::{MessageToken, PublishError};
use rollout_protocol::wire::report::Report;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use super::WorkerShared;
use super::execution::Execution;
use crate::spool::{failed_report, unpublishable_error};

/// Batches under way at the same time: while one waits for its acknowledgement, others travel.
const MAX_BATCHES_IN_FLIGHT: usize = 8;
/// Reports in one batch.
const REPORT_BATCH: usize = 1024;
/// How long reports of a full run wait before they are said again.
const FULL_RUN_PAUSE: Duration = Duration::from_millis(250);

/// A report on its way.
#[derive(Debug)]
pub(super) struct OutgoingReport {
    report: Report,
    last: Option<ReportCompletion>,
}

/// What follows the last report of an execution.
#[derive(Debug)]
struct ReportCompletion {
    execution: Arc<Execution>,
    acknowledged: Option<oneshot::Sender<()>>,
}

impl OutgoingReport {
    /// A report after which its execution goes on.
    pub(super) fn intermediate(report: Report) -> Self {
        Self { report, last: None }
    }

    /// The last report of its execution.
    pub(super) fn final_report(
        report: Report,
        execution: Arc<Execution>,
        acknowledged: Option<oneshot::Sender<()>>,
    ) -> Self {
        Self { report, last: Some(ReportCompletion { execution, acknowledged }) }
    }
}

/// Reports that wait to be said.
#[derive(Debug, Default)]
pub(super) struct ReportOutbox {
    state: Mutex<OutboxState>,
    filled: Notify,
}

#[derive(Debug, Default)]
struct OutboxState {
    waiting: Vec<OutgoingReport>,
    /// Of runs that have as many reports as they may.
    refused: Vec<OutgoingReport>,
    refused_until: Option<Instant>,
}

impl ReportOutbox {
    pub(super) fn push(&self, outgoing: OutgoingReport) {
        self.extend([outgoing]);
    }

    pub(super) fn extend(&self, outgoing: impl IntoIterator<Item = OutgoingReport>) {
        self.state().waiting.extend(outgoing);
        self.filled.notify_one();
    }

    /// Says the last report of an execution and waits until it is acknowledged.
    pub(super) async fn send_and_wait(&self, report: Report, execution: Arc<Execution>) {
        let (acknowledged, heard) = oneshot::channel();
        self.push(OutgoingReport::final_report(report, execution, Some(acknowledged)));
        if heard.await.is_err() {
            // The worker is being dropped, and this task with it.
            std::future::pending::<()>().await;
        }
    }

    /// The next batch. May be dropped.
    async fn next_batch(&self) -> Vec<OutgoingReport> {
        loop {
            let retry = {
                let mut state = self.state();
                if state.refused_until.is_some_and(|until| until <= Instant::now()) {
                    state.refused_until = None;
                    let refused = std::mem::take(&mut state.refused);
                    state.waiting.splice(..0, refused);
                }
                if !state.waiting.is_empty() {
                    let n = state.waiting.len().min(REPORT_BATCH);
                    let rest = state.waiting.split_off(n);
                    return std::mem::replace(&mut state.waiting, rest);
                }
                state.refused_until
            };
            let filled = self.filled.notified();
            match retry {
                None => filled.await,
                Some(until) => {
                    let _retry_is_due = tokio::time::timeout_at(until, filled).await;
                }
            }
        }
    }

    fn defer_refused(&self, refused: Vec<OutgoingReport>) {
        let mut state = self.state();
        state.refused.extend(refused);
        state.refused_until.get_or_insert_with(|| Instant::now() + FULL_RUN_PAUSE);
        drop(state);
        self.filled.notify_one();
    }

    fn state(&self) -> MutexGuard<'_, OutboxState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Says what is in the outbox, for ever.
pub(super) async fn send_reports(shared: Arc<WorkerShared>) -> Infallible {
    let mut flights = FuturesUnordered::new();
    loop {
        tokio::select! {
            Some(()) = flights.next(), if !flights.is_empty() => {}
            batch = shared.outbox.next_batch(), if flights.len() < MAX_BATCHES_IN_FLIGHT => {
                flights.push(send_batch(&shared, batch));
            }
        }
    }
}

/// Says one batch until each report of it is acknowledged or refused.
async fn send_batch(shared: &WorkerShared, mut batch: Vec<OutgoingReport>) {
    let mut patience = shared.queue_outage.backoff();
    while !batch.is_empty() {
        let reports = batch.iter().map(|outgoing| outgoing.report.clone()).collect();
        match shared.source.report(reports).await {
            Ok(answers) => {
                patience.succeeded();
                batch = handle_answers(shared, batch, answers).await;
            }
            Err(error) => patience.wait_after_failure(&error).await,
        }
    }
}

/// Acts on the answers; what has to be said in another form.
async fn handle_answers(
    shared: &WorkerShared,
    batch: Vec<OutgoingReport>,
    answers: Vec<Result<(), PublishError>>,
) -> Vec<OutgoingReport> {
    let mut done = Vec::with_capacity(batch.len());
    let (mut full, mut again) = (Vec::new(), Vec::new());
    for (outgoing, answer) in batch.into_iter().zip(answers) {
        match answer {
            Ok(()) => done.extend(outgoing.last),
            Err(PublishError::Full) => full.push(outgoing),
            Err(refused @ PublishError::TooLarge { .. }) => {
                let OutgoingReport { report, last } = outgoing;
                tracing::error!("execution {}: {refused}", report.exec);
                again.push(OutgoingReport {
                    report: failed_report(report, unpublishable_error(&refused)),
                    last,
                });
            }
        }
    }
    if !full.is_empty() {
        shared.outbox.defer_refused(full);
    }
    acknowledge(shared, done).await;
    again
}

async fn acknowledge(shared: &WorkerShared, done: Vec<ReportCompletion>) {
    if done.is_empty() {
        return;
    }
    let tokens: Vec<MessageToken> = done.iter().map(|last| last.execution.token()).collect();
    // Lost acknowledgements cost a claim each, which is answered with drop.
    if let Err(error) = shared.source.ack(&tokens).await {
        shared.queue_outage.mark_failed(&error);
    }
    shared.registry.remove(done.iter().map(|last| &last.execution));
    for ReportCompletion { acknowledged, .. } in done {
        if let Some(acknowledged) = acknowledged {
            let _its_task_is_gone = acknowledged.send(());
        }
    }
}
