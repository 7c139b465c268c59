//! Coordinator and worker in one process, over an embedded queue.
//!
//! The previous owner of the run is known to be dead (this process holds the lock), and with it
//! everything it executed. Its spool is published, its unfinished executions are reported lost, its
//! environments are removed, and the rest of the plan starts at once.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use rollout_base::backoff::error_chain;
use rollout_base::durable;
use rollout_base::metrics::WorkerMetrics;
use rollout_base::supervise::{self, Task};
use rollout_base::traces::Tracer;
use rollout_engine::journal::RunLayout;
use rollout_engine::{
    DurableStateListener, Engine, EngineInputs, EngineMessage, EngineOutcome, OpenRun, PhaseHints,
    Planner, QueuePublisher, RunError, RunLock, RunOpenOptions, WorkerLocation,
};
use rollout_environment::{Owner, Provider};
use rollout_protocol::event::RunEvent;
use rollout_protocol::id::RunId;
use rollout_protocol::record::LostReason;
use rollout_protocol::wire::control::StopLevel;
use rollout_protocol::wire::heartbeat::ResourceBudget;
use rollout_protocol::wire::position::ReportBatch;
use rollout_queue::embedded::EmbeddedQueue;
use rollout_queue::embedded::model::BrokerModelConfig;
use rollout_queue::traits::{Dispatch, QueueError, WorkSource};
use rollout_store::BlobStore;
use rollout_store::host::{HostOwners, WorkerDir};
use rollout_worker::service::{Runner, ShutdownLevel, Worker, WorkerConfig, WorkerProfile};
use rollout_worker::spool;
use tokio::sync::{mpsc, oneshot, watch};

use super::control_socket::ControlSocket;
use super::hints::HintingRunner;
use crate::launch::host;

/// Reports read at once.
const REPORTS_PER_READ: usize = 4096;

/// Batches of reports that wait for the engine.
const REPORT_CHANNEL_CAPACITY: usize = 4;

/// Messages that wait for the engine.
const MESSAGE_CHANNEL_CAPACITY: usize = 64;

/// How long one read waits for reports.
const READ_WAIT: Duration = Duration::from_secs(3600);

/// A run in one process.
pub struct EmbeddedRun {
    /// The run directory and the options of the core.
    pub options: RunOpenOptions,
    /// The planner of pending items.
    pub planner: Box<dyn Planner>,
    /// The blob store.
    pub store: Arc<dyn BlobStore>,
    /// The queue. No other run uses it.
    pub queue: Arc<EmbeddedQueue>,
    /// Executions at a time.
    pub slots: u32,
    /// Receives the events.
    pub events: mpsc::Sender<Vec<RunEvent>>,
    /// Stops requested by the user.
    pub stops: mpsc::Receiver<StopLevel>,
    /// Called when this process owns the run, before anything is offered.
    pub on_open: OpenedHook,
    /// Whether commands of users on this host are taken.
    pub takes_commands: bool,
    /// Creates the worker's equipment, given the worker's directory.
    pub equip: EquipmentFactory,
    /// Takes the spans of the worker.
    pub tracer: Tracer,
}

/// Hook called with the run when this process owns it.
pub type OpenedHook = Box<dyn FnOnce(&OpenRun) -> BoxFuture<'static, Result<(), RunError>> + Send>;

/// Factory of a worker's equipment, given its directory.
pub type EquipmentFactory = Box<dyn FnOnce(&Path) -> Result<WorkerEquipment, RunError> + Send>;

/// A finished run session. The run stays owned until this is dropped: outputs that still write into
/// the run directory finish first.
#[derive(Debug)]
pub struct FinishedSession {
    /// The outcome.
    pub outcome: EngineOutcome,
    /// The lock on the run directory.
    pub lock: RunLock,
}

/// Runner and providers of a worker.
#[derive(Debug)]
pub struct WorkerEquipment {
    /// Runs the executions.
    pub runner: Arc<dyn Runner>,
    /// Providers whose leftovers are removed.
    pub providers: Vec<Arc<dyn Provider>>,
}

