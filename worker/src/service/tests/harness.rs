//! Fixture: a worker with a scripted runner and an embedded queue; the test acts as its
//! coordinator.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use rollout_protocol::blob::MediaType;
use rollout_protocol::id::{ExecId, TryId};
use rollout_protocol::phase::Phase;
use rollout_protocol::spec::eval::EvalStage;
use rollout_protocol::wire::claim::{Claim, ClaimAnswer};
use rollout_protocol::wire::heartbeat::{ActiveExecution, Heartbeat};
use rollout_protocol::wire::offer::{Offer, SizeClass};
use rollout_protocol::wire::position::ReportPosition;
use rollout_protocol::wire::report::{Report, ReportBody, ResultBody};
use rollout_queue::embedded::EmbeddedQueue;
use rollout_queue::embedded::model::BrokerModelConfig;
use rollout_queue::traits::Dispatch;
use rollout_store::testing::FaultyStore;

use super::super::*;
use crate::disk::DiskUse;
use crate::executor::{FileRole, RecordFile};
use crate::testing::{FlakySource, SampleRun, TestDirectory, passed_trial};

pub(super) const LEASE: Duration = Duration::from_secs(60);
pub(super) const FIRST: TryId = TryId::first(1);
/// Longer than any wait of a test.
pub(super) const LONG: Duration = Duration::from_secs(24 * 3600);

/// The scripted behaviour of an attempt's execution.
#[derive(Debug, Clone, Copy)]
pub(super) enum ScriptedAct {
    Sleep(Duration),
    /// Leaves a file and an output after this time.
    Produce(Duration),
    Panic,
    UntilStopped,
}

#[derive(Debug, Default)]
pub(super) struct ScriptedRunner {
    pub(super) acts: Mutex<HashMap<u32, ScriptedAct>>,
    pub(super) begun: Mutex<Vec<(u32, ExecId)>>,
    pub(super) running: AtomicUsize,
    pub(super) max_running: AtomicUsize,
    pub(super) disks: Arc<DiskWatch>,
}

#[async_trait]
impl Runner for ScriptedRunner {
    async fn run(&self, context: TrialContext) -> Finished<TrialRecord> {
        self.begun
            .lock()
            .expect("not poisoned")
            .push((context.attempt, context.execution.labels.exec));
        let act = self.acts.lock().expect("not poisoned").get(&context.attempt).copied();
        let Some(act) = act else { return passed_trial(&context) };
        let running = self.running.fetch_add(1, Ordering::Relaxed) + 1;
        self.max_running.fetch_max(running, Ordering::Relaxed);
        context.execution.phases.entered(Phase::AgentExecution);
        let finished = self.perform(act, context).await;
        self.running.fetch_sub(1, Ordering::Relaxed);
        finished
    }

    fn disks(&self) -> Arc<DiskWatch> {
        Arc::clone(&self.disks)
    }

    /// Loses its environment in its first sweep, and starts over.
    async fn eval(&self, context: EvalContext) -> Finished<EvalRecord> {
        let permits = &context.permits;
        permits.acquire(EvalStage::Implement).await;
        permits.release(EvalStage::Implement);
        permits.acquire(EvalStage::Sweep).await;
        permits.start_over();
        for stage in [EvalStage::Implement, EvalStage::Sweep] {
            permits.acquire(stage).await;
            permits.release(stage);
        }
        let error = TrialError::transient(ErrorType::InternalError, ErrorCode::BUG, "scripted");
        Finished::<EvalRecord>::failed(&context, error)
    }
}

impl ScriptedRunner {
    async fn perform(&self, act: ScriptedAct, mut context: TrialContext) -> Finished<TrialRecord> {
        let mut finished = passed_trial(&context);
        match act {
            ScriptedAct::Sleep(duration) => tokio::time::sleep(duration).await,
            ScriptedAct::Panic => {
                tokio::time::sleep(Duration::from_millis(1)).await;
                panic!("as scripted");
            }
            ScriptedAct::UntilStopped => {
                let _level =
                    context.execution.stop.wait_for(Option::is_some).await.expect("a stop level");
                finished.stopped = Some(Phase::AgentExecution);
            }
            ScriptedAct::Produce(duration) => {
                context.execution.create_scratch().await.expect("created");
                let file = context.execution.scratch.join("out.txt");
                std::fs::write(&file, "a captured line").expect("written");
                tokio::time::sleep(duration).await;
                finished.record.verifier_stdout = Some("seen".into());
                let role =
                    FileRole::Output { path: "out.txt".into(), total_bytes: 15, truncated: false };
                finished.files.push(RecordFile {
                    file,
                    media_type: MediaType::Text,
                    role,
                    digest: None,
                });
            }
        }
        finished
    }
}

