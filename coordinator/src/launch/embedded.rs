//! Coordinator and worker in one process, over the queue inside it.
//!
//! The process that held the run before is known to be dead (this one has its lock), and with it
//! everything it executed: its spool is published, its unfinished executions are reported lost, its
//! environments are removed, and the rest of the plan starts at once.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rollout_protocol::event::RunEvent;
use rollout_protocol::id::RunId;
use rollout_protocol::record::LostReason;
use rollout_protocol::wire::control::StopLevel;
use rollout_protocol::wire::heartbeat::ResourceBudget;
use rollout_protocol::wire::position::ReportBatch;
use rollout_worker::environment::{Owner, Provider};
use rollout_worker::host::{HostOwners, WorkerDir};
use rollout_worker::queue::embedded::EmbeddedQueue;
use rollout_worker::queue::embedded::model::BrokerModelConfig;
use rollout_worker::queue::traits::{Dispatch, QueueError, WorkSource};
use rollout_worker::service::{Runner, ShutdownLevel, Worker, WorkerConfig, WorkerProfile};
use rollout_worker::spool;
use rollout_worker::store::BlobStore;
use rollout_worker::supervise::{self, Task};
use tokio::sync::{mpsc, oneshot, watch};

use super::hints::HintingRunner;
use crate::engine::journal::RunLayout;
use crate::engine::{
    self, DurableStateListener, Engine, EngineInputs, EngineMessage, EngineOutcome, OpenRun,
    PhaseHints, Planner, QueuePublisher, RunError, RunLock, RunOpenOptions, WorkerLocation,
};
use crate::launch::host;

/// Reports read at once.
const REPORTS_PER_READ: usize = 4096;

/// Batches of reports that wait for the engine.
const REPORT_CHANNEL_CAPACITY: usize = 4;

/// News that wait for the engine.
const MESSAGE_CHANNEL_CAPACITY: usize = 64;

/// How long a read of the reports waits before it asks again.
const READ_WAIT: Duration = Duration::from_secs(3600);

/// A run in one process.
pub struct EmbeddedRun<P> {
    /// The run directory and what the core needs to know.
    pub opening: RunOpenOptions,
    /// What is owed.
    pub planner: P,
    /// Where blobs are.
    pub store: Arc<dyn BlobStore>,
    /// Executions at a time.
    pub slots: u32,
    /// Where events go.
    pub events: mpsc::Sender<Vec<RunEvent>>,
    /// Stops asked for by the user.
    pub stops: mpsc::Receiver<StopLevel>,
    /// Called when the run is ours, before anything is offered.
    pub opened: OpenedHook,
    /// Makes what the worker needs, given the worker's directory.
    pub equip: EquipmentFactory,
}

/// Called with the run when it is ours.
pub type OpenedHook = Box<dyn FnOnce(&OpenRun) -> Result<(), RunError> + Send>;

/// Makes what a worker needs, given its directory.
pub type EquipmentFactory = Box<dyn FnOnce(&Path) -> Result<WorkerEquipment, RunError> + Send>;

/// A sitting that came to its end. The run stays owned until this is dropped: outputs that still
/// write into the run directory come first.
#[derive(Debug)]
pub struct FinishedSession {
    /// How it ended.
    pub ended: EngineOutcome,
    /// The lock on the run directory.
    pub lock: RunLock,
}

/// What a worker works with.
#[derive(Debug)]
pub struct WorkerEquipment {
    /// Runs the executions.
    pub runner: Arc<dyn Runner>,
    /// Whose leftovers are removed.
    pub providers: Vec<Arc<dyn Provider>>,
}

