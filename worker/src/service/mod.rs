//! The worker service: pull, run, spool, upload, report, acknowledge.
//!
//! ```text
//!            pull ─── suspicious? ──▶ claim ──run──┐
//!              │ no                     │hold, drop│
//!              ▼                        ▼          ▼
//!  slot     execute (polled once in place; a task only if it waits)
//!              │ the environment is removed: the slot is free
//!              ▼
//!            finish: bare? ── no ──▶ spool ──▶ store
//!              │ yes                            │
//!              ▼                                ▼
//!            report (in batches) ──▶ acknowledge
//! ```
//!
//! Everything that can be done per batch is not done per item: an execution that ends at once and
//! leaves no files has no task, timer, file or message of its own.

mod claim;
mod connection;
mod disks;
mod drain;
mod event_log;
mod execute;
mod execution;
mod execution_slot;
mod execution_trace;
mod failure_streak;
mod finish;
mod heartbeat;
mod monitor;
mod pull;
mod rate_limits;
mod registry;
mod report;
mod slots;
mod spec_cache;
mod stage_permits;
mod trial_output;
mod trial_requests;

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
use rollout_base::backoff::OutageLog;
use rollout_base::metrics::WorkerMetrics;
use rollout_base::supervise::{self, Task};
use rollout_base::traces::Tracer;
use rollout_environment::Owner;
use rollout_gateway::run_calls::RunCallTable;
use rollout_protocol::error::{ErrorCode, ErrorType, TrialError};
use rollout_protocol::id::{ExecId, WorkerId};
use rollout_protocol::record::{EvalRecord, IdeasRecord, TrialRecord};
use rollout_protocol::spec::environment::ProviderKind;
use rollout_protocol::wire::control::StopLevel;
use rollout_protocol::wire::heartbeat::{ActiveExecution, EnvironmentCapacity, ResourceBudget};
use rollout_queue::traits::WorkSource;
use rollout_store::BlobStore;
use tokio::sync::{Semaphore, mpsc, watch};

use self::connection::BrokerConnection;
use self::failure_streak::FailureStreak;
pub use self::monitor::{WorkerMonitor, WorkerNotReady};

use self::rate_limits::RunRateLimiters;
use self::registry::ExecutionRegistry;
use self::report::ReportOutbox;
use self::slots::SlotPool;
use self::spec_cache::SpecCache;
use crate::disk::DiskWatch;
use crate::executor::{ExecutionServices, Finished};
use crate::spool::Spool;
use crate::work::eval::{self, EvalContext, Repositories};
use crate::work::ideas::{self, IdeasContext};
use crate::work::trial::{self, TrialContext};

/// Target of the span of an execution, which gives its log messages the fields `run`, `item`, `try`
/// and `exec`. Text logs leave it out.
pub const EXECUTION_SPAN: &str = "rollout_execution";

/// How long the last heartbeat may take.
const FINAL_HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(2);

/// Runs the work of offers.
#[async_trait]
pub trait Runner: Send + Sync + fmt::Debug {
    /// Runs one execution until its environment is removed. May panic; must heed
    /// `context.execution.stop`.
    async fn run(&self, context: TrialContext) -> Finished<TrialRecord>;

    /// The disks that its executions depend on.
    fn disks(&self) -> Arc<DiskWatch> {
        Arc::default()
    }

    /// The model calls of its executions, which coordinators pause. It is asked for once.
    fn model_calls(&self) -> Arc<RunCallTable> {
        Arc::default()
    }

    /// Runs one execution of an eval until its environment is removed. May panic; must heed
    /// `context.execution.stop`. The default fails: the runner does not support this kind of work.
    async fn eval(&self, context: EvalContext) -> Finished<EvalRecord> {
        let error = TrialError::transient(
            ErrorType::InternalError,
            ErrorCode::BUG,
            "this worker does not run evals",
        );
        Finished::<EvalRecord>::failed(&context, error)
    }

    /// Runs one execution of a command that writes ideas until its environment is removed. May
    /// panic; must heed `context.execution.stop`. The default fails: the runner does not support
    /// this kind of work.
    async fn ideas(&self, context: IdeasContext) -> Finished<IdeasRecord> {
        let message = "this worker does not run ideas";
        let error = TrialError::transient(ErrorType::InternalError, ErrorCode::BUG, message);
        Finished::<IdeasRecord>::failed(&context, error)
    }
}

/// The runner of every kind of work.
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

    fn model_calls(&self) -> Arc<RunCallTable> {
        self.services.gateway.as_ref().map_or_else(Arc::default, |gateway| gateway.run_calls())
    }
}