#[derive(Clone)]
pub(super) struct ServiceSetup {
    pub(super) slots: u32,
    pub(super) window: Option<Duration>,
    pub(super) reports_per_run: usize,
    pub(super) budget: ResourceBudget,
    pub(super) max_offline: Option<Duration>,
    pub(super) tracer: Tracer,
    /// Whether writes to the worker's directory are tried.
    pub(super) checks_writes: bool,
}

impl Default for ServiceSetup {
    fn default() -> Self {
        Self {
            slots: 4,
            window: None,
            reports_per_run: 1000,
            budget: ResourceBudget::default(),
            max_offline: None,
            tracer: Tracer::default(),
            checks_writes: false,
        }
    }
}

pub(super) struct ServiceFixture {
    pub(super) store: Arc<FaultyStore>,
    pub(super) queue: Arc<EmbeddedQueue>,
    pub(super) source: Arc<FlakySource>,
    pub(super) sample: SampleRun,
    pub(super) runner: Arc<ScriptedRunner>,
    pub(super) adopted: Arc<AdoptedExecutions>,
    pub(super) stop: watch::Sender<ShutdownLevel>,
    pub(super) working: Task<WorkerExit>,
    position: Mutex<Option<ReportPosition>>,
    /// The last one: its files outlive the task.
    pub(super) dir: TestDirectory,
}

impl ServiceFixture {
    pub(super) fn new() -> Self {
        Self::with_setup(ServiceSetup::default())
    }

    pub(super) fn with_setup(setup: ServiceSetup) -> Self {
        let dir = TestDirectory::new();
        std::fs::create_dir(dir.path().join("scratch")).expect("created");
        let store = Arc::new(FaultyStore::default());
        let sample = SampleRun::store(store.inner());
        let config = BrokerModelConfig {
            lease: LEASE,
            reports_per_run: setup.reports_per_run,
            remembered_acks: 0,
        };
        let queue = Arc::new(EmbeddedQueue::new(config));
        let own = (dir.path().to_owned(), DiskUse::Own);
        let disks = Arc::new(DiskWatch::new(setup.checks_writes.then_some(own), []));
        let runner = Arc::new(ScriptedRunner { disks, ..ScriptedRunner::default() });
        let config = WorkerConfig {
            worker: "w-1".parse().expect("a token"),
            owner: Owner::current(dir.path().to_owned()),
            dir: dir.path().to_owned(),
            pool: "default".into(),
            slots: setup.slots,
            budget: setup.budget,
            profile: WorkerProfile::default().into_fixed(),
            lease: LEASE,
            suspicious_window: setup.window,
            max_offline: setup.max_offline,
            spool_bytes: 1 << 20,
            metrics: WorkerMetrics::default(),
            tracer: setup.tracer,
        };
        let source = Arc::new(FlakySource::new(queue.clone()));
        let worker = Worker::new(config, source.clone(), store.clone(), runner.clone());
        let adopted = worker.adopted();
        let (stop, shutdown) = watch::channel(ShutdownLevel::No);
        let working = supervise::spawn("worker", worker.run(shutdown));
        let position = Mutex::default();
        Self { dir, store, queue, source, sample, runner, adopted, stop, working, position }
    }

    pub(super) fn script(&self, attempt: u32, act: ScriptedAct) {
        self.runner.acts.lock().expect("not poisoned").insert(attempt, act);
    }

    pub(super) async fn offer(&self, attempts: impl IntoIterator<Item = u32>) {
        self.offer_as(attempts, FIRST).await;
    }

    pub(super) async fn offer_as(&self, attempts: impl IntoIterator<Item = u32>, try_id: TryId) {
        let offers: Vec<_> =
            attempts.into_iter().map(|attempt| self.sample.offer(attempt, try_id)).collect();
        self.queue.offer(&offers).await.expect("offered");
    }

