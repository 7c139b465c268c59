//! Tests of evals whose commands need concurrency permits.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use rollout_engine::concurrency::{ConcurrencyLimiter, ConcurrencyLimits};
use rollout_engine::core::NewItem;
use rollout_engine::{SelectionStep, WorkerRequirements};
use rollout_protocol::blob::{BlobRef, MediaType};
use rollout_protocol::digest::Digest;
use rollout_protocol::error::{ErrorCode, ErrorType, TrialError};
use rollout_protocol::id::{ItemId, RunId, TryId};
use rollout_protocol::item_name::ItemName;
use rollout_protocol::record::{EvalEnd, EvalRecord, TrialRecord};
use rollout_protocol::spec::environment::{
    DockerSettings, EnvironmentRates, EnvironmentSpec, PreservePolicy, ProviderSpec,
};
use rollout_protocol::spec::eval::{
    CommandKind, CommitBundle, EvalCommand, EvalCommands, EvalOrigin, EvalSpec, EvalStage,
    RepositorySpec,
};
use rollout_protocol::spec::task::TaskEnvironment;
use rollout_protocol::wire::command::TrialSelection;
use rollout_protocol::wire::offer::{Offer, OfferedWork, RunRateLimits};
use rollout_store::put_json;
use rollout_worker::executor::Finished;
use rollout_worker::work::eval::EvalContext;
use rollout_worker::work::trial::TrialContext;

use super::*;

const STAGES: [EvalStage; 4] =
    [EvalStage::Implement, EvalStage::Tests, EvalStage::Review, EvalStage::Sweep];

/// A job's trials as evals of one spec.
#[derive(Debug)]
struct EvalsPlanner {
    job: JobPlanner,
    spec: Digest,
    tickets: Option<Arc<ConcurrencyLimiter>>,
}

impl Planner for EvalsPlanner {
    fn total(&self) -> u64 {
        self.job.total()
    }

    fn next(&mut self, max: usize) -> Vec<NewItem> {
        let spec = self.spec;
        self.job.next(max).into_iter().map(|item| NewItem { spec, ..item }).collect()
    }

    fn find(&self, item: &ItemId) -> Option<NewItem> {
        self.job.find(item).map(|item| NewItem { spec: self.spec, ..item })
    }

    fn offer(&self, run: RunId, item: ItemId, try_id: TryId, ordinal: u64) -> Offer {
        let limiter = self.tickets.as_ref().map(|limiter| limiter.limited_stages());
        let rate_limits =
            RunRateLimits { permits: limiter.unwrap_or_default(), ..RunRateLimits::default() };
        let offer = self.job.offer(run, item, try_id, ordinal);
        Offer { spec: self.spec, work: OfferedWork::Eval, rate_limits, ..offer }
    }

    fn lanes(&self) -> &[WorkerRequirements] {
        self.job.lanes()
    }

    fn select(&self, selection: &TrialSelection, ordinal: u64) -> SelectionStep {
        self.job.select(selection, ordinal)
    }

    fn name(&self, ordinal: u64) -> ItemName {
        self.job.name(ordinal)
    }

    fn concurrency_limiter(&self) -> Option<Arc<ConcurrencyLimiter>> {
        self.tickets.clone()
    }
}

/// The commands that run at present on all workers together, and the maximum so far.
#[derive(Debug, Default)]
struct ConcurrencyProbe {
    llm: (AtomicUsize, AtomicUsize),
    sweeps: (AtomicUsize, AtomicUsize),
    /// When commands that ask a language model started.
    starts: Mutex<Vec<Instant>>,
    /// Whether each eval starts over once: its environment is lost while its sweep runs.
    starts_over: bool,
}

impl ConcurrencyProbe {
    fn counters(&self, stage: EvalStage) -> Option<&(AtomicUsize, AtomicUsize)> {
        match stage.kind()? {
            CommandKind::Llm => Some(&self.llm),
            CommandKind::Sweep => Some(&self.sweeps),
        }
    }

    fn maxima(&self) -> (usize, usize) {
        (self.llm.1.load(Ordering::SeqCst), self.sweeps.1.load(Ordering::SeqCst))
    }

