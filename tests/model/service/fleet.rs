//! Workers, queue, store and coordinator of one run.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rand::RngExt as _;
use rand::rngs::StdRng;
use rollout_base::metrics::WorkerMetrics;
use rollout_base::supervise::{self, Task};
use rollout_base::traces::Tracer;
use rollout_environment::Owner;
use rollout_protocol::id::RunId;
use rollout_protocol::record::LostReason;
use rollout_protocol::spec::environment::ProviderKind;
use rollout_protocol::wire::heartbeat::ResourceBudget;
use rollout_queue::embedded::EmbeddedQueue;
use rollout_queue::embedded::model::{BrokerModel, BrokerModelConfig};
use rollout_queue::traits::Dispatch as _;
use rollout_store::testing::FaultyStore;
use rollout_worker::service::{ShutdownLevel, Worker, WorkerConfig, WorkerExit, WorkerProfile};
use rollout_worker::spool;
use rollout_worker::testing::{FlakySource, SampleRun};
use tempfile::TempDir;
use tokio::sync::watch;
use tokio::time::timeout;

use super::log::ExecutionLog;
use super::session::{Session, start_session};

/// The lease of the queue.
pub(crate) const LEASE: Duration = Duration::from_secs(60);

/// Virtual time in which a healed fleet must settle every item.
const COMPLETION_LIMIT: Duration = Duration::from_secs(24 * 3600);

/// The directories of a schedule: in memory if possible, so that paused time does not run away
/// while the journal's thread waits for a disk.
fn scratch_dir() -> TempDir {
    let memory = PathBuf::from("/dev/shm");
    let made = if memory.is_dir() { TempDir::new_in(memory) } else { TempDir::new() };
    made.expect("a directory")
}

/// A worker of the fleet.
pub(crate) struct FleetWorker {
    dir: PathBuf,
    pub(crate) source: Arc<FlakySource>,
    /// `None` while it is dead.
    process: Option<WorkerProcess>,
}

impl FleetWorker {
    /// Fails if the worker is not dead and has ended, as after a panic.
    fn assert_running(&self) {
        let ended = self.process.as_ref().is_some_and(|process| process.task.is_finished());
        assert!(!ended, "the worker of {} has ended by itself", self.dir.display());
    }
}

struct WorkerProcess {
    task: Task<WorkerExit>,
    _stop: watch::Sender<ShutdownLevel>,
}

/// Everything that takes part in one run.
pub(crate) struct Fleet {
    pub(crate) queue: Arc<EmbeddedQueue>,
    pub(crate) store: Arc<FaultyStore>,
    pub(crate) sample: SampleRun,
    pub(crate) log: Arc<ExecutionLog>,
    pub(crate) items: u32,
    pub(crate) permits: usize,
    pub(crate) workers: Vec<FleetWorker>,
    pub(crate) session: Option<Session>,
    /// The id of the run, once it was opened.
    run: Option<RunId>,
    /// Faults that may repeat an execution.
    pub(crate) excused_runs: usize,
    slots: Vec<u32>,
    started: usize,
    recoveries: Vec<Task<()>>,
    /// The last one: its files outlive the tasks.
    pub(crate) dir: TempDir,
}

impl Fleet {
    /// Starts one to three workers and a session.
    pub(crate) async fn start(random: &mut StdRng) -> Self {
        let store = Arc::new(FaultyStore::default());
        let sample = SampleRun::store(store.inner());
        let config = BrokerModelConfig { lease: LEASE, reports_per_run: 20, remembered_acks: 4 };
        let mut fleet = Self {
            dir: scratch_dir(),
            queue: Arc::new(EmbeddedQueue::with_immediate_acks(config)),
            store,
            sample,
            log: ExecutionLog::new(random.random()),
            items: random.random_range(3..12),
            permits: random.random_range(1..8),
            workers: Vec::new(),
            session: None,
            run: None,
            excused_runs: 0,
            slots: (0..random.random_range(1..4)).map(|_| random.random_range(1..4)).collect(),
            started: 0,
            recoveries: Vec::new(),
        };
        for at in 0..fleet.slots.len() {
            let worker = fleet.start_worker(at);
            fleet.workers.push(worker);
        }
        fleet.ensure_session().await;
        fleet
    }