/// Runs a sitting to its end.
///
/// # Errors
/// [`RunError`] when it could not begin or go on. What is settled stays settled.
pub async fn run<P: Planner + 'static>(
    embedded: EmbeddedRun<P>,
) -> Result<FinishedSession, RunError> {
    let EmbeddedRun { opening, planner, store, slots, events, mut stops, opened, equip } = embedded;
    let (run, lock, planner) =
        engine::open_run(opening, planner, events.clone(), &mut stops).await?;
    opened(&run)?;
    let (queue, id) = (Arc::new(EmbeddedQueue::default()), run.id());
    let workers = run.layout().workers();
    let (dirs, WorkerEquipment { runner, providers }) = supervise::blocking(move || {
        let dirs = WorkerDirectories::prepare(&workers)?;
        let equipment = equip(dirs.mine.path())?;
        Ok::<_, RunError>((dirs, equipment))
    })
    .await?;
    let (hints_in, hints) = PhaseHints::channel();
    let runner = Arc::new(HintingRunner::new(runner, hints_in));
    let owners = Arc::new(dirs.owners());
    let (clean, reaped) = oneshot::channel();
    let reaping = reap(providers, Arc::clone(&owners), clean);

    let (shutdown, told) = watch::channel(ShutdownLevel::No);
    let config = worker_config(&dirs, host::limit_executions(slots));
    let worker = Worker::new(config, queue.clone(), Arc::clone(&store), runner);
    let (worker, quiesced) = work(worker, told);
    let (recover, recovered) = oneshot::channel();
    let recovery = recover_all(dirs.former, id, store, queue.clone(), recover);
    let (reports, _reader) = read_reports(id, queue.clone());
    let (to, news) = mpsc::channel(MESSAGE_CHANNEL_CAPACITY);
    let _answering = take_claims(id, queue.clone(), to.clone());
    let _attending = lock.monitor(id, queue.clone(), to);
    let (stops, _forwarding) = forward_stops(stops, shutdown.clone());
    let workers = WorkerLocation::Here { quiesced, recovered, reaped };
    let sources = EngineInputs { reports, news, stops, hints, workers };

    let layout = run.layout().clone();
    let (outlet, keeper) =
        (QueuePublisher::direct(queue.clone()), DurableStateListener::Queue(queue));
    let engine = Engine::new(run, planner, outlet, keeper, events);
    let ended = engine.run(sources).await;
    // Whatever still runs is wanted by nobody: everything is settled, or the worker has quiesced, or
    // the sitting failed. Its environments are removed; what it finished stays in its spool.
    shutdown.send_replace(ShutdownLevel::Kill);
    worker.await.map_err(|_| RunError::PartEnded("the worker"))?;
    let mine = dirs.mine;
    let clear = move |whatever| remove_own_files(mine, &layout, whatever);
    let ended = match ended {
        Ok(ended) => ended,
        Err(error) => {
            // A new owner asks for nothing that was executed here.
            if let RunError::LockLost(_) = error {
                supervise::blocking(move || clear(true)).await;
            }
            return Err(error);
        }
    };
    if ended.owed == 0 {
        recovery.await.map_err(|_| RunError::PartEnded("the recovery of former work"))?;
    } else {
        // A recovery that is not done yet has nobody any more who journals: the next sitting does it.
        drop(recovery);
    }
    reaping.await.map_err(|_| RunError::PartEnded("the reaper"))?;
    supervise::blocking(move || clear(ended.owed == 0)).await;
    Ok(FinishedSession { ended, lock })
}

/// Removes the files of this process's worker. Its directory stays for the next run session when it
/// has executions that were not reported, unless `whatever` it has is wanted by nobody.
fn remove_own_files(mine: WorkerDir, layout: &RunLayout, whatever: bool) {
    if whatever || !mine.has_unreported_work() {
        remove(mine);
    }
    remove_work_dirs(layout);
}

/// Starts the worker, and tells when it has quiesced.
fn work(worker: Worker, told: watch::Receiver<ShutdownLevel>) -> (Task<()>, oneshot::Receiver<()>) {
    let (quiesce, quiesced) = oneshot::channel();
    let task = supervise::spawn("worker", async move {
        worker.run(told).await;
        // The engine may have ended already.
        let _nobody_asks = quiesce.send(());
    });
    (task, quiesced)
}

/// The worker directories of a run directory.
struct WorkerDirectories {
    mine: WorkerDir,
    former: Vec<WorkerDir>,
}

