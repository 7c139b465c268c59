//! The life of a worker: pull, run, spool, upload, report, acknowledge.
//!
//! ```text
//!            pull ─── suspicious? ──▶ claim ──run──┐
//!              │ no                     │hold, drop│
//!              ▼                        ▼          ▼
//!  slot     execute (polled once in place; a task only if it waits)
//!              │ the environment is gone: the slot is free
//!              ▼
//!            finish: bare? ── no ──▶ spool ──▶ store
//!              │ yes                            │
//!              ▼                                ▼
//!            report (what gathered while the last batches were under way) ──▶ acknowledge
//! ```
//!
//! Nothing is done per item that can be done per batch: no task, timer, file or message of its own
//! for an execution that ends at once and leaves nothing.

mod claim;
mod connection;
mod drain;
mod execute;
mod execution;
mod execution_slot;
mod finish;
mod heartbeat;
mod pull;
mod rate_limits;
mod registry;
mod report;
mod slots;
mod spec_cache;
mod stage_permits;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::convert::Infallible;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use rollout_protocol::error::{ErrorCode, ErrorType, TrialError};
use rollout_protocol::id::{ExecId, WorkerId};
use rollout_protocol::record::{EvalRecord, IdeasRecord, TrialRecord};
use rollout_protocol::spec::environment::ProviderKind;
use rollout_protocol::wire::control::StopLevel;
use rollout_protocol::wire::heartbeat::{ActiveExecution, EnvironmentCapacity, ResourceBudget};
use tokio::sync::{Semaphore, mpsc, watch};

use self::connection::BrokerConnection;
use self::rate_limits::RunRateLimiters;
use self::registry::ExecutionRegistry;
use self::report::ReportOutbox;
use self::slots::SlotPool;
use self::spec_cache::SpecCache;
use crate::backoff::OutageLog;
use crate::disk::DiskWatch;
use crate::environment::Owner;
use crate::executor::{ExecutionServices, Finished};
use crate::queue::traits::WorkSource;
use crate::spool::Spool;
use crate::store::BlobStore;
use crate::supervise::{self, Task};
use crate::work::eval::{self, EvalContext, Repositories};
use crate::work::ideas::{self, IdeasContext};
use crate::work::trial::{self, TrialContext};

/// How long the last hello may take.
const FINAL_HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(2);

/// Runs what offers ask for.
#[async_trait]
pub trait Runner: Send + Sync + fmt::Debug {
    /// Runs one execution until its environment is gone. May panic; must heed `context.execution.stop`.
    async fn run(&self, context: TrialContext) -> Finished<TrialRecord>;

    /// The disks that its executions depend on.
    fn disks(&self) -> Arc<DiskWatch> {
        Arc::default()
    }

    /// Runs one execution of an eval until its environment is gone. May panic; must heed
    /// `context.execution.stop`. A runner of trials alone says so.
    async fn eval(&self, context: EvalContext) -> Finished<EvalRecord> {
        let error = TrialError::transient(
            ErrorType::InternalError,
            ErrorCode::BUG,
            "this worker runs trials only",
        );
        Finished::<EvalRecord>::failed(&context, "", error)
    }

    /// Runs one execution of a command that writes ideas until its environment is gone. May panic;
    /// must heed `context.execution.stop`. The default fails: such a runner does not know this kind of work.
    async fn ideas(&self, context: IdeasContext) -> Finished<IdeasRecord> {
        let message = "this worker writes no ideas";
        let error = TrialError::transient(ErrorType::InternalError, ErrorCode::BUG, message);
        Finished::<IdeasRecord>::failed(&context, error)
    }
}

/// Runs every kind of work.
#[derive(Debug)]
pub struct LocalRunner {
    /// Shared by all kinds of work.
    pub services: ExecutionServices,
    /// Repositories of evals and ideas.
    pub repositories: Repositories,
}

#[async_trait]
impl Runner for LocalRunner {
    async fn run(&self, context: TrialContext) -> Finished<TrialRecord> {
        trial::run(context, &self.services).await
    }

    async fn eval(&self, context: EvalContext) -> Finished<EvalRecord> {
        eval::run(context, &self.services, &self.repositories).await
    }

    async fn ideas(&self, context: IdeasContext) -> Finished<IdeasRecord> {
        ideas::run(context, &self.services, &self.repositories).await
    }

    fn disks(&self) -> Arc<DiskWatch> {
        Arc::clone(&self.services.disks)
    }
}