    /// A new process, with a directory of its own.
    fn start_worker(&mut self, at: usize) -> FleetWorker {
        self.started += 1;
        let name = format!("worker-{}", self.started);
        let dir = self.dir.path().join(&name);
        std::fs::create_dir_all(dir.join("scratch")).expect("created");
        let providers = [(ProviderKind::Process, Default::default())].into();
        let profile = WorkerProfile { providers, ..WorkerProfile::default() };
        let config = WorkerConfig {
            worker: name.parse().expect("a token"),
            owner: Owner::current(dir.clone()),
            dir: dir.clone(),
            pool: "default".into(),
            slots: self.slots[at],
            budget: ResourceBudget::default(),
            profile: profile.into_fixed(),
            lease: LEASE,
            suspicious_window: Some(LEASE),
            max_offline: None,
            spool_bytes: 1 << 20,
            metrics: WorkerMetrics::default(),
            tracer: Tracer::default(),
        };
        let source = Arc::new(FlakySource::new(self.queue.clone()));
        let worker = Worker::new(config, source.clone(), self.store.clone(), self.log.clone());
        let (stop, told) = watch::channel(ShutdownLevel::No);
        let task = supervise::spawn("worker", worker.run(told));
        FleetWorker { dir, source, process: Some(WorkerProcess { task, _stop: stop }) }
    }

    /// Kills a worker: nothing that it had in memory remains.
    pub(crate) fn kill_worker(&mut self, at: usize) {
        self.workers[at].assert_running();
        self.workers[at].process = None;
    }

    /// Starts a worker in place of a dead one. `adopt`: it also recovers the files of the dead one,
    /// as a worker on the same host does.
    pub(crate) fn replace_worker(&mut self, at: usize, adopt: bool) {
        if self.workers[at].process.is_some() {
            return;
        }
        let worker = self.start_worker(at);
        let former = std::mem::replace(&mut self.workers[at], worker);
        if adopt {
            let (store, source) = (self.store.clone(), self.queue.clone());
            self.recoveries.push(supervise::spawn("recovery", async move {
                let reason = LostReason::ProcessDied;
                let recovered = spool::recover(&former.dir, None, reason, store, source).await;
                recovered.expect("recovered");
            }));
        }
    }

    /// The server fails, and all its clients connect again.
    pub(crate) fn fail_server(&mut self, fault: impl FnOnce(&mut BrokerModel)) {
        self.workers.iter().for_each(|worker| worker.source.disconnect());
        self.queue.inject_fault(fault);
        self.workers.iter().for_each(|worker| worker.source.reconnect());
    }

    /// Ends the session without notice.
    pub(crate) fn kill_session(&mut self) {
        self.session = None;
    }

    /// Starts a session if none runs.
    pub(crate) async fn ensure_session(&mut self) {
        if self.session.is_none() {
            let (session, run) = start_session(self).await;
            (self.session, self.run) = (Some(session), Some(run));
        }
    }

    /// Ends all faults.
    pub(crate) async fn heal(&mut self) {
        self.store.set_down(false);
        for at in 0..self.workers.len() {
            self.replace_worker(at, true);
            self.workers[at].source.reconnect();
        }
        self.ensure_session().await;
    }

    /// Waits until the run has ended.
    pub(crate) async fn complete(&mut self) {
        let session = self.session.take().expect("a session");
        let ended = timeout(COMPLETION_LIMIT, session).await.expect("the run ends in time");
        let ended = ended.expect("no panic").expect("no error");
        assert!(!ended.cancelled && ended.pending == 0, "{ended:?}");
    }

    /// Violated invariants of a complete run. Looks for rests, and replays the journal.
    pub(crate) async fn problems(mut self) -> Vec<String> {
        for recovery in self.recoveries.drain(..) {
            let recovered = timeout(COMPLETION_LIMIT, recovery).await;
            recovered.expect("the recovery ends in time").expect("no panic");
        }
        self.workers.iter().for_each(FleetWorker::assert_running);
        let leftovers = self.leftovers().await;
        // Opening reads the journal; nothing else is asked before it returns.
        self.ensure_session().await;
        let items: Vec<_> = (0..self.items).map(|attempt| self.sample.item(attempt)).collect();
        let mut problems = self.log.problems(&items, self.excused_runs, &self.store);
        problems.extend(leftovers);
        problems
    }

    /// Offers, and files of live workers, that remain for longer than a lease.
    async fn leftovers(&self) -> Option<String> {
        let mut left = Vec::new();
        for _ in 0..10 {
            tokio::time::sleep(LEASE).await;
            let run = self.run.expect("it was opened");
            let offers = self.queue.list(run).await.expect("listed");
            left = offers.into_iter().map(|offer| format!("{offer:?}")).collect();
            for worker in &self.workers {
                for entries in ["spool", "scratch"].map(|name| worker.dir.join(name)) {
                    let entries = std::fs::read_dir(entries).into_iter().flatten();
                    left.extend(entries.map(|entry| format!("{:?}", entry.expect("an entry"))));
                }
            }
            if left.is_empty() {
                return None;
            }
        }
        Some(format!("left behind: {left:?}"))
    }
}
