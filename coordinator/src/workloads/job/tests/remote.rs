//! Tests of a coordinator and workers that share only a queue and a store.

mod concurrency;
mod events;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rollout_base::metrics::WorkerMetrics;
use rollout_base::secrets::TrialVariables;
use rollout_base::supervise::{self, Task};
use rollout_base::traces::Tracer;
use rollout_engine::core::RemoteTimeouts;
use rollout_engine::journal::RunLayout;
use rollout_engine::reconcile::{self, RemoteRun, message_channel};
use rollout_engine::{
    DurableStateListener, EngineOutcome, LockError, LockOptions, OpenError, Planner, RunError,
    RunOpenOptions, open_run,
};
use rollout_environment::Owner;
use rollout_environment::null::NullProvider;
use rollout_protocol::blob::MediaType;
use rollout_protocol::event::{EventKind, RunEvent};
use rollout_protocol::retry::RetryPolicy;
use rollout_protocol::spec::budget::RunBudget;
use rollout_protocol::spec::environment::ProviderKind;
use rollout_protocol::wire::control::StopLevel;
use rollout_protocol::wire::heartbeat::ResourceBudget;
use rollout_protocol::wire::position::Incarnation;
use rollout_queue::embedded::EmbeddedQueue;
use rollout_queue::embedded::model::{BrokerModel, BrokerModelConfig};
use rollout_store::{BlobStore as _, FsStore};
use rollout_worker::executor::{ExecutionServices, TaskFiles};
use rollout_worker::service::{
    self, LocalRunner, Runner, ShutdownLevel, Worker, WorkerConfig, WorkerProfile,
};
use rollout_worker::work::eval::Repositories;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout};

use crate::plan::{JobPlan, noop};
use crate::workloads::job::JobPlanner;

/// Short, so that a test that waits for a lease is quick.
const LEASE: Duration = Duration::from_secs(2);

const LONG: Duration = Duration::from_secs(240);

struct RemoteFixture {
    dir: tempfile::TempDir,
    queue: Arc<EmbeddedQueue>,
    store: Arc<FsStore>,
    plan: Arc<JobPlan>,
}

type RunningSession = (Task<Result<EngineOutcome, RunError>>, mpsc::Receiver<Vec<RunEvent>>);

impl RemoteFixture {
    async fn new(items: u32) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let store = FsStore::open(&dir.path().join("blobs")).await.expect("a store");
        let (plan, documents) = noop(items).expect("a plan");
        for document in documents {
            store.put_bytes(document, MediaType::Json).await.expect("stored");
        }
        let config = BrokerModelConfig { lease: LEASE, ..BrokerModelConfig::default() };
        let queue = Arc::new(EmbeddedQueue::with_immediate_acks(config));
        Self { dir, queue, store: Arc::new(store), plan: Arc::new(plan) }
    }

    fn worker(
        &self,
        name: &str,
        slots: u32,
    ) -> (watch::Sender<ShutdownLevel>, Task<service::WorkerExit>) {
        self.worker_with(name, slots, Arc::new(self.runner(name)))
    }

    /// Runs trials without an environment.
    fn runner(&self, name: &str) -> LocalRunner {
        let dir = self.dir.path().join(name);
        let kind = ProviderKind::Process;
        let services = ExecutionServices {
            providers: BTreeMap::from([(kind, Arc::new(NullProvider(kind)) as _)]),
            files: TaskFiles::open(&dir.join("cache"), self.store.clone()).expect("a cache"),
            variables: TrialVariables::default(),
            gateway: None,
            disks: Arc::default(),
            host: "test".to_owned(),
        };
        let repositories =
            Repositories::open(&dir.join("repositories"), self.store.clone(), 1 << 30);
        let repositories = repositories.expect("a directory");
        LocalRunner { services, repositories }
    }

    fn worker_with(
        &self,
        name: &str,
        slots: u32,
        runner: Arc<dyn Runner>,
    ) -> (watch::Sender<ShutdownLevel>, Task<service::WorkerExit>) {
        let dir = self.dir.path().join(name);
        std::fs::create_dir_all(dir.join("scratch")).expect("a directory");
        let providers = [(ProviderKind::Process, Default::default())].into();
        let profile = WorkerProfile { providers, ..WorkerProfile::default() };
        let config = WorkerConfig {
            worker: name.parse().expect("a name"),
            owner: Owner::current(dir.clone()),
            dir,
            pool: "default".to_owned(),
            slots,
            budget: ResourceBudget::default(),
            profile: profile.into_fixed(),
            max_offline: None,
            lease: LEASE,
            suspicious_window: Some(LEASE),
            spool_bytes: 1 << 20,
            metrics: WorkerMetrics::default(),
            tracer: Tracer::default(),
        };
        let worker = Worker::new(config, self.queue.clone(), self.store.clone(), runner);
        let (stop, told) = watch::channel(ShutdownLevel::No);
        (stop, supervise::spawn("worker", worker.run(told)))
    }

    async fn start_session(&self) -> RunningSession {
        self.start_session_with(|plan| plan).await
    }

    /// A session with a planner that is made from the job's.
    async fn start_session_with<P: Planner + 'static>(
        &self,
        planner: impl Fn(JobPlanner) -> P,
    ) -> RunningSession {
        self.open_session(planner, false).await.1
    }

    /// A session and what stops it.
    async fn open_session<P: Planner + 'static>(
        &self,
        planner: impl Fn(JobPlanner) -> P,
        hand_over: bool,
    ) -> (mpsc::Sender<StopLevel>, RunningSession) {
        let (events, seen) = mpsc::channel(1024);
        let opening = RunOpenOptions {
            layout: RunLayout::new(self.dir.path().join("run")),
            job: "test".to_owned(),
            plan: self.plan.digest(),
            permits: 8,
            retry: RetryPolicy::default(),
            lock: LockOptions::default(),
            timeouts: RemoteTimeouts { lease: LEASE, ..RemoteTimeouts::default() },
            budget: RunBudget::default(),
            reopen: None,
        };
        let (stop, mut stops) = mpsc::channel(1);
        let began = Instant::now();
        let (run, lock, planner) = loop {
            let planner = planner(JobPlanner::new(Arc::clone(&self.plan), false));
            // An aborted session releases the lock in its own time.
            match open_run(opening.clone(), Box::new(planner), events.clone(), &mut stops).await {
                Ok(opened) => break opened,
                Err(RunError::Open(OpenError::Lock(LockError::Held { .. })))
                    if began.elapsed() < LONG => {}
                Err(error) => panic!("{error}"),
            }
        };
        let distributed = RemoteRun {
            run,
            planner,
            dispatch: self.queue.clone(),
            store: self.store.clone(),
            pool: "default".to_owned(),
            lease: LEASE,
            listener: DurableStateListener::Queue(self.queue.clone()),
            events,
            stops,
            hand_over,
            messages: message_channel(),
        };
        let stopping = stop.clone();
        let session = supervise::spawn("session", async move {
            let ended = reconcile::run(distributed).await;
            drop((lock, stop));
            ended
        });
        (stopping, (session, seen))
    }

    /// Settlements in the run's record files, which match those of the journal.
    fn settled(&self) -> usize {
        records(&self.dir.path().join("run/records"))
    }
}