/// Runs a session to its end.
///
/// # Errors
/// [`RunError`] when it cannot start or continue. Settled items stay settled.
pub async fn run(embedded: EmbeddedRun) -> Result<FinishedSession, RunError> {
    let EmbeddedRun { options, planner, store, queue, slots, events, mut stops, .. } = embedded;
    let EmbeddedRun { on_open, takes_commands, equip, tracer, .. } = embedded;
    let (run, lock, planner) =
        rollout_engine::open_run(options, planner, events.clone(), &mut stops).await?;
    on_open(&run).await?;
    let id = run.id();
    let workers = run.layout().workers();
    let (dirs, WorkerEquipment { runner, providers }) = supervise::blocking(move || {
        let dirs = WorkerDirectories::prepare(&workers)?;
        let equipment = equip(dirs.own.path())?;
        Ok::<_, RunError>((dirs, equipment))
    })
    .await?;
    let (hints_in, hints) = PhaseHints::channel();
    let runner = Arc::new(HintingRunner::new(runner, hints_in));
    let owners = Arc::new(dirs.owners());
    let (clean, reaped) = oneshot::channel();
    let reaping = reap(providers.clone(), Arc::clone(&owners), clean);

    let (shutdown, shutdown_level) = watch::channel(ShutdownLevel::No);
    let config = worker_config(&dirs, host::limit_executions(slots), tracer);
    let worker = Worker::new(config, queue.clone(), Arc::clone(&store), runner);
    let (worker, quiesced) = work(worker, shutdown_level);
    let (recover, recovered) = oneshot::channel();
    let recovery = recover_all(dirs.former, id, store, queue.clone(), recover);
    let (reports, _reader) = read_reports(id, queue.clone());
    let (messages_in, messages) = mpsc::channel(MESSAGE_CHANNEL_CAPACITY);
    let _claims = take_claims(id, queue.clone(), messages_in.clone());
    let _commands = take_commands(id, queue.clone(), messages_in.clone());
    let control = if takes_commands { ControlSocket::open(&run, queue.clone()) } else { None };
    let _monitor = lock.monitor(id, queue.clone(), messages_in);
    let (stops, _forwarding) = forward_stops(stops, shutdown.clone());
    let workers = WorkerLocation::Local { quiesced, recovered, reaped };
    let inputs = EngineInputs { reports, messages, stops, hints, workers };

    let layout = run.layout().clone();
    let (publisher, listener) =
        (QueuePublisher::direct(queue.clone()), DurableStateListener::Queue(queue));
    let engine = Engine::new(run, planner, publisher, listener, events);
    let outcome = engine.run(inputs).await;
    ControlSocket::close(control).await;
    let before = shutdown.send_replace(final_shutdown(&outcome));
    worker.await.map_err(|_| RunError::PartEnded("the worker"))?;
    host::remove_leftovers(&providers, before >= ShutdownLevel::Kill).await;
    let own = dirs.own;
    let clear = move |discard| remove_own_files(own, &layout, discard);
    let outcome = match outcome {
        Ok(ended) => ended,
        Err(error) => {
            // A new owner needs nothing that was executed here.
            if let RunError::LockLost(_) = error {
                supervise::blocking(move || clear(true)).await;
            }
            return Err(error);
        }
    };
    if outcome.pending == 0 {
        recovery.await.map_err(|_| RunError::PartEnded("the recovery of former work"))?;
    } else {
        // No engine journals the rest of an unfinished recovery: the next session does it.
        drop(recovery);
    }
    reaping.await.map_err(|_| RunError::PartEnded("the reaper"))?;
    supervise::blocking(move || clear(outcome.pending == 0)).await;
    Ok(FinishedSession { outcome, lock })
}