impl WorkerDirectories {
    fn prepare(base: &Path) -> Result<Self, RunError> {
        let failed = |action| {
            move |error: rollout_worker::host::WorkerDirError| RunError::File {
                action,
                path: base.to_owned(),
                source: std::io::Error::other(error),
            }
        };
        std::fs::create_dir_all(base).map_err(|source| RunError::File {
            action: "create",
            path: base.to_owned(),
            source,
        })?;
        let former = WorkerDir::adoptable(base).map_err(failed("adopt worker directories in"))?;
        let mine = WorkerDir::create(base).map_err(failed("create a worker directory in"))?;
        Ok(Self { mine, former })
    }

    fn current_owner(&self) -> Owner {
        Owner::current(self.mine.path().to_owned())
    }

    fn owners(&self) -> HostOwners {
        let owners = HostOwners::new(self.current_owner());
        for dir in &self.former {
            owners.adopt(dir);
        }
        owners
    }
}

fn worker_config(dirs: &WorkerDirectories, slots: u32) -> WorkerConfig {
    WorkerConfig {
        worker: dirs.mine.id().clone(),
        owner: dirs.current_owner(),
        dir: dirs.mine.path().to_owned(),
        pool: "default".to_owned(),
        slots,
        budget: ResourceBudget::default(),
        profile: WorkerProfile::default().into_fixed(),
        lease: BrokerModelConfig::default().lease,
        suspicious_window: None,
        max_offline: None,
        spool_bytes: host::SPOOL_BYTES,
    }
}

/// Removes environments that dead owners left, beside the run.
fn reap(
    providers: Vec<Arc<dyn Provider>>,
    owners: Arc<HostOwners>,
    done: oneshot::Sender<()>,
) -> Task<()> {
    supervise::spawn("reaper", async move {
        host::reap(&providers, &owners).await;
        // The engine may have failed already.
        let _nobody_waits = done.send(());
    })
}

/// Publishes what former workers of this run finished, reports the rest lost, removes their
/// directories.
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
                Ok(recovered) if recovered.left == 0 => {
                    supervise::blocking(move || remove(dir)).await;
                }
                Ok(recovered) => {
                    let path = dir.path().display();
                    tracing::warn!("{} entries of {path} are left as they are", recovered.left);
                }
                Err(error) => tracing::error!("cannot recover former work: {error}"),
            }
        }
        // The engine may have failed already.
        let _nobody_waits = done.send(());
    })
}

/// Removes the run's working directories unless something is kept in them.
fn remove_work_dirs(layout: &RunLayout) {
    for dir in [layout.workers(), layout.sandboxes(), layout.work()] {
        // Not empty: preserved environments, or entries that could not be read.
        let _kept = std::fs::remove_dir(dir);
    }
}

fn remove(dir: WorkerDir) {
    let path = dir.path().display().to_string();
    if let Err(error) = dir.remove() {
        tracing::warn!("cannot remove {path}: {error}");
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
                    tracing::error!("the queue inside the process failed: {error}");
                    return;
                }
            }
        }
    });
    (receiver, task)
}

fn take_claims(run: RunId, queue: Arc<EmbeddedQueue>, to: mpsc::Sender<EngineMessage>) -> Task<()> {
    supervise::spawn("claims", async move {
        while let Ok(claim) = queue.next_claim(run).await {
            if to.send(EngineMessage::Claims(vec![claim], None)).await.is_err() {
                return;
            }
        }
    })
}

/// Tells the engine of every stop, then the worker: that it has quiesced is news only after that.
fn forward_stops(
    mut stops: mpsc::Receiver<StopLevel>,
    shutdown: watch::Sender<ShutdownLevel>,
) -> (mpsc::Receiver<StopLevel>, Task<()>) {
    let (sender, receiver) = mpsc::channel(4);
    let task = supervise::spawn("stops", async move {
        while let Some(level) = stops.recv().await {
            let asked = match level {
                StopLevel::Drain => ShutdownLevel::Drain,
                StopLevel::Kill => ShutdownLevel::Kill,
            };
            if sender.send(level).await.is_err() {
                return;
            }
            shutdown.send_modify(|level| *level = (*level).max(asked));
        }
        // Nobody can ask for a stop any more; the channel stays open for the engine's sake.
        std::future::pending::<()>().await;
    });
    (receiver, task)
}