/// The configuration of a worker.
#[derive(Debug, Clone)]
pub struct WorkerConfig {
    /// Its name.
    pub worker: WorkerId,
    /// The process it lives in.
    pub owner: Owner,
    /// Its directory, whose lock this process holds.
    pub dir: PathBuf,
    /// The pool that it pulls work from.
    pub pool: String,
    /// Limit on concurrent executions with an environment.
    pub slots: u32,
    /// Resources that all executions together may use, as set by the operator.
    pub budget: ResourceBudget,
    /// Work that it can run now, for placement by coordinators.
    pub profile: watch::Receiver<WorkerProfile>,
    /// The queue's lease.
    pub lease: Duration,
    /// How long after connecting every delivery is suspicious, because the queue may have lost
    /// track of which worker runs what. `None` when nothing else can run: every earlier worker of
    /// the offered runs is proven dead and its executions are reported lost.
    pub suspicious_window: Option<Duration>,
    /// How long it works without a connection to the queue before it stops its executions and gives
    /// up; forever when absent.
    pub max_offline: Option<Duration>,
    /// Bytes of finished executions on disk beyond which the worker pulls no more work.
    pub spool_bytes: u64,
    /// Its counters.
    pub metrics: WorkerMetrics,
    /// Takes the spans of its executions.
    pub tracer: Tracer,
}

/// The environments and variables that a worker offers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WorkerProfile {
    /// Its providers, and the largest environment of each.
    pub providers: BTreeMap<ProviderKind, EnvironmentCapacity>,
    /// Names of the variables that trials may use.
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
    /// It was asked to, and let running executions finish.
    Asked,
    /// It was asked to stop running executions.
    Killed,
    /// It had no connection to the queue for longer than allowed.
    Offline,
}

/// How a worker ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkerExit {
    /// Why.
    pub reason: WorkerExitReason,
    /// Executions whose report was not acknowledged. The finished ones are in the spool.
    pub unreported: usize,
}

/// Finished executions of dead workers that this worker reports. Its heartbeats list them, too.
#[derive(Debug, Default)]
pub struct AdoptedExecutions(Mutex<HashMap<ExecId, ActiveExecution>>);

impl AdoptedExecutions {
    /// Adds executions to the heartbeats.
    pub fn insert(&self, executions: impl IntoIterator<Item = ActiveExecution>) {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        entries.extend(executions.into_iter().map(|line| (line.exec, line)));
    }

    /// Removes an execution that is reported.
    pub fn remove(&self, exec: ExecId) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&exec);
    }

    fn heartbeat_entries(&self) -> Vec<ActiveExecution> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).values().copied().collect()
    }
}

/// A shutdown request to a worker. It is only ever raised.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum ShutdownLevel {
    /// Keep running.
    #[default]
    No,
    /// Pull no more work; running executions finish.
    Finish,
    /// Pull no more work; executions finish their phase, collect and tear down.
    Drain,
    /// Executions end at once. Those that cannot be reported soon stay in the spool.
    Kill,
    /// Executions end at once, and the worker waits for no report: no coordinator reads them any more,
    /// or needs them.
    Discard,
}

/// A worker.
#[derive(Debug)]
pub struct Worker {
    shared: Arc<WorkerShared>,
    ended_stages: mpsc::UnboundedReceiver<stage_permits::EndedStage>,
}