    async fn stage(&self, stage: EvalStage) {
        let counted = self.counters(stage);
        if let Some((now, most)) = counted {
            most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        }
        if stage.kind() == Some(CommandKind::Llm) {
            self.starts.lock().expect("not poisoned").push(Instant::now());
        }
        // Simulated work of the command.
        tokio::time::sleep(Duration::from_millis(10)).await;
        if let Some((now, _)) = counted {
            now.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

#[async_trait]
impl Runner for ConcurrencyProbe {
    async fn run(&self, _: TrialContext) -> Finished<TrialRecord> {
        unreachable!("only evals are offered")
    }

    async fn eval(&self, context: EvalContext) -> Finished<EvalRecord> {
        if self.starts_over {
            for stage in STAGES {
                context.permits.acquire(stage).await;
                self.stage(stage).await;
                if stage != EvalStage::Sweep {
                    context.permits.release(stage);
                }
            }
            context.permits.start_over();
        }
        for stage in STAGES {
            context.permits.acquire(stage).await;
            self.stage(stage).await;
            context.permits.release(stage);
        }
        let error = TrialError::transient(ErrorType::InternalError, ErrorCode::BUG, "none");
        let mut finished = Finished::<EvalRecord>::failed(&context, error);
        (finished.record.end, finished.record.error) = (EvalEnd::NoChanges, None);
        finished
    }
}

/// A spec that is never read.
async fn spec(store: &FsStore) -> Digest {
    let command = || EvalCommand {
        script: String::new(),
        agent: None,
        timeout_sec: None,
        env: BTreeMap::new(),
    };
    let size_bytes = 0;
    let blob =
        BlobRef { digest: Digest::sha256(b""), size_bytes, media_type: Some(MediaType::Text) };
    let name = EvalOrigin { tree: "t".into(), node: "0000".into(), eval: "0001".into() };
    let root = CommitBundle { commit: "00".into(), parent: None, blob: blob.clone() };
    let spec = EvalSpec {
        name,
        repository: RepositorySpec { root, chain: Vec::new() },
        idea: blob,
        message: String::new(),
        commands: EvalCommands {
            implement: command(),
            tests: Some(command()),
            review: Some(command()),
            sweep: command(),
        },
        timeout_sec: None,
        environment: TaskEnvironment::default(),
        settings: EnvironmentSpec {
            provider: ProviderSpec::Docker(DockerSettings::default()),
            force_build: false,
            preserve_env: PreservePolicy::default(),
            rates: EnvironmentRates::default(),
        },
        sweep_environment: None,
        user: None,
        results_file: "results.csv".into(),
        sweep_config_limit: None,
        env: BTreeMap::new(),
        gateway: None,
        secrets: std::collections::BTreeSet::new(),
    };
    put_json(store, &spec).await.expect("stored").digest
}

struct LimiterFixture {
    world: RemoteFixture,
    spec: Digest,
    caps: ConcurrencyLimits,
    racers: Arc<ConcurrencyProbe>,
}

impl LimiterFixture {
    async fn new(evals: u32, caps: ConcurrencyLimits) -> Self {
        let world = RemoteFixture::new(evals).await;
        let spec = spec(&world.store).await;
        Self { world, spec, caps, racers: Arc::default() }
    }

    fn worker(&self, name: &str) -> (watch::Sender<ShutdownLevel>, Task<service::WorkerExit>) {
        self.world.worker_with(name, 4, self.racers.clone())
    }

    async fn start_session(&self) -> RunningSession {
        let (spec, caps) = (self.spec, self.caps);
        self.world
            .start_session_with(|job| EvalsPlanner {
                job,
                spec,
                tickets: ConcurrencyLimiter::new(caps),
            })
            .await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrency_limit_is_shared_by_two_workers() {
    let caps = ConcurrencyLimits { llm: Some(1), sweeps: Some(1), interval: None };
    let race = LimiterFixture::new(40, caps).await;
    let _workers = [race.worker("a"), race.worker("b")];
    assert_eq!(wait_for_end(race.start_session().await).await, COMPLETED);
    assert_eq!((race.world.settled(), race.racers.maxima()), (40, (1, 1)));
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrency_limit_is_kept_by_evals_that_start_over() {
    for llm in [None, Some(1)] {
        let caps = ConcurrencyLimits { llm, sweeps: Some(1), interval: None };
        let mut race = LimiterFixture::new(12, caps).await;
        race.racers = Arc::new(ConcurrencyProbe { starts_over: true, ..Default::default() });
        let _workers = [race.worker("a"), race.worker("b")];
        assert_eq!(wait_for_end(race.start_session().await).await, COMPLETED);
        let (llm_at_once, sweeps_at_once) = race.racers.maxima();
        assert_eq!((race.world.settled(), sweeps_at_once), (12, 1));
        assert!(llm.is_none() || llm_at_once == 1, "{llm_at_once} at once");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrency_without_limit_runs_stages_in_parallel() {
    let race = LimiterFixture::new(40, ConcurrencyLimits::default()).await;
    let _workers = [race.worker("a"), race.worker("b")];
    assert_eq!(wait_for_end(race.start_session().await).await, COMPLETED);
    let (llm, sweeps) = race.racers.maxima();
    assert!(llm > 1 && sweeps > 1, "{llm} and {sweeps} at once");
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrency_limit_survives_coordinator_and_broker_restart() {
    let caps = ConcurrencyLimits { llm: Some(2), sweeps: Some(1), interval: None };
    let race = LimiterFixture::new(120, caps).await;
    let _workers = [race.worker("a"), race.worker("b")];
    for _ in 0..2 {
        let (session, mut seen) = race.start_session().await;
        wait_for_settled(&mut seen, 20).await;
        drop(session);
    }
    let (session, mut seen) = race.start_session().await;
    wait_for_settled(&mut seen, 60).await;
    race.world.queue.inject_fault(BrokerModel::restart);
    assert_eq!(wait_for_end((session, seen)).await, COMPLETED);
    assert_eq!((race.world.settled(), race.racers.maxima()), (120, (2, 1)));
}

#[tokio::test(flavor = "multi_thread")]
async fn rate_limit_survives_coordinator_restart() {
    let interval = Duration::from_millis(200);
    let caps = ConcurrencyLimits { interval: Some(interval), ..ConcurrencyLimits::default() };
    let race = LimiterFixture::new(8, caps).await;
    let _workers = [race.worker("a"), race.worker("b")];
    let (session, mut seen) = race.start_session().await;
    wait_for_settled(&mut seen, 2).await;
    drop(session);
    assert_eq!(wait_for_end(race.start_session().await).await, COMPLETED);
    let mut starts = race.racers.starts.lock().expect("not poisoned").clone();
    starts.sort_unstable();
    assert!(starts.len() >= 16, "{}", starts.len());
    // Answers take a varying time to arrive.
    for window in starts.windows(6) {
        assert!(window[5] - window[0] > interval * 4, "{window:?}");
    }
}
