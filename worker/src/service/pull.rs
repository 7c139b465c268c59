//! Pulls of work for free slots.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use rollout_base::common_times::next_time;
use rollout_base::supervise::{self, Task};
use rollout_protocol::limits;
use rollout_protocol::wire::delivery::{Delivery, MessageToken};
use rollout_protocol::wire::position::Incarnation;
use tokio::time::Instant;

use super::finish::FinishStep;
use super::slots::SlotReservation;
use super::{WorkerShared, claim, disks, execute, finish};

/// Longest time that one pull waits for work.
const PULL_WAIT: Duration = Duration::from_secs(2);
/// Deliveries requested at once.
const PULL_BATCH: usize = 1024;
/// How long a worker that stops waits for the end of its pulls.
const END_PULLS_TIMEOUT: Duration = Duration::from_secs(2);
/// Interval of checks of a full spool.
const SPOOL_POLL_INTERVAL: Duration = Duration::from_millis(250);

/// The tasks of all deliveries.
pub(super) type ExecutionTasks = FuturesUnordered<Task<()>>;

/// Pulls work and begins it until the worker must stop; returns the tasks that still run then.
pub(super) async fn pull_work(shared: &Arc<WorkerShared>) -> ExecutionTasks {
    let mut tasks = ExecutionTasks::new();
    let mut suspicion = SuspicionTracker::default();
    let mut closing = Box::pin(shared.wait_for_shutdown());
    let mut batch = Box::pin(next_batch(shared));
    loop {
        tokio::select! {
            biased;
            () = &mut closing => break,
            Some(ended) = tasks.next(), if !tasks.is_empty() => propagate_panic(ended),
            (reservation, deliveries) = &mut batch => {
                match deliveries {
                    Some(deliveries) => {
                        begin_deliveries(shared, &mut suspicion, reservation, deliveries, &tasks).await;
                    }
                    None => suspicion.mark_unreachable(),
                }
                batch.set(next_batch(shared));
            }
        }
    }
    // Deliveries that arrived at the same moment are returned for other workers, and so are those
    // still under way.
    if let Poll::Ready((_, Some(deliveries))) = poll_once(batch.as_mut()) {
        return_deliveries(shared, deliveries).await;
    }
    drop(batch);
    end_pulls(shared).await;
    shared.pulls_ended.send_replace(true);
    tasks
}

/// Ends what the last pulls left under way. Best effort: without it, such deliveries come to other
/// workers after their lease.
async fn end_pulls(shared: &WorkerShared) {
    if shared.connection.is_up() {
        let ended = tokio::time::timeout(END_PULLS_TIMEOUT, shared.source.end_pulls()).await;
        if ended.is_err() {
            tracing::debug!("the server did not end the pulls in time");
        }
    }
}

async fn return_deliveries(shared: &WorkerShared, deliveries: Vec<Delivery>) {
    if deliveries.is_empty() {
        return;
    }
    let tokens: Vec<MessageToken> = deliveries.iter().map(|delivery| delivery.token).collect();
    if let Err(error) = shared.source.nak(&tokens).await {
        shared.queue_outage.mark_failed(&error);
    }
}

/// Passes a task's panic on. Tasks catch the panics of their executions, so this one is a bug in
/// the worker.
pub(super) fn propagate_panic(ended: Result<(), supervise::TaskPanic>) {
    if let Err(defect) = ended {
        panic!("{defect}");
    }
}

/// Waits for free slots and for work for them. `None` instead of deliveries means that the pull
/// failed.
async fn next_batch(shared: &Arc<WorkerShared>) -> (SlotReservation, Option<Vec<Delivery>>) {
    let slots = shared.config.slots as usize;
    let max_slots = shared.registry.wait_below(slots + limits::UNREPORTED_PER_WORKER).await;
    wait_for_spool_space(shared).await;
    let reservation = loop {
        shared.failures.wait().await;
        disks::wait_for_disks(shared).await;
        shared.connection.wait_until_pullable().await;
        let reservation = shared.slots.reserve(max_slots.min(PULL_BATCH)).await;
        // A disk may have filled up or failed while this waited for a slot.
        if disks::are_usable(shared).await {
            break reservation;
        }
    };
    let mut backoff = shared.pull_outage.backoff();
    tracing::debug!("pulling {:?}", reservation.capacity());
    let wait = next_time(PULL_WAIT).saturating_duration_since(Instant::now());
    let pulled = shared.source.pull(reservation.capacity(), wait).await;
    tracing::debug!("pulled {pulled:?}");
    match pulled {
        Ok(deliveries) => {
            backoff.succeeded();
            (reservation, Some(deliveries))
        }
        Err(error) => {
            backoff.wait_after_failure(&error).await;
            (reservation, None)
        }
    }
}

