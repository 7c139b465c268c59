//! Measured run over the server.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rollout_coordinator::bench::{DispatchBenchError, noop};
use rollout_engine::journal::RunLayout;
use rollout_engine::reconcile::{self, RemoteRun};
use rollout_engine::{
    EngineOutcome, KvLockOptions, LockOptions, Planner as _, RunError, RunLock, RunOpenOptions,
    RunState,
};
use rollout_protocol::event::RunEvent;
use rollout_protocol::id::{ItemId, RunId, TryId};
use rollout_protocol::wire::offer::SizeClass;
use rollout_queue::nats::{Nats, NatsDispatch, NatsName};
use rollout_queue::traits::Dispatch as _;
use rollout_store::BlobStore;
use rollout_tests::noop_worker::{NoopWorkerConfig, POOL};
use tokio::sync::mpsc;

use crate::queue_overhead::comparison::{QueueBench, QueueBenchError, QueueMeasurement};
use crate::queue_overhead::helper::{self, HelperProcess};
use crate::queue_overhead::usage::CpuMeter;
use rollout_coordinator::events::{MaterializeMode, Reporter};
use rollout_coordinator::workloads::job::JobPlanner;

/// How long the worker's first heartbeat may take.
const WORKER_TIMEOUT: Duration = Duration::from_secs(10);

/// Sizes and run that the floor repeats.
#[derive(Debug)]
pub(crate) struct MessageSizes {
    /// Bytes of an offer.
    pub(crate) offer: usize,
    /// Bytes of a report.
    pub(crate) report: usize,
    /// Bytes of journal per trial.
    pub(crate) journal: usize,
    /// The token of the run in subjects.
    pub(crate) run: String,
}

/// Runs all trials at a window.
pub(crate) async fn run(
    queue: &QueueBench,
    namespace: &str,
    window: u32,
    directory: &Path,
    meter: &CpuMeter,
) -> Result<(QueueMeasurement, MessageSizes), QueueBenchError> {
    let worker_config = NoopWorkerConfig {
        url: queue.url.clone(),
        namespace: namespace.to_owned(),
        slots: window,
        store: directory.join("blobs"),
        directory: directory.join("workers"),
    };
    let store = rollout_store::open(&worker_config.store.clone().into())
        .await
        .map_err(DispatchBenchError::from)?;
    let plan = Arc::new(noop::plan(queue.items, &*store).await?);
    let nats = worker_config.connect().await?;
    let pool: NatsName = POOL.parse()?;
    let dispatch = Arc::new(nats.dispatch(&pool, &[SizeClass::default(), SizeClass::SOLO]).await?);
    nats.bind_pool(&pool, store.identity(), true).await?;
    let helper = HelperProcess::start(&helper::HelperRole::Product(worker_config)).await?;
    wait_for_worker(&dispatch).await?;

    let layout = RunLayout::new(directory.join("run"));
    let facts = noop::facts(layout.root().to_owned(), queue.items, MaterializeMode::None);
    std::fs::create_dir_all(layout.root())?;
    let (events, reporter) =
        Reporter::start(facts, store.clone(), Vec::new()).map_err(DispatchBenchError::from)?;
    let (before, start) = (meter.read(), Instant::now());
    let options = noop::run_open_options(layout.clone(), &plan, window);
    let planner = JobPlanner::new(plan.clone(), false);
    let (id, ended, lock) =
        run_session(&nats, dispatch.clone(), store, options, planner, events).await?;
    reporter.finish().await.map_err(DispatchBenchError::from)?;
    lock.release(Some(RunState::Completed))
        .await
        .map_err(RunError::LockLost)
        .map_err(DispatchBenchError::from)?;
    let took = start.elapsed();
    let used = meter.read().since(&before);
    if ended.pending > 0 {
        return Err(QueueBenchError::Run(DispatchBenchError::Owed { owed: ended.pending }));
    }
    let worker = helper.finish().await?;

    let items = u64::from(queue.items);
    let journal = std::fs::metadata(layout.segment(1))?.len() / items;
    let planner = JobPlanner::new(plan, false);
    let offer = planner.offer(id, ItemId::from_bytes([0; 16]), TryId { epoch: 1, n: 1 }, 0);
    let sizes = MessageSizes {
        offer: serde_json::to_vec(&offer).map_err(std::io::Error::from)?.len(),
        report: last_report_bytes(&dispatch, id).await?,
        journal: usize::try_from(journal).unwrap_or(usize::MAX),
        run: id.to_string(),
    };
    Ok((QueueMeasurement::new(items, took, used, worker), sizes))
}

/// Runs a session. Returns also the lock that still holds the run.
async fn run_session(
    nats: &Nats,
    dispatch: Arc<NatsDispatch>,
    store: Arc<dyn BlobStore>,
    options: RunOpenOptions,
    planner: JobPlanner,
    events: mpsc::Sender<Vec<RunEvent>>,
) -> Result<(RunId, EngineOutcome, RunLock), QueueBenchError> {
    let (_stops, mut stops) = mpsc::channel(1);
    let kv_store = Arc::new(nats.kv_store());
    let info = rollout_engine::RunEntryInfo {
        pool: POOL.to_owned(),
        ..rollout_engine::RunEntryInfo::default()
    };
    let lock_options =
        LockOptions { kv: Some(KvLockOptions { kv_store, info }), ..LockOptions::default() };
    let opening = RunOpenOptions { lock: lock_options, ..options };
    let (run, lock, planner) =
        rollout_engine::open_run(opening, Box::new(planner), events.clone(), &mut stops)
            .await
            .map_err(DispatchBenchError::from)?;
    let id = run.id();
    let messages = reconcile::message_channel();
    let _monitor = lock.monitor(id, dispatch.clone(), messages.0.clone());
    let ended = reconcile::run(RemoteRun {
        run,
        planner,
        dispatch,
        store,
        pool: POOL.to_owned(),
        lease: nats.options().lease,
        listener: lock.durable_state_listener().ok_or(QueueBenchError::Closed)?,
        events,
        stops,
        hand_over: false,
        messages,
    });
    Ok((id, ended.await.map_err(DispatchBenchError::from)?, lock))
}

/// Waits for the worker's heartbeat, so that the measurement does not include that wait.
async fn wait_for_worker(dispatch: &NatsDispatch) -> Result<(), QueueBenchError> {
    let start = Instant::now();
    while dispatch.heartbeats().await?.is_empty() {
        if start.elapsed() > WORKER_TIMEOUT {
            return Err(QueueBenchError::Worker("sent no heartbeat".to_owned()));
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}

/// Size of the last report, which is never purged.
async fn last_report_bytes(
    dispatch: &NatsDispatch,
    run: rollout_protocol::id::RunId,
) -> Result<usize, QueueBenchError> {
    let reports = dispatch.reports(run, None, 65_536, Duration::from_secs(1)).await?.reports;
    let last =
        reports.last().ok_or_else(|| QueueBenchError::Worker("reported nothing".to_owned()))?;
    let encoded = last.report.encode();
    Ok(encoded.map_or_else(|size| size, |bytes| bytes.len()))
}