    pub(super) async fn offer_with_class(&self, class: SizeClass, attempts: &[u32]) {
        let offer = |attempt| Offer { class, ..self.sample.offer(attempt, FIRST) };
        let offers: Vec<_> = attempts.iter().copied().map(offer).collect();
        self.queue.offer(&offers).await.expect("offered");
    }

    /// The next reports, journalled.
    pub(super) async fn reports(&self, n: usize) -> Vec<Report> {
        let mut reports = Vec::new();
        while reports.len() < n {
            reports.extend(self.read(n - reports.len(), LONG).await);
            assert!(!self.working.is_finished());
        }
        reports
    }

    pub(super) async fn report(&self) -> Report {
        self.reports(1).await.remove(0)
    }

    /// Reports that are present or arrive within `wait`, journalled.
    pub(super) async fn read(&self, max: usize, wait: Duration) -> Vec<Report> {
        let from = *self.position.lock().expect("not poisoned");
        let read = self.queue.reports(self.sample.run, from, max, wait).await.expect("read");
        let read = read.reports;
        if let Some(last) = read.last() {
            *self.position.lock().expect("not poisoned") = Some(last.position);
            self.queue.mark_journaled(self.sample.run, last.position).await.expect("marked");
        }
        read.into_iter().map(|reported| reported.report).collect()
    }

    /// Answers the next claim.
    pub(super) async fn answer_claim(&self, answer: ClaimAnswer) -> Claim {
        let pending = self.queue.next_claim(self.sample.run).await.expect("a claim");
        pending.reply.send(answer).expect("sent");
        pending.claim
    }

    /// The executions in the worker's last heartbeat.
    pub(super) async fn heartbeat_entries(&self) -> Vec<ActiveExecution> {
        let heartbeats = self.queue.heartbeats().await.expect("listed");
        heartbeats.into_iter().flat_map(|seen| seen.heartbeat.executions).collect()
    }

    /// Number of offers in the queue.
    pub(super) async fn queued(&self) -> usize {
        self.queue.list(self.sample.run).await.expect("listed").len()
    }

    /// Waits, in paused time, until a condition holds.
    pub(super) async fn until(&self, what: &str, holds: impl AsyncFn() -> bool) {
        for _ in 0..60_000 {
            if holds().await {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("never: {what}");
    }

    pub(super) async fn until_acknowledged(&self) {
        self.until("every offer is acknowledged", async || self.queued().await == 0).await;
        self.until("nothing is left on disk", async || self.files().is_empty()).await;
    }

    /// Entries of the scratch and spool directories.
    pub(super) fn files(&self) -> Vec<String> {
        let list = |name: &str| match std::fs::read_dir(self.dir.path().join(name)) {
            Ok(entries) => {
                entries.map(|e| format!("{name}/{:?}", e.expect("an entry").file_name())).collect()
            }
            Err(_) => Vec::new(),
        };
        [list("scratch"), list("spool")].concat()
    }

    /// Whether one spool entry is the only thing on disk.
    pub(super) fn is_only_spooled(&self) -> bool {
        matches!(&self.files()[..], [one] if one.starts_with("spool"))
    }

    pub(super) fn begun(&self) -> Vec<u32> {
        self.runner
            .begun
            .lock()
            .expect("not poisoned")
            .iter()
            .map(|(attempt, _)| *attempt)
            .collect()
    }

    pub(super) async fn shut_down(self, level: ShutdownLevel) -> TestDirectory {
        self.stop.send_replace(level);
        self.ended().await.1
    }

    /// The worker's exit and its directory.
    pub(super) async fn ended(self) -> (WorkerExit, TestDirectory) {
        let ended = tokio::time::timeout(LONG, self.working)
            .await
            .expect("the worker ends")
            .expect("no panic");
        (ended, self.dir)
    }

    /// The worker's last heartbeat.
    pub(super) async fn last_heartbeat(&self) -> Heartbeat {
        self.until("a heartbeat", async || {
            !self.queue.heartbeats().await.expect("listed").is_empty()
        })
        .await;
        self.queue.heartbeats().await.expect("listed").remove(0).heartbeat
    }

    /// Waits until `n` executions run.
    pub(super) async fn until_running(&self, n: usize) {
        self.until("they run", async || self.runner.running.load(Ordering::Relaxed) == n).await;
    }
}

pub(super) fn result(report: &Report) -> &ResultBody {
    match &report.body {
        ReportBody::Result(body) => body,
        other => panic!("no result: {other:?}"),
    }
}