/// Shutdown of the worker after the engine has ended. Executions that still run are not needed: everything
/// is settled, the worker has quiesced, or the session failed. Their environments are removed. Finished
/// executions stay in the spool unless everything is settled: no one reads their reports then.
fn final_shutdown(outcome: &Result<EngineOutcome, RunError>) -> ShutdownLevel {
    match outcome {
        Ok(ended) if ended.pending == 0 => ShutdownLevel::Discard,
        _ => ShutdownLevel::Kill,
    }
}

/// Removes the files of this process's worker. Its directory stays for the next session if it has
/// unreported executions, unless `discard` is set.
fn remove_own_files(own: WorkerDir, layout: &RunLayout, discard: bool) {
    if discard || !own.has_unreported_work() {
        remove(own);
    }
    remove_work_dirs(layout);
}

/// Starts the worker; the receiver gets a message when it has quiesced.
fn work(
    worker: Worker,
    shutdown_level: watch::Receiver<ShutdownLevel>,
) -> (Task<()>, oneshot::Receiver<()>) {
    let (quiesce, quiesced) = oneshot::channel();
    let task = supervise::spawn("worker", async move {
        worker.run(shutdown_level).await;
        // The engine may have ended already.
        let _no_receiver = quiesce.send(());
    });
    (task, quiesced)
}

/// The worker directories of a run directory.
struct WorkerDirectories {
    own: WorkerDir,
    former: Vec<WorkerDir>,
}

impl WorkerDirectories {
    fn prepare(base: &Path) -> Result<Self, RunError> {
        let failed = |action| {
            move |error: rollout_store::host::WorkerDirError| RunError::File {
                action,
                path: base.to_owned(),
                source: std::io::Error::other(error),
            }
        };
        durable::create_directory(base).map_err(|source| RunError::File {
            action: "create",
            path: base.to_owned(),
            source,
        })?;
        let former = WorkerDir::adoptable(base).map_err(failed("adopt worker directories in"))?;
        let own = WorkerDir::create(base).map_err(failed("create a worker directory in"))?;
        Ok(Self { own, former })
    }

    fn current_owner(&self) -> Owner {
        Owner::current(self.own.path().to_owned())
    }

    fn owners(&self) -> HostOwners {
        let owners = HostOwners::new(self.current_owner());
        for dir in &self.former {
            owners.adopt(dir);
        }
        owners
    }
}

fn worker_config(dirs: &WorkerDirectories, slots: u32, tracer: Tracer) -> WorkerConfig {
    WorkerConfig {
        worker: dirs.own.id().clone(),
        owner: dirs.current_owner(),
        dir: dirs.own.path().to_owned(),
        pool: "default".to_owned(),
        slots,
        budget: ResourceBudget::default(),
        profile: WorkerProfile::default().into_fixed(),
        lease: BrokerModelConfig::default().lease,
        suspicious_window: None,
        max_offline: None,
        spool_bytes: host::SPOOL_BYTES,
        metrics: WorkerMetrics::default(),
        tracer,
    }
}

/// Removes environments of dead owners while the run proceeds.
fn reap(
    providers: Vec<Arc<dyn Provider>>,
    owners: Arc<HostOwners>,
    done: oneshot::Sender<()>,
) -> Task<()> {
    supervise::spawn("reaper", async move {
        host::reap(&providers, &owners).await;
        // The engine may have failed already.
        let _no_receiver = done.send(());
    })
}

/// Publishes finished executions of former workers of this run, reports the others lost, and
/// removes the workers' directories.
fn recover_all(
    former: Vec<WorkerDir>,
    run: RunId,
    store: Arc<dyn BlobStore>,
    source: Arc<dyn WorkSource>,
    done: oneshot::Sender<()>,
) -> Task<()> {
    supervise::spawn("recovery", async move {
        for dir in former {
            let (store, source) = (Arc::clone(&store), Arc::clone(&source));
            let reason = LostReason::ProcessDied;
            match spool::recover(dir.path(), Some(run), reason, store, source).await {
                Ok(recovered) if recovered.skipped == 0 => {
                    supervise::blocking(move || remove(dir)).await;
                }
                Ok(recovered) => {
                    let path = dir.path().display();
                    tracing::warn!("{} entries of {path} are left as they are", recovered.skipped);
                }
                Err(error) => {
                    tracing::error!("cannot recover former work: {}", error_chain(&error));
                }
            }
        }
        // The engine may have failed already.
        let _no_receiver = done.send(());
    })
}

