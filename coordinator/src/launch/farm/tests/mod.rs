//! Tests of farms on the embedded queue, with trials that do nothing.

mod compactions;
mod crashes;
mod groups;
mod journals;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use rollout_base::supervise::{self, Task};
use rollout_base::traces::Tracer;
use rollout_engine::journal::RunLayout;
use rollout_engine::{EngineOutcome, RunError, RunOpenOptions};
use rollout_protocol::error::{ErrorCode, ErrorType, TrialError};
use rollout_protocol::farm::{Completion, FarmSettings, GroupId, GroupRequest, SubmitReceipt};
use rollout_protocol::record::{TrialRecord, Verdict};
use rollout_protocol::retry::RetryPolicy;
use rollout_protocol::wire::control::StopLevel;
use rollout_store::{BlobStore, MemoryStore};
use rollout_worker::executor::Finished;
use rollout_worker::service::Runner;
use rollout_worker::work::trial::TrialContext;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::SubmitError;
use super::engine::log_warnings;
use crate::bench::noop;
use crate::launch::embedded::{self, EmbeddedRun, WorkerEquipment};
use crate::workloads::farm::{FarmDocuments, FarmHandle, FarmPlanner};

/// How long a test waits for what must come.
const LONG: Duration = Duration::from_secs(120);

/// Samples that run at a time.
const SLOTS: u32 = 4;

/// The outcome of the n-th execution, from 1.
type Verdicts = Arc<dyn Fn(u32) -> Verdict + Send + Sync>;

/// Runs trials that do nothing, and replaces their verdicts.
struct VerdictRunner {
    inner: Arc<dyn Runner>,
    verdicts: Verdicts,
    executions: Arc<AtomicU32>,
}

impl std::fmt::Debug for VerdictRunner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VerdictRunner").field("inner", &self.inner).finish_non_exhaustive()
    }
}

#[async_trait]
impl Runner for VerdictRunner {
    async fn run(&self, context: TrialContext) -> Finished<TrialRecord> {
        let mut finished = self.inner.run(context).await;
        let n = self.executions.fetch_add(1, Ordering::Relaxed) + 1;
        finished.record.verdict = (self.verdicts)(n);
        finished
    }
}

fn lost() -> Verdict {
    let (kind, code) = (ErrorType::EnvironmentStartFailed, ErrorCode::UNREACHABLE);
    Verdict::failed(TrialError::transient(kind, code, "no answer"))
}

/// The tasks and the store of a farm.
struct FarmFixture {
    dir: tempfile::TempDir,
    store: Arc<dyn BlobStore>,
    documents: Arc<FarmDocuments>,
    verdicts: Verdicts,
    executions: Arc<AtomicU32>,
}

/// A session of a farm.
struct RunningFarm {
    handle: FarmHandle,
    documents: Arc<FarmDocuments>,
    stops: mpsc::Sender<StopLevel>,
    engine: Task<Result<EngineOutcome, RunError>>,
}

fn group_id(name: &str) -> GroupId {
    name.parse().expect("an id")
}

fn request(name: &str, n: u32) -> GroupRequest {
    GroupRequest::new(group_id(name), "bench/noop", n)
}

impl FarmFixture {
    async fn new(verdicts: impl Fn(u32) -> Verdict + Send + Sync + 'static) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let store: Arc<dyn BlobStore> = Arc::new(MemoryStore::default());
        let plan = noop::plan(1, &*store).await.expect("a plan");
        let documents = Arc::new(FarmDocuments::new(Arc::new(plan), Arc::clone(&store)));
        Self { dir, store, documents, verdicts: Arc::new(verdicts), executions: Arc::default() }
    }

    fn run_dir(&self) -> PathBuf {
        self.dir.path().join("run")
    }

    fn open(&self) -> RunningFarm {
        self.open_in(&self.run_dir(), FarmSettings::new("f"))
    }

    fn open_in(&self, run_dir: &Path, settings: FarmSettings) -> RunningFarm {
        let (stops, stopped) = mpsc::channel(4);
        let (planner, handle) = FarmPlanner::new(settings, self.documents.needs());
        let layout = RunLayout::new(run_dir);
        let options = noop::run_open_options(layout, self.documents.plan(), SLOTS);
        let retry = RetryPolicy { max_attempts: 1, ..options.retry };
        let options = RunOpenOptions { retry, ..options };
        let blobs = Arc::clone(&self.store);
        let (verdicts, executions) = (Arc::clone(&self.verdicts), Arc::clone(&self.executions));
        let (events, logging) = log_warnings();
        let run = EmbeddedRun {
            options,
            planner: Box::new(planner),
            store: Arc::clone(&self.store),
            queue: Arc::default(),
            slots: SLOTS,
            events,
            stops: stopped,
            on_open: Box::new(|_| Box::pin(async { Ok(()) })),
            takes_commands: false,
            equip: Box::new(move |dir| {
                let inner = noop::runner(dir, blobs)?;
                let runner = Arc::new(VerdictRunner { inner, verdicts, executions });
                Ok(WorkerEquipment { runner, providers: Vec::new() })
            }),
            tracer: Tracer::default(),
        };
        let engine = supervise::spawn("farm", async move {
            let session = Box::pin(embedded::run(run)).await?;
            drop(logging);
            Ok(session.outcome)
        });
        RunningFarm { handle, documents: Arc::clone(&self.documents), stops, engine }
    }
}

impl RunningFarm {
    async fn submit(&self, request: GroupRequest) -> Result<SubmitReceipt, SubmitError> {
        let group = self.documents.admit(request).await?;
        Ok(self.handle.submit(group).await??)
    }

    /// The next `count` completions after a cursor.
    async fn read(&self, after: u64, count: usize) -> Vec<Arc<Completion>> {
        let mut found: Vec<Arc<Completion>> = Vec::new();
        while found.len() < count {
            let after = found.last().map_or(after, |last| last.cursor);
            let page = self.handle.completions("train", after, count - found.len(), LONG).await;
            let page = page.expect("the farm is open");
            assert!(!page.completions.is_empty(), "{} of {count} came", found.len());
            found.extend(page.completions);
        }
        found
    }

    /// Everything that can be read now.
    async fn read_all(&self) -> Vec<Arc<Completion>> {
        let page = self.handle.completions("train", 0, 4096, Duration::ZERO).await;
        page.map(|page| page.completions).unwrap_or_default()
    }

    fn status_is_paused(&self) -> bool {
        self.handle.status().pause.is_some()
    }

    async fn stop(self, level: StopLevel) -> EngineOutcome {
        self.stops.send(level).await.expect("it runs");
        self.engine.await.expect("no panic").expect("ended in order")
    }

    /// Acknowledges everything, and ends the farm.
    async fn close(self) -> EngineOutcome {
        let status = self.handle.close().await.expect("it runs");
        assert!(status.closed);
        let until = Instant::now() + LONG;
        loop {
            assert!(Instant::now() < until, "the farm does not end: {:?}", self.handle.status());
            match self.handle.completions("train", 0, 4096, Duration::from_millis(100)).await {
                Err(_) => break,
                Ok(page) if page.completions.is_empty() => {}
                Ok(page) => {
                    let cursors = page.completions.iter().map(|one| one.cursor).collect();
                    let receipt = self.handle.acknowledge("train", cursors).await;
                    assert_eq!(receipt.expect("it runs").unknown, 0);
                }
            }
        }
        self.engine.await.expect("no panic").expect("ended in order")
    }
}
