//! Tests of a worker process on an embedded queue.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rollout_base::metrics::WorkerMetrics;
use rollout_base::secrets::TrialVariables;
use rollout_base::supervise::{self, Task};
use rollout_base::traces::Tracer;
use rollout_engine::RunError;
use rollout_protocol::digest::Digest;
use rollout_protocol::id::{ExecId, ItemId, RunId, TryId};
use rollout_protocol::record::LostReason;
use rollout_protocol::spec::environment::ProviderKind;
use rollout_protocol::wire::control::StopLevel;
use rollout_protocol::wire::heartbeat::{EnvironmentCapacity, ResourceBudget};
use rollout_protocol::wire::report::ReportBody;
use rollout_queue::embedded::EmbeddedQueue;
use rollout_queue::embedded::model::BrokerModelConfig;
use rollout_queue::traits::Dispatch as _;
use rollout_store::host::WorkerDir;
use rollout_store::{BlobStore as _, MemoryStore};
use rollout_worker::service::{WorkerExit, WorkerExitReason, WorkerProfile};
use rollout_worker::spool::ScratchMark;
use rollout_worker::testing::FlakySource;
use tempfile::TempDir;
use tokio::sync::mpsc;

use super::worker::{end_of_recovery, usable_environments};
use super::{HostPaths, OperatorOptions, StateDir, WorkerProcess};

const LONG: Duration = Duration::from_secs(120);

struct WorkerFixture {
    _temp: TempDir,
    state_dir: StateDir,
    store: Arc<MemoryStore>,
    queue: Arc<EmbeddedQueue>,
    /// The queue for the worker.
    source: Arc<FlakySource>,
}

impl WorkerFixture {
    fn new() -> Self {
        let temp = TempDir::new().expect("a directory");
        let state_dir = StateDir::new(temp.path().to_owned());
        let queue = Arc::new(EmbeddedQueue::with_immediate_acks(BrokerModelConfig::default()));
        let source = Arc::new(FlakySource::new(Arc::clone(&queue)));
        Self { state_dir, _temp: temp, store: Arc::default(), queue, source }
    }

    fn workers(&self) -> std::path::PathBuf {
        self.state_dir.workers("rollout", self.store.identity(), "default")
    }

    fn start(&self) -> (mpsc::Sender<StopLevel>, Task<Result<WorkerExit, RunError>>) {
        let (signal, stops) = mpsc::channel(4);
        let process = WorkerProcess {
            source: self.source.clone(),
            store: self.store.clone(),
            host: HostPaths {
                image_locks: self.state_dir.root().join("locks"),
                sandbox_helper: Vec::new(),
                operator: OperatorOptions::default(),
            },
            workers: self.workers(),
            sandboxes: self.state_dir.sandboxes(),
            pool: "default".into(),
            slots: 2,
            budget: ResourceBudget::default(),
            providers: BTreeSet::new(),
            variables: TrialVariables::default(),
            lease: Duration::from_secs(60),
            drain_timeout: LONG,
            max_offline: LONG,
            stops,
            decorate: |runner| runner,
            metrics: WorkerMetrics::default(),
            tracer: Tracer::default(),
            monitor: Arc::default(),
        };
        (signal, supervise::spawn("worker", process.run()))
    }

    /// Creates the directory of a worker that died during an execution.
    fn add_dead_worker(&self, base: &Path, exec: u8) -> RunId {
        let dir = WorkerDir::create(base).expect("created");
        let exec = ExecId::from_bytes([exec; 16]);
        let mark = ScratchMark {
            run: RunId::from_bytes([1; 16]),
            item: ItemId::from_bytes([2; 16]),
            try_id: TryId::first(1),
            exec,
            spec: Digest::sha256(b"spec"),
            worker: dir.id().clone(),
        };
        let scratch = dir.scratch().join(exec.to_string());
        fs::create_dir(&scratch).expect("created");
        fs::write(scratch.join("execution.json"), serde_json::to_vec(&mark).expect("serializable"))
            .expect("written");
        mark.run
    }
}

/// Starts a worker whose recovery of a dead one waits for the queue, and stops it. Returns when it has ended
/// its own work.
async fn stop_during_recovery(
    fixture: &WorkerFixture,
    stops: &[StopLevel],
) -> (mpsc::Sender<StopLevel>, Task<Result<WorkerExit, RunError>>) {
    fixture.add_dead_worker(&fixture.workers(), 9);
    fixture.source.set_held(true);
    let (signal, working) = fixture.start();
    until("the recovery reports", async || fixture.source.holds_report()).await;
    for stop in stops {
        signal.try_send(*stop).expect("there is room");
    }
    let has_left = async || {
        let seen = fixture.queue.heartbeats().await.expect("listed");
        seen.iter().any(|seen| seen.heartbeat.gone)
    };
    until("the worker leaves", has_left).await;
    // The end of the channel would be another signal.
    (signal, working)
}