/// Removes the run's working directories that are empty.
fn remove_work_dirs(layout: &RunLayout) {
    for dir in [layout.workers(), layout.sandboxes(), layout.work()] {
        // Not empty: preserved environments, or entries that could not be read.
        let _kept = std::fs::remove_dir(dir);
    }
}

fn remove(dir: WorkerDir) {
    if let Err(error) = dir.remove() {
        tracing::warn!("{}", error_chain(&error));
    }
}

fn read_reports(run: RunId, queue: Arc<EmbeddedQueue>) -> (mpsc::Receiver<ReportBatch>, Task<()>) {
    let (sender, receiver) = mpsc::channel(REPORT_CHANNEL_CAPACITY);
    let task = supervise::spawn("report reader", async move {
        let mut position = None;
        loop {
            match queue.reports(run, position, REPORTS_PER_READ, READ_WAIT).await {
                Ok(batch) => {
                    position = batch.reports.last().map_or(position, |last| Some(last.position));
                    if batch.read_to.is_some() && sender.send(batch).await.is_err() {
                        return;
                    }
                }
                Err(QueueError::Position) => position = None,
                Err(error) => {
                    tracing::error!("the embedded queue failed: {error}");
                    return;
                }
            }
        }
    });
    (receiver, task)
}

fn take_claims(
    run: RunId,
    queue: Arc<EmbeddedQueue>,
    messages: mpsc::Sender<EngineMessage>,
) -> Task<()> {
    supervise::spawn("claims", async move {
        while let Ok(claim) = queue.next_claim(run).await {
            if messages.send(EngineMessage::Claims(vec![claim], None)).await.is_err() {
                return;
            }
        }
    })
}

fn take_commands(
    run: RunId,
    queue: Arc<EmbeddedQueue>,
    messages: mpsc::Sender<EngineMessage>,
) -> Task<()> {
    supervise::spawn("commands", async move {
        while let Ok(command) = queue.next_command(run).await {
            if messages.send(EngineMessage::Command(command)).await.is_err() {
                return;
            }
        }
    })
}

/// Forwards every stop to the engine, then to the worker: the engine must know of the stop before
/// the worker quiesces.
fn forward_stops(
    mut stops: mpsc::Receiver<StopLevel>,
    shutdown: watch::Sender<ShutdownLevel>,
) -> (mpsc::Receiver<StopLevel>, Task<()>) {
    let (sender, receiver) = mpsc::channel(4);
    let task = supervise::spawn("stops", async move {
        while let Some(level) = stops.recv().await {
            let shutdown_level = match level {
                StopLevel::Drain => ShutdownLevel::Drain,
                StopLevel::Kill => ShutdownLevel::Kill,
            };
            if sender.send(level).await.is_err() {
                return;
            }
            shutdown.send_modify(|level| *level = (*level).max(shutdown_level));
        }
        // No more stops can come; the engine needs the channel to stay open.
        std::future::pending::<()>().await;
    });
    (receiver, task)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worker_discards_reports_only_when_everything_is_settled() {
        let ended =
            |pending| Ok(EngineOutcome { cancelled: false, pending, is_over_budget: false });
        let failed = Err(RunError::PartEnded("the worker"));
        for (outcome, expected) in [
            (ended(0), ShutdownLevel::Discard),
            (ended(1), ShutdownLevel::Kill),
            (failed, ShutdownLevel::Kill),
        ] {
            assert_eq!(final_shutdown(&outcome), expected, "{outcome:?}");
        }
    }
}
