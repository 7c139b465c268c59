//! Taking work for free slots.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use rollout_protocol::limits;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::Instant;

use super::finish::Next;
use super::{Shared, Shutdown, claim, execute, finish};
use crate::port::{Delivery, Incarnation, Room, Token};
use crate::supervise::{self, Task};

/// How long one pull waits for work.
const WAIT: Duration = Duration::from_secs(2);
/// Deliveries asked for at once.
const BATCH: usize = 1024;
/// How often a full spool is looked at again.
const SPOOL_LOOK: Duration = Duration::from_millis(250);

/// Everything the worker does for deliveries.
pub(super) type Tasks = FuturesUnordered<Task<()>>;

/// Pulls and begins until the worker is told to stop; what goes on then.
pub(super) async fn pull(shared: &Arc<Shared>, mut shutdown: watch::Receiver<Shutdown>) -> Tasks {
    let mut tasks = Tasks::new();
    let mut world = World::default();
    let mut batch = Box::pin(next_batch(shared));
    loop {
        tokio::select! {
            biased;
            // Dropping the pull loses nothing: what it was given comes again.
            () = told(&mut shutdown) => return tasks,
            Some(ended) = tasks.next(), if !tasks.is_empty() => expect_no_defect(ended),
            (slots, deliveries) = &mut batch => {
                match deliveries {
                    Some(deliveries) => begin(shared, &mut world, slots, deliveries, &tasks).await,
                    None => world.was_out_of_reach(),
                }
                batch.set(next_batch(shared));
            }
        }
    }
}

/// Tasks catch the panics of what they run: one of their own is a defect of this worker.
pub(super) fn expect_no_defect(ended: Result<(), supervise::Panicked>) {
    if let Err(defect) = ended {
        panic!("{defect}");
    }
}

async fn told(shutdown: &mut watch::Receiver<Shutdown>) {
    let asked = shutdown.wait_for(|level| *level > Shutdown::No).await;
    drop(asked);
}

/// Waits for free slots and for work for them. No deliveries: the queue is out of reach.
async fn next_batch(shared: &Arc<Shared>) -> (OwnedSemaphorePermit, Option<Vec<Delivery>>) {
    let slots = shared.config.slots as usize;
    let room = shared.registry.room_below(slots + limits::UNREPORTED_PER_WORKER).await;
    while shared.spool.bytes() > shared.config.spool_bytes || shared.spool_outage.lasts() {
        tokio::time::sleep(SPOOL_LOOK).await;
    }
    let take = |n| shared.slots.clone().acquire_many_owned(n);
    let mut free = take(1).await.expect("slots are never closed");
    let more = shared.slots.available_permits().min(room - 1).min(BATCH - 1);
    if let Ok(more) = u32::try_from(more)
        && let Ok(more) = shared.slots.clone().try_acquire_many_owned(more)
    {
        free.merge(more);
    }
    let mut patience = shared.queue_outage.patience();
    match shared.source.pull(Room::slots(free.num_permits()), WAIT).await {
        Ok(deliveries) => {
            patience.works();
            (free, Some(deliveries))
        }
        Err(error) => {
            patience.failed(&error).await;
            (free, None)
        }
    }
}

async fn begin(
    shared: &Arc<Shared>,
    world: &mut World,
    mut slots: OwnedSemaphorePermit,
    mut deliveries: Vec<Delivery>,
    tasks: &Tasks,
) {
    if deliveries.len() > slots.num_permits() {
        let surplus = deliveries.split_off(slots.num_permits());
        let tokens: Vec<Token> = surplus.iter().map(|delivery| delivery.token).collect();
        if let Err(error) = shared.source.nak(&tokens).await {
            shared.queue_outage.failed(&error);
        }
    }
    let mut reports = Vec::with_capacity(deliveries.len());
    for delivery in &deliveries {
        let suspicious = world.is_suspicious(delivery, shared.config.suspicious_window);
        // A try that runs here already is kept alive by what runs.
        let Some(execution) = shared.registry.admit(delivery) else { continue };
        let mut slot = || slots.split(1).expect("as many deliveries as slots at most");
        if suspicious {
            let task = claim::claim(shared.clone(), execution, slot());
            tasks.push(supervise::spawn("claim", task));
            continue;
        }
        execution.begins();
        let mut running = Box::pin(execute::execute(shared.clone(), execution.clone()));
        match poll_once(running.as_mut()) {
            Poll::Ready(ended) => {
                execution.ends();
                match finish::at_once(shared, execution, ended) {
                    Next::Report(report) => reports.push(report),
                    Next::Task(task) => tasks.push(supervise::spawn("finish", task)),
                }
            }
            Poll::Pending => {
                let task = execute::drive(shared.clone(), execution, slot(), running);
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
}

/// An execution that needs to wait for nothing is over after one look, and costs no task. One that
/// waits is looked at again by its task, which wakes for it.
fn poll_once<F: Future + ?Sized>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// What the worker knows of the queue it is connected to.
#[derive(Debug)]
struct World {
    incarnation: Option<Incarnation>,
    since: Instant,
}

impl Default for World {
    fn default() -> Self {
        Self { incarnation: None, since: Instant::now() }
    }
}

impl World {
    fn was_out_of_reach(&mut self) {
        self.since = Instant::now();
    }

    /// Whether the try could be running elsewhere, or be over.
    fn is_suspicious(&mut self, delivery: &Delivery, window: Option<Duration>) -> bool {
        let incarnation = delivery.token.incarnation;
        if self.incarnation.is_some_and(|known| known != incarnation) {
            self.since = Instant::now();
        }
        self.incarnation = Some(incarnation);
        let try_id = delivery.offer.try_id;
        delivery.delivered > 1
            || try_id.n > 1
            || window.is_some_and(|window| try_id.epoch > 1 || self.since.elapsed() < window)
    }
}