#[tokio::test(start_paused = true)]
async fn stopped_worker_finishes_recovery_of_dead_worker() {
    let fixture = WorkerFixture::new();
    let (_signal, mut working) = stop_during_recovery(&fixture, &[StopLevel::Drain]).await;
    let early = tokio::time::timeout(Duration::from_secs(5), &mut working).await;
    assert!(early.is_err(), "it waits for the recovery");
    fixture.source.set_held(false);
    let ended = tokio::time::timeout(LONG, working).await.expect("in time").expect("no panic");
    let asked = WorkerExit { reason: WorkerExitReason::Asked, unreported: 0 };
    assert_eq!(ended.expect("it worked"), asked);
    assert!(!fixture.workers().exists(), "the directory of the dead worker is removed");
}

#[tokio::test(start_paused = true)]
async fn recovery_that_hangs_delays_the_end_of_a_worker_by_its_limit_and_a_kill_hardly() {
    for (stops, sec) in
        [(&[StopLevel::Drain][..], 10), (&[StopLevel::Drain, StopLevel::Kill][..], 2)]
    {
        let fixture = WorkerFixture::new();
        let (_signal, working) = stop_during_recovery(&fixture, stops).await;
        let begun = tokio::time::Instant::now();
        let ended = tokio::time::timeout(LONG, working).await.expect("in time").expect("no panic");
        let _ended = ended.expect("it worked");
        let took = begun.elapsed().as_secs_f64();
        assert!((took - f64::from(sec)).abs() < 1.0, "{took} s instead of {sec}");
    }
}

#[tokio::test(start_paused = true)]
async fn recovery_without_an_end_is_told_apart_from_a_panic() {
    let limit = Duration::from_secs(2);
    let done = supervise::spawn("done", async {});
    assert_eq!(end_of_recovery(done, limit).await, Ok(()));
    let hung = supervise::spawn("hung", std::future::pending());
    assert_eq!(end_of_recovery(hung, limit).await, Err("has not ended in 2s".to_owned()));
    let broken: Task<()> = supervise::spawn("broken", async { panic!("no") });
    let why = end_of_recovery(broken, limit).await.expect_err("it panics");
    assert_eq!(why, "ended by a bug (task `broken` panicked: no)");
}

fn entries(path: &Path) -> usize {
    fs::read_dir(path).map_or(0, Iterator::count)
}

async fn until(what: &str, holds: impl AsyncFn() -> bool) {
    let deadline = Instant::now() + LONG;
    while !holds().await {
        assert!(Instant::now() < deadline, "never: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn worker_start_reports_dead_worker_and_removes_its_directory() {
    let fixture = WorkerFixture::new();
    let store = fixture.store.identity();
    let others = [("another", "default"), ("rollout", "another")]
        .map(|(namespace, pool)| fixture.state_dir.workers(namespace, store, pool));
    for other in &others {
        fixture.add_dead_worker(other, 8);
    }
    let run = fixture.add_dead_worker(&fixture.workers(), 9);
    let (signal, working) = fixture.start();
    let reports = fixture.queue.reports(run, None, 10, LONG).await.expect("read").reports;
    let lost = ReportBody::Lost {
        reason: LostReason::WorkerDied,
        phase: None,
        record: None,
        cost: 0.0,
        model_use: Default::default(),
    };
    assert_eq!((reports.len(), &reports[0].report.body), (1, &lost));
    assert_eq!(reports[0].report.exec, ExecId::from_bytes([9; 16]));
    until("only its own directory is there", async || entries(&fixture.workers()) == 1).await;
    let heartbeats = async |gone: bool| {
        let mut seen = fixture.queue.heartbeats().await.expect("listed");
        seen.retain(|seen| seen.heartbeat.gone == gone);
        seen
    };
    until("it sends heartbeats", async || heartbeats(false).await.len() == 1).await;
    assert_eq!(heartbeats(true).await.len(), 1, "the final heartbeat of the dead one");
    signal.send(StopLevel::Drain).await.expect("sent");
    let ended = tokio::time::timeout(LONG, working)
        .await
        .expect("in time")
        .expect("no panic")
        .expect("it worked");
    assert_eq!(ended, WorkerExit { reason: WorkerExitReason::Asked, unreported: 0 });
    assert_eq!((heartbeats(false).await.len(), heartbeats(true).await.len()), (0, 2));
    assert!(!fixture.workers().exists());
    for other in &others {
        assert_eq!(entries(other), 1, "directories of other deployments and pools stay");
    }
}

#[test]
fn worker_without_usable_environment_says_so() {
    let mut profile = WorkerProfile::default();
    assert_eq!(usable_environments(&profile), "but no environment is usable now");
    profile.providers.insert(ProviderKind::Process, EnvironmentCapacity::default());
    assert_eq!(usable_environments(&profile), "in process");
}