async fn wait_for_spool_space(shared: &WorkerShared) {
    let full = || shared.spool.bytes() > shared.config.spool_bytes;
    if full() {
        let bytes = shared.spool.bytes();
        tracing::warn!(
            "{bytes} bytes of results wait to be reported: no work is started until there are fewer"
        );
    }
    while full() || shared.spool_outage.is_down() {
        tokio::time::sleep(SPOOL_POLL_INTERVAL).await;
        // Perhaps no execution is left that tries.
        if shared.spool_outage.is_down() && shared.spool.takes_writes().await {
            shared.spool_outage.mark_recovered();
        }
    }
}

async fn begin_deliveries(
    shared: &Arc<WorkerShared>,
    suspicion: &mut SuspicionTracker,
    mut reservation: SlotReservation,
    deliveries: Vec<Delivery>,
    tasks: &ExecutionTasks,
) {
    if !deliveries.is_empty() && !disks::may_begin(shared).await {
        drop(reservation);
        return return_deliveries(shared, deliveries).await;
    }
    let mut surplus = Vec::new();
    let mut reports = Vec::with_capacity(deliveries.len());
    let connected = shared.connection.connected_at();
    for delivery in &deliveries {
        shared.config.metrics.delivered(delivery.delivered);
        let window = shared.config.suspicious_window;
        let suspicious = suspicion.is_suspicious(delivery, connected, window);
        if shared.failures.returns(&delivery.offer) {
            surplus.push(*delivery);
            continue;
        }
        // For a try that runs here already, the running execution extends the new delivery's lease.
        let Some(execution) = shared.registry.admit(delivery) else { continue };
        let class = delivery.offer.class;
        if !reservation.fits(class) {
            shared.registry.remove([&execution].into_iter());
            surplus.push(*delivery);
            continue;
        }
        if suspicious {
            let task = claim::resolve_claim(shared.clone(), execution, reservation.take(class));
            tasks.push(supervise::spawn("claim", task));
            continue;
        }
        execution.mark_running();
        let mut running = Box::pin(execute::run_execution(shared.clone(), execution.clone()));
        match poll_once(running.as_mut()) {
            Poll::Ready(ended) => {
                execution.mark_ended();
                match finish::finish_immediate(shared, execution, ended) {
                    FinishStep::Report(report) => reports.push(*report),
                    FinishStep::Task(task) => tasks.push(supervise::spawn("finish", task)),
                }
            }
            Poll::Pending => {
                let task = execute::drive_to_end(
                    shared.clone(),
                    execution,
                    reservation.take(class),
                    running,
                );
                tasks.push(supervise::spawn("execution", task));
            }
        }
    }
    if !reports.is_empty() {
        shared.outbox.extend(reports);
    }
    if !tasks.is_empty() {
        shared.registry.note_change();
    }
    drop(reservation);
    return_deliveries(shared, surplus).await;
}

/// Polls an execution once. One that waits for nothing ends at once and costs no task. One that
/// waits is polled again by its task, which registers a real waker.
fn poll_once<F: Future + ?Sized>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// The queue's incarnation, and since when it is known without a gap.
#[derive(Debug)]
struct SuspicionTracker {
    incarnation: Option<Incarnation>,
    since: Instant,
}

impl Default for SuspicionTracker {
    fn default() -> Self {
        Self { incarnation: None, since: Instant::now() }
    }
}

impl SuspicionTracker {
    fn mark_unreachable(&mut self) {
        self.since = Instant::now();
    }

    /// Whether the try may run on another worker, or may have ended.
    fn is_suspicious(
        &mut self,
        delivery: &Delivery,
        connected: Instant,
        window: Option<Duration>,
    ) -> bool {
        let incarnation = delivery.token.incarnation;
        if self.incarnation.is_some_and(|known| known != incarnation) {
            self.since = Instant::now();
        }
        self.incarnation = Some(incarnation);
        let known_for = self.since.max(connected).elapsed();
        let try_id = delivery.offer.try_id;
        delivery.delivered > 1
            || try_id.n > 1
            || window.is_some_and(|window| try_id.epoch > 1 || known_for < window)
    }
}