/// What a worker is.
#[derive(Debug, Clone)]
pub struct WorkerConfig {
    /// Its name.
    pub worker: WorkerId,
    /// The process it lives in.
    pub owner: Owner,
    /// Its directory, whose lock this process holds.
    pub dir: PathBuf,
    /// Pool whose work it takes.
    pub pool: String,
    /// Executions with an environment at the same time.
    pub slots: u32,
    /// What its operator lets trials use together.
    pub budget: ResourceBudget,
    /// What it can run at present, for whoever decides where work goes.
    pub profile: watch::Receiver<WorkerProfile>,
    /// The queue's lease.
    pub lease: Duration,
    /// How long after its connection every delivery is suspicious, because the queue may have lost
    /// who runs what. `None` when the world is known: whoever executed anything of the offered runs
    /// before is proven dead and its executions are reported lost.
    pub suspicious_window: Option<Duration>,
    /// How long it works without contact to the queue before it ends what runs and gives up; for
    /// ever when absent.
    pub max_offline: Option<Duration>,
    /// Bytes of finished executions on disk beyond which the worker takes no more work.
    pub spool_bytes: u64,
}

/// What a worker can run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WorkerProfile {
    /// Its providers, and the largest environment of each.
    pub providers: BTreeMap<ProviderKind, EnvironmentCapacity>,
    /// Names of the variables that trials may see.
    pub variables: BTreeSet<String>,
}

impl WorkerProfile {
    /// A profile that never changes.
    pub fn into_fixed(self) -> watch::Receiver<Self> {
        watch::Sender::new(self).subscribe()
    }
}

/// Why a worker ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkerExitReason {
    /// It was asked to, and let what ran come to an end.
    Asked,
    /// It was asked to end what ran.
    Killed,
    /// It was without contact for longer than it may be.
    Offline,
}

/// How a worker ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkerExit {
    /// Why.
    pub why: WorkerExitReason,
    /// Executions whose report was not acknowledged. What they finished is in the spool.
    pub unreported: usize,
}

/// Finished executions of dead workers that this one reports: its hellos show them, too.
#[derive(Debug, Default)]
pub struct AdoptedExecutions(Mutex<HashMap<ExecId, ActiveExecution>>);

impl AdoptedExecutions {
    /// Shows executions.
    pub fn insert(&self, lines: impl IntoIterator<Item = ActiveExecution>) {
        let mut shown = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        shown.extend(lines.into_iter().map(|line| (line.exec, line)));
    }

    /// An execution is reported.
    pub fn remove(&self, exec: ExecId) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&exec);
    }

    fn heartbeat_entries(&self) -> Vec<ActiveExecution> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).values().copied().collect()
    }
}

/// What is asked of a worker. Only ever made harder.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum ShutdownLevel {
    /// Go on.
    #[default]
    No,
    /// Take no more work, finish what runs.
    Finish,
    /// Take no more work; executions finish their phase, collect and tear down.
    Drain,
    /// Executions end at once. What cannot be reported soon stays in the spool.
    Kill,
}

/// A worker.
#[derive(Debug)]
pub struct Worker {
    shared: Arc<WorkerShared>,
    over: mpsc::UnboundedReceiver<stage_permits::EndedStage>,
}

/// What the parts of a worker share.
#[derive(Debug)]
struct WorkerShared {
    config: WorkerConfig,
    source: Arc<dyn WorkSource>,
    store: Arc<dyn BlobStore>,
    runner: Arc<dyn Runner>,
    documents: SpecCache,
    registry: ExecutionRegistry,
    outbox: ReportOutbox,
    spool: Spool,
    adopted: Arc<AdoptedExecutions>,
    line: BrokerConnection,
    /// Room for executions with an environment.
    rooms: Arc<SlotPool>,
    paces: RunRateLimiters,
    /// Stages of evals whose tickets are to be given back.
    over: mpsc::UnboundedSender<stage_permits::EndedStage>,
    /// Room for claims that wait without a slot.
    off_slot: Arc<Semaphore>,
    /// Room for executions that wait for a service without a slot.
    parked: Arc<Semaphore>,
    /// What is asked of the worker, by whomever.
    shutdown: watch::Sender<ShutdownLevel>,
    /// No more work is asked for: what is given back now does not come here again.
    pulls_ended: watch::Sender<bool>,
    /// It was without contact for longer than it may be.
    offline: AtomicBool,
    queue_outage: OutageLog,
    /// Of taking work alone: a queue may refuse that and take reports.
    pull_outage: OutageLog,
    store_outage: OutageLog,
    spool_outage: OutageLog,
    disks: Arc<DiskWatch>,
    /// A disk has too little room for more work.
    low_disk: AtomicBool,
}

