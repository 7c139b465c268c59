//! The outbox of reports: they are sent in batches, and then their deliveries are acknowledged.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use rollout_protocol::Timestamp;
use rollout_protocol::wire::delivery::{MessageToken, PublishError};
use rollout_protocol::wire::report::{Report, ReportBody};
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use super::WorkerShared;
use super::execution::Execution;
use crate::spool::unpublishable_error;

/// Limit on concurrent batches: while one waits for its acknowledgement, others are sent.
const MAX_BATCHES_IN_FLIGHT: usize = 8;
/// Reports in one batch.
const REPORT_BATCH: usize = 1024;
/// Pause before the reports of a full run are sent again.
const FULL_RUN_PAUSE: Duration = Duration::from_millis(250);

/// A report to send.
#[derive(Debug)]
pub(super) struct OutgoingReport {
    report: Report,
    completion: Option<ReportCompletion>,
}

/// The next step after the queue has accepted a report.
#[derive(Debug)]
enum ReportCompletion {
    /// The execution is complete.
    Execution(ExecutionCompletion),
    /// Its sender is notified.
    Notice(oneshot::Sender<()>),
}

/// The completion of an execution's last report.
#[derive(Debug)]
struct ExecutionCompletion {
    execution: Arc<Execution>,
    acknowledged: Option<oneshot::Sender<()>>,
}

impl OutgoingReport {
    /// A report after which its execution continues.
    pub(super) fn intermediate(report: Report) -> Self {
        Self { report, completion: None }
    }

    /// A report after which its execution continues. The receiver gets a message when the queue
    /// has accepted it.
    pub(super) fn acknowledged(report: Report) -> (Self, oneshot::Receiver<()>) {
        let (accepted, receipt) = oneshot::channel();
        (Self { report, completion: Some(ReportCompletion::Notice(accepted)) }, receipt)
    }

    /// The last report of its execution.
    pub(super) fn final_report(
        report: Report,
        execution: Arc<Execution>,
        acknowledged: Option<oneshot::Sender<()>>,
    ) -> Self {
        let completion = ExecutionCompletion { execution, acknowledged };
        Self { report, completion: Some(ReportCompletion::Execution(completion)) }
    }
}

/// The reports that wait to be sent.
#[derive(Debug, Default)]
pub(super) struct ReportOutbox {
    state: Mutex<OutboxState>,
    filled: Notify,
}

#[derive(Debug, Default)]
struct OutboxState {
    waiting: Vec<OutgoingReport>,
    /// Reports of runs that have reached their limit of stored reports.
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

    /// Sends the last report of an execution and waits until it is acknowledged.
    pub(super) async fn send_and_wait(&self, report: Report, execution: Arc<Execution>) {
        let (acknowledged, receipt) = oneshot::channel();
        self.push(OutgoingReport::final_report(report, execution, Some(acknowledged)));
        if receipt.await.is_err() {
            // The worker is being dropped, and this task with it.
            std::future::pending::<()>().await;
        }
    }

    /// The next batch. Cancel-safe.
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

/// Sends the reports in the outbox. Never ends.
pub(super) async fn send_reports(shared: Arc<WorkerShared>) -> Infallible {
    let mut batches = FuturesUnordered::new();
    loop {
        tokio::select! {
            Some(()) = batches.next(), if !batches.is_empty() => {}
            batch = shared.outbox.next_batch(), if batches.len() < MAX_BATCHES_IN_FLIGHT => {
                batches.push(send_batch(&shared, batch));
            }
        }
    }
}

/// Sends one batch until each of its reports is acknowledged or deferred.
async fn send_batch(shared: &WorkerShared, mut batch: Vec<OutgoingReport>) {
    let mut backoff = shared.queue_outage.backoff();
    while !batch.is_empty() {
        let reports = batch.iter().map(|outgoing| outgoing.report.clone()).collect();
        match shared.source.report(reports).await {
            Ok(answers) => {
                backoff.succeeded();
                batch = handle_answers(shared, batch, answers).await;
            }
            Err(error) => backoff.wait_after_failure(&error).await,
        }
    }
}

/// Acts on the answers; returns the reports that must be sent in another form.
async fn handle_answers(
    shared: &WorkerShared,
    batch: Vec<OutgoingReport>,
    answers: Vec<Result<(), PublishError>>,
) -> Vec<OutgoingReport> {
    let mut done = Vec::with_capacity(batch.len());
    let (mut full, mut again) = (Vec::new(), Vec::new());
    for (outgoing, answer) in batch.into_iter().zip(answers) {
        match answer {
            Ok(()) => match outgoing.completion {
                Some(ReportCompletion::Execution(last)) => done.push(last),
                Some(ReportCompletion::Notice(accepted)) => {
                    let _its_task_is_gone = accepted.send(());
                }
                None => {}
            },
            Err(PublishError::Full) => full.push(outgoing),
            Err(refused @ PublishError::TooLarge { .. }) => {
                let OutgoingReport { report, completion } = outgoing;
                tracing::error!(
                    "cannot publish the report of execution {}: {refused}",
                    report.exec
                );
                // Events are in the record, too. A failure would end the execution.
                if let ReportBody::Events(_) = report.body {
                    continue;
                }
                again.push(OutgoingReport {
                    report: report.failed(unpublishable_error(&refused), Timestamp::now()),
                    completion,
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

async fn acknowledge(shared: &WorkerShared, done: Vec<ExecutionCompletion>) {
    if done.is_empty() {
        return;
    }
    let tokens: Vec<MessageToken> = done.iter().map(|last| last.execution.token()).collect();
    // A lost acknowledgement costs one claim, which is answered with drop.
    if let Err(error) = shared.source.ack(&tokens).await {
        shared.queue_outage.mark_failed(&error);
    }
    shared.registry.remove(done.iter().map(|last| &last.execution));
    for ExecutionCompletion { acknowledged, .. } in done {
        if let Some(acknowledged) = acknowledged {
            let _its_task_is_gone = acknowledged.send(());
        }
    }
}
