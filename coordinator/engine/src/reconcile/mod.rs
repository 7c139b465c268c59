//! A coordinator whose workers are processes of their own, on any number of hosts.
//!
//! Nothing here makes a decision: each module turns one kind of event into messages for the engine.
//! * `report_reader`: reports, from where the journal ends
//! * `requests`: claims and commands
//! * `worker_watch`: heartbeats; `capacity`: how much may be offered
//! * `reconciler`: reconciliation rounds; `stream_head`: waiting until every report was read
//! * `result_lookup`: markers of results that the queue lost
//! * `release`: the end of a session
//!
//! Sessions with remote workers are tested in the coordinator, whose planners and plans they need:
//! `coordinator/src/workloads/job/tests/remote.rs`.

mod capacity;
mod reconciler;
mod release;
mod report_reader;
mod requests;
mod result_lookup;
mod stream_head;
mod worker_watch;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use rollout_base::supervise::{self, Task};
use rollout_protocol::event::RunEvent;
use rollout_protocol::id::RunId;
use rollout_protocol::limits;
use rollout_protocol::wire::control::{ControlMessage, StopLevel};
use rollout_queue::traits::{Dispatch, QueueError};
use rollout_store::BlobStore;
use tokio::sync::mpsc;
use tokio::time::timeout;

pub use self::capacity::PoolCapacity;
use self::reconciler::Reconciler;
pub use self::release::release;
use self::report_reader::ReportReader;
use self::result_lookup::look_up_results;
use self::worker_watch::WorkerWatch;
use super::event_loop::{
    DurableStateListener, Engine, EngineInputs, EngineMessage, EngineOutcome, PhaseHints,
    QueuePublisher, WorkerLocation,
};
use super::open::OpenRun;
use super::{Planner, RunError};

/// Batches of reports that wait for the engine.
const REPORT_BATCHES: usize = 4;

/// Messages that wait for the engine.
const MAX_QUEUED_MESSAGES: usize = 64;

/// How long the end of a session waits for the queue.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// An open run with remote workers.
pub struct RemoteRun {
    /// The run.
    pub run: OpenRun,
    /// The planner.
    pub planner: Box<dyn Planner>,
    /// The queue.
    pub dispatch: Arc<dyn Dispatch>,
    /// The blob store.
    pub store: Arc<dyn BlobStore>,
    /// Pool of its workers.
    pub pool: String,
    /// The queue's lease.
    pub lease: Duration,
    /// Listener for durable state.
    pub listener: DurableStateListener,
    /// Channel for events.
    pub events: mpsc::Sender<Vec<RunEvent>>,
    /// Stops requested by the user.
    pub stops: mpsc::Receiver<StopLevel>,
    /// Whether the first stop ends the session alone, and executions continue for the next one.
    pub hand_over: bool,
    /// Messages to the engine. The sender is shared with the monitor of the lock.
    pub messages: (mpsc::Sender<EngineMessage>, mpsc::Receiver<EngineMessage>),
}

/// A channel for the messages of a [`RemoteRun`].
pub fn message_channel() -> (mpsc::Sender<EngineMessage>, mpsc::Receiver<EngineMessage>) {
    mpsc::channel(MAX_QUEUED_MESSAGES)
}

/// Runs a session to its end.
///
/// # Errors
/// [`RunError`] when it cannot continue. Settled items stay settled.
pub async fn run(remote: RemoteRun) -> Result<EngineOutcome, RunError> {
    let RemoteRun { run, planner, dispatch, store, pool, lease, .. } = remote;
    let RemoteRun { listener, events, stops, hand_over, messages, .. } = remote;
    let (id, position) = (run.id(), run.core().position());
    dispatch.set_previous_pools(id, run.previous_pools.clone());
    let (to, messages) = messages;
    let (looking, lookups) = mpsc::unbounded_channel();
    let publisher = QueuePublisher::buffered(id, Arc::clone(&dispatch), looking);
    let lanes = planner.lanes().to_vec();
    let unplaceable_timeout = run.core().unplaceable_timeout();
    let engine = Engine::new(run, planner, publisher, listener, events).handing_over(hand_over);
    let handled = engine.handled();

    let results = Arc::new(AtomicU64::new(0));
    let (read, reports) = mpsc::channel(REPORT_BATCHES);
    let reader = ReportReader {
        run: id,
        dispatch: Arc::clone(&dispatch),
        store: Arc::clone(&store),
        lease,
        results: Arc::clone(&results),
    };
    let view = WorkerWatch {
        dispatch: Arc::clone(&dispatch),
        lanes,
        pool,
        store: store.identity().to_owned(),
        silence: limits::worker_silence(lease),
        unplaceable_timeout,
        results,
        to: to.clone(),
    };
    let rounds = Reconciler {
        run: id,
        dispatch: Arc::clone(&dispatch),
        handled: handled.clone(),
        lease,
        messages: to.clone(),
    };
    let claims = requests::forward_claims(id, Arc::clone(&dispatch), handled, to.clone());
    let commands = requests::forward_commands(id, Arc::clone(&dispatch), to.clone());
    let _parts: [Task<()>; 6] = [
        supervise::spawn("report reader", reader.read(position, read)),
        supervise::spawn("workers' view", view.watch()),
        supervise::spawn("reconciliation", rounds.run()),
        supervise::spawn("claims", claims),
        supervise::spawn("commands", commands),
        supervise::spawn("lookups", look_up_results(id, store, lookups, to)),
    ];
    let (_no_hints, hints) = PhaseHints::channel();
    let sources = EngineInputs { reports, messages, stops, hints, workers: WorkerLocation::Remote };
    // A task of its own: a future that the main thread runs itself is woken through the kernel.
    let running = supervise::spawn("engine", engine.run(sources));
    let ended = running.await.map_err(|_| RunError::PartEnded("the engine"))??;
    // Those of a session that hands over are those of the next one.
    if !(hand_over && ended.cancelled) {
        clear_queue(id, &*dispatch).await;
    }
    Ok(ended)
}

/// Removes what a session leaves in the queue, as long as that takes little time.
async fn clear_queue(run: RunId, dispatch: &dyn Dispatch) {
    if timeout(CLOSE_TIMEOUT, purge_unwanted(run, dispatch)).await.is_err() {
        tracing::warn!("cannot reach the queue: offers of this run may remain in it");
    }
}

/// Removes unwanted offers and executions of superseded tries. A worker that misses this is told
/// when the run resumes.
async fn purge_unwanted(run: RunId, dispatch: &dyn Dispatch) {
    let gone = async {
        let left = dispatch.list(run).await?;
        let tries: Vec<_> = left.iter().map(|listed| (listed.item, listed.try_id)).collect();
        if !tries.is_empty() {
            dispatch.withdraw(run, &tries).await?;
        }
        dispatch.control(ControlMessage::StopRun { run, level: StopLevel::Kill }).await
    };
    let outcome: Result<(), QueueError> = gone.await;
    if let Err(error) = outcome {
        tracing::warn!("cannot clear the queue of this run: {error}");
    }
}