impl Worker {
    /// A worker that does nothing yet.
    pub fn new(
        config: WorkerConfig,
        source: Arc<dyn WorkSource>,
        store: Arc<dyn BlobStore>,
        runner: Arc<dyn Runner>,
    ) -> Self {
        let slots = config.slots as usize;
        let (ended, over) = mpsc::unbounded_channel();
        let shared = WorkerShared {
            documents: SpecCache::new(store.clone()),
            registry: ExecutionRegistry::default(),
            outbox: ReportOutbox::default(),
            spool: Spool::new(config.dir.clone()),
            adopted: Arc::default(),
            line: BrokerConnection::new(&*source),
            paces: RunRateLimiters::default(),
            over: ended,
            rooms: Arc::new(SlotPool::new(config.slots, &config.budget)),
            off_slot: Arc::new(Semaphore::new(slots)),
            parked: Arc::new(Semaphore::new(slots)),
            shutdown: watch::Sender::default(),
            pulls_ended: watch::Sender::default(),
            offline: AtomicBool::new(false),
            pull_outage: OutageLog::new("taking work"),
            queue_outage: OutageLog::new("the queue"),
            store_outage: OutageLog::new("the blob store"),
            spool_outage: OutageLog::new("the spool"),
            disks: runner.disks(),
            low_disk: AtomicBool::new(false),
            config,
            source,
            store,
            runner,
        };
        Self { shared: Arc::new(shared), over }
    }

    /// What its hellos show beside its own executions.
    pub fn adopted(&self) -> Arc<AdoptedExecutions> {
        Arc::clone(&self.shared.adopted)
    }

    /// Works until it is told to stop and everything it began is reported, or safe in the spool when
    /// it was killed or cannot report. A closed channel means [`ShutdownLevel::Finish`].
    ///
    /// Dropping it aborts every execution without a word.
    pub async fn run(self, shutdown: watch::Receiver<ShutdownLevel>) -> WorkerExit {
        let Self { shared, over } = self;
        heartbeat::send_heartbeat(&shared).await;
        let mut helpers: FuturesUnordered<Task<Infallible>> = [
            supervise::spawn("reports", report::send_reports(shared.clone())),
            supervise::spawn("leases", heartbeat::maintain_leases(shared.clone())),
            supervise::spawn("tickets", stage_permits::return_permits(shared.clone(), over)),
            supervise::spawn("line", connection::watch_connection(shared.clone())),
            supervise::spawn("controls", drain::handle_controls(shared.clone())),
            supervise::spawn("shutdown", drain::forward_shutdown(shared.clone(), shutdown)),
            supervise::spawn("disks", watch_disks(shared.disks.clone())),
        ]
        .into_iter()
        .collect();
        let work = async {
            let tasks = pull::pull_work(&shared).await;
            drain::wait_for_executions(&shared, tasks).await;
        };
        tokio::select! {
            () = work => {}
            Some(Err(defect)) = helpers.next() => panic!("{defect}"),
        }
        drop(helpers);
        // So that nobody counts on it any more; nobody waits for it either.
        let _unheard =
            tokio::time::timeout(FINAL_HEARTBEAT_TIMEOUT, heartbeat::send_final_heartbeat(&shared))
                .await;
        let why = if shared.offline.load(Ordering::Relaxed) {
            WorkerExitReason::Offline
        } else if *shared.shutdown.borrow() >= ShutdownLevel::Kill {
            WorkerExitReason::Killed
        } else {
            WorkerExitReason::Asked
        };
        WorkerExit { why, unreported: shared.registry.len() }
    }
}

/// Watches the disks, for ever.
async fn watch_disks(disks: Arc<DiskWatch>) -> Infallible {
    disks.watch().await
}

impl WorkerShared {
    /// Asks for an end of the worker. Only ever harder.
    fn shut_down(&self, level: ShutdownLevel) {
        let harder = self.shutdown.send_if_modified(|present| {
            let harder = *present < level;
            *present = level.max(*present);
            harder
        });
        if !harder {
            return;
        }
        match level {
            ShutdownLevel::No | ShutdownLevel::Finish => {}
            ShutdownLevel::Drain => self.registry.stop_all(StopLevel::Drain),
            ShutdownLevel::Kill => self.registry.stop_all(StopLevel::Kill),
        }
        self.registry.note_change();
    }

    fn is_closing(&self) -> bool {
        *self.shutdown.borrow() > ShutdownLevel::No
    }

    /// Waits until no more work is begun.
    async fn wait_for_shutdown(&self) {
        let mut shutdown = self.shutdown.subscribe();
        let told = shutdown.wait_for(|level| *level > ShutdownLevel::No).await;
        drop(told.expect("the worker holds the sender"));
    }

    /// Waits until what was not begun is to be given back.
    async fn wait_for_pulls_end(&self) {
        let mut ended = self.pulls_ended.subscribe();
        let told = ended.wait_for(|ended| *ended).await;
        drop(told.expect("the worker holds the sender"));
    }

    /// Whether something that reports need is known to be out of reach.
    fn is_cut_off(&self) -> bool {
        !self.line.is_up() || self.queue_outage.is_down() || self.store_outage.is_down()
    }
}