fn records(dir: &Path) -> usize {
    record_texts(dir).iter().map(|text| text.lines().count()).sum()
}

fn record_texts(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).expect("records");
    let files = entries.map(|entry| std::fs::read_to_string(entry.expect("an entry").path()));
    files.map(|text| text.expect("a record file")).collect()
}

/// Waits until this many settlements were seen.
async fn wait_for_settled(seen: &mut mpsc::Receiver<Vec<RunEvent>>, settled: usize) {
    let mut count = 0;
    while count < settled {
        let events = timeout(LONG, seen.recv()).await.expect("in time").expect("it goes on");
        count += events.iter().filter(|e| matches!(e.kind, EventKind::TrialSettled { .. })).count();
    }
}

async fn wait_for_end((session, mut seen): RunningSession) -> EngineOutcome {
    let reading = supervise::spawn("reading", async move { while seen.recv().await.is_some() {} });
    let ended =
        timeout(LONG, session).await.expect("in time").expect("no panic").expect("no error");
    drop(reading);
    ended
}

const COMPLETED: EngineOutcome =
    EngineOutcome { cancelled: false, pending: 0, is_over_budget: false };

#[tokio::test(flavor = "multi_thread")]
async fn run_with_two_workers_settles_each_item_once() {
    let world = RemoteFixture::new(500).await;
    let _workers = [world.worker("a", 3), world.worker("b", 3)];
    assert_eq!(wait_for_end(world.start_session().await).await, COMPLETED);
    assert_eq!(world.settled(), 500);
}

#[tokio::test(flavor = "multi_thread")]
async fn run_after_coordinator_kills_settles_every_item() {
    let world = RemoteFixture::new(2000).await;
    let _workers = [world.worker("a", 3), world.worker("b", 3)];
    for _ in 0..2 {
        let (session, mut seen) = world.start_session().await;
        wait_for_settled(&mut seen, 100).await;
        drop(session);
    }
    assert_eq!(wait_for_end(world.start_session().await).await, COMPLETED);
    assert_eq!(world.settled(), 2000);
}

#[tokio::test(flavor = "multi_thread")]
async fn run_with_broker_restart_and_wipe_settles_every_item() {
    let world = RemoteFixture::new(1000).await;
    let _workers = [world.worker("a", 3), world.worker("b", 3)];
    let (session, mut seen) = world.start_session().await;
    wait_for_settled(&mut seen, 100).await;
    world.queue.inject_fault(BrokerModel::restart);
    wait_for_settled(&mut seen, 100).await;
    world.queue.inject_fault(|model| model.wipe(Incarnation(7)));
    assert_eq!(wait_for_end((session, seen)).await, COMPLETED);
    assert_eq!(world.settled(), 1000);
}