/// State shared by the parts of a worker.
#[derive(Debug)]
struct WorkerShared {
    config: WorkerConfig,
    source: Arc<dyn WorkSource>,
    store: Arc<dyn BlobStore>,
    runner: Arc<dyn Runner>,
    specs: SpecCache,
    registry: ExecutionRegistry,
    outbox: ReportOutbox,
    spool: Spool,
    adopted: Arc<AdoptedExecutions>,
    connection: BrokerConnection,
    /// Slots for executions with an environment.
    slots: Arc<SlotPool>,
    rate_limiters: RunRateLimiters,
    /// Model calls of its runs.
    model_calls: Arc<RunCallTable>,
    /// Stages of evals whose permits must be returned.
    ended_stages: mpsc::UnboundedSender<stage_permits::EndedStage>,
    /// Limit on claims that wait without a slot.
    claim_permits: Arc<Semaphore>,
    /// Limit on executions that wait for a service without a slot.
    park_permits: Arc<Semaphore>,
    /// The highest shutdown level requested so far.
    shutdown: watch::Sender<ShutdownLevel>,
    /// Whether pulling has ended: a delivery that is returned now does not come back here.
    pulls_ended: watch::Sender<bool>,
    /// Whether it had no connection to the queue for longer than allowed.
    offline: AtomicBool,
    queue_outage: OutageLog,
    /// Outages of pulls only: a queue may refuse pulls and accept reports.
    pull_outage: OutageLog,
    store_outage: OutageLog,
    spool_outage: OutageLog,
    disks: Arc<DiskWatch>,
    failures: FailureStreak,
    /// Whether a disk has given no answer for so long that work on it may never end.
    disk_hung: watch::Sender<bool>,
    /// Whether a disk has too little space for more work.
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
        let (ended, ended_stages) = mpsc::unbounded_channel();
        let shared = WorkerShared {
            specs: SpecCache::new(store.clone()),
            registry: ExecutionRegistry::new(config.tracer.clone()),
            outbox: ReportOutbox::default(),
            spool: Spool::new(config.dir.clone()),
            adopted: Arc::default(),
            connection: BrokerConnection::new(&*source),
            rate_limiters: RunRateLimiters::default(),
            ended_stages: ended,
            slots: Arc::new(SlotPool::new(config.slots, &config.budget)),
            claim_permits: Arc::new(Semaphore::new(slots)),
            park_permits: Arc::new(Semaphore::new(slots)),
            shutdown: watch::Sender::default(),
            pulls_ended: watch::Sender::default(),
            offline: AtomicBool::new(false),
            pull_outage: OutageLog::new("pulling work"),
            queue_outage: OutageLog::new("the queue"),
            store_outage: OutageLog::new("the blob store"),
            spool_outage: OutageLog::new("the spool"),
            disks: runner.disks(),
            failures: FailureStreak::new(config.suspicious_window.is_some()),
            disk_hung: watch::Sender::new(false),
            model_calls: runner.model_calls(),
            low_disk: AtomicBool::new(false),
            config,
            source,
            store,
            runner,
        };
        Self { shared: Arc::new(shared), ended_stages }
    }

    /// A view of its present state. The worker does not live longer because of it.
    pub fn monitor(&self) -> WorkerMonitor {
        WorkerMonitor::new(&self.shared)
    }

    /// The executions of dead workers that its heartbeats list, too.
    pub fn adopted(&self) -> Arc<AdoptedExecutions> {
        Arc::clone(&self.shared.adopted)
    }

    /// Works until it is asked to stop and every execution it began is reported, or is in the spool
    /// when it was killed or cannot report. A closed channel means [`ShutdownLevel::Finish`].
    ///
    /// Dropping the future aborts every execution without a report.
    pub async fn run(self, shutdown: watch::Receiver<ShutdownLevel>) -> WorkerExit {
        let Self { shared, ended_stages } = self;
        heartbeat::send_heartbeat(&shared).await;
        let mut helpers: FuturesUnordered<Task<Infallible>> = [
            supervise::spawn("reports", report::send_reports(shared.clone())),
            supervise::spawn("leases", heartbeat::maintain_leases(shared.clone())),
            supervise::spawn(
                "stage permits",
                stage_permits::return_permits(shared.clone(), ended_stages),
            ),
            supervise::spawn("connection", connection::watch_connection(shared.clone())),
            supervise::spawn("controls", drain::handle_controls(shared.clone())),
            supervise::spawn(
                "requests about trials",
                trial_requests::handle_trial_requests(shared.clone()),
            ),
            supervise::spawn("shutdown", drain::forward_shutdown(shared.clone(), shutdown)),
            supervise::spawn("disks", disks::watch_disks(shared.clone())),
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
        shared.disks.close().await;
        // Best effort: coordinators stop counting on this worker, and none of them waits for this.
        let _unheard =
            tokio::time::timeout(FINAL_HEARTBEAT_TIMEOUT, heartbeat::send_final_heartbeat(&shared))
                .await;
        let reason = if shared.offline.load(Ordering::Relaxed) {
            WorkerExitReason::Offline
        } else if *shared.shutdown.borrow() >= ShutdownLevel::Kill {
            WorkerExitReason::Killed
        } else {
            WorkerExitReason::Asked
        };
        WorkerExit { reason, unreported: shared.registry.len() }
    }
}

impl WorkerShared {
    /// Raises the shutdown level; never lowers it.
    fn shut_down(&self, level: ShutdownLevel) {
        let raised = self.shutdown.send_if_modified(|present| {
            let harder = *present < level;
            *present = level.max(*present);
            harder
        });
        if !raised {
            return;
        }
        match level {
            ShutdownLevel::No | ShutdownLevel::Finish => {}
            ShutdownLevel::Drain => self.registry.stop_all(StopLevel::Drain),
            ShutdownLevel::Kill | ShutdownLevel::Discard => {
                self.registry.stop_all(StopLevel::Kill);
            }
        }
        self.registry.note_change();
    }

    fn is_closing(&self) -> bool {
        *self.shutdown.borrow() > ShutdownLevel::No
    }

    /// Waits until a shutdown is requested.
    async fn wait_for_shutdown(&self) {
        let mut shutdown = self.shutdown.subscribe();
        let level = shutdown.wait_for(|level| *level > ShutdownLevel::No).await;
        drop(level.expect("the worker holds the sender"));
    }

    /// Waits until pulling has ended and deliveries that did not begin must be returned.
    async fn wait_for_pulls_end(&self) {
        let mut ended = self.pulls_ended.subscribe();
        let ended_now = ended.wait_for(|ended| *ended).await;
        drop(ended_now.expect("the worker holds the sender"));
    }

    /// Whether the queue or the store, which reports need, is known to be unreachable.
    fn is_cut_off(&self) -> bool {
        !self.connection.is_up() || self.queue_outage.is_down() || self.store_outage.is_down()
    }
}
