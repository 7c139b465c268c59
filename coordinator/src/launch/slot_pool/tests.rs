//! Work of searches in a pool of slots.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::FutureExt as _;
use futures_util::future::LocalBoxFuture;
use rollout_base::shared_limit::LimitShares;
use rollout_protocol::blob::BlobRef;
use rollout_protocol::digest::Digest;
use rollout_protocol::error::{ErrorCode, ErrorType, TrialError};
use rollout_protocol::spec::eval::{
    CommitBundle, EvalCommand, EvalCommands, EvalOrigin, EvalSpec, RepositorySpec,
};
use rollout_protocol::spec::ideas::{IdeasOrigin, IdeasSpec};
use rollout_protocol::spec::task::TaskEnvironment;
use rollout_protocol::wire::control::StopLevel;
use rollout_worker::work::trial::testing::{TrialFixture, settings};

use super::*;

/// The slots held, and the stop, at the beginning of an execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct BegunExecution {
    /// Slots that all users held.
    held: u64,
    /// The requested stop level.
    stop: Option<StopLevel>,
}

/// A runner whose executions end at once.
#[derive(Debug)]
struct RecordingRunner {
    slots: Arc<SharedLimit>,
    begun: Mutex<Vec<BegunExecution>>,
}

impl RecordingRunner {
    fn record(&self, execution: &ExecutionContext) -> TrialError {
        let (held, stop) = (self.slots.counts().held, *execution.stop.borrow());
        self.begun.lock().expect("not poisoned").push(BegunExecution { held, stop });
        TrialError::transient(ErrorType::InternalError, ErrorCode::BUG, "nothing was run")
    }
}

#[async_trait]
impl Runner for RecordingRunner {
    async fn run(&self, _: TrialContext) -> Finished<TrialRecord> {
        unreachable!("only work of searches is run")
    }

    async fn eval(&self, context: EvalContext) -> Finished<EvalRecord> {
        let error = self.record(&context.execution);
        Finished::<EvalRecord>::failed(&context, error)
    }

    async fn ideas(&self, context: IdeasContext) -> Finished<IdeasRecord> {
        let error = self.record(&context.execution);
        Finished::<IdeasRecord>::failed(&context, error)
    }
}

/// A pool of one slot, and the work of a search of the user `ada`.
struct PoolFixture {
    slots: Arc<SharedLimit>,
    recorded: Arc<RecordingRunner>,
    runner: Arc<dyn Runner>,
    execution: TrialFixture,
}

impl PoolFixture {
    async fn new() -> Self {
        let slots = SharedLimit::new(LimitShares::whole(1));
        let begun = Mutex::default();
        let recorded = Arc::new(RecordingRunner { slots: Arc::clone(&slots), begun });
        let share = SlotShare { slots: Arc::clone(&slots), user: user("ada"), priority: 0 };
        let runner = pooled(Arc::clone(&recorded) as Arc<dyn Runner>, Some(share));
        Self { slots, recorded, runner, execution: TrialFixture::new().await }
    }

    fn execution(&self) -> ExecutionContext {
        self.execution.execution("/nowhere".into())
    }

    /// An eval and a command that writes ideas, which wait for a slot.
    fn waiting(&self) -> [LocalBoxFuture<'_, ()>; 2] {
        let permits = Arc::new(());
        let (execution, eval) = (self.execution(), Arc::new(eval_spec()));
        let eval = EvalContext { execution, eval, permits: permits.clone() };
        let (execution, ideas) = (self.execution(), Arc::new(ideas_spec()));
        let ideas = IdeasContext { execution, ideas, permits };
        let mut waiting: [LocalBoxFuture<'_, ()>; 2] = [
            Box::pin(async move { drop(self.runner.eval(eval).await) }),
            Box::pin(async move { drop(self.runner.ideas(ideas).await) }),
        ];
        for execution in &mut waiting {
            assert!(execution.now_or_never().is_none(), "it has a slot");
        }
        waiting
    }

    fn begun(&self) -> Vec<BegunExecution> {
        self.recorded.begun.lock().expect("not poisoned").clone()
    }

    /// Slots that are held, and executions that wait.
    fn counts(&self) -> (u64, u64) {
        let counts = self.slots.counts();
        (counts.held, counts.waiting)
    }
}

fn user(name: &str) -> LimitUser {
    LimitUser { name: name.to_owned(), is_admin: false }
}

fn blob() -> BlobRef {
    BlobRef { digest: Digest::sha256(b""), size_bytes: 0, media_type: None }
}

fn command() -> EvalCommand {
    EvalCommand { script: String::new(), agent: None, timeout_sec: None, env: BTreeMap::new() }
}

fn repository_spec() -> RepositorySpec {
    let root = CommitBundle { commit: "00".to_owned(), parent: None, blob: blob() };
    RepositorySpec { root, chain: Vec::new() }
}

fn eval_spec() -> EvalSpec {
    let commands =
        EvalCommands { implement: command(), tests: None, review: None, sweep: command() };
    EvalSpec {
        name: EvalOrigin { tree: "t".into(), node: "0000".into(), eval: "0001".into() },
        repository: repository_spec(),
        idea: blob(),
        message: String::new(),
        commands,
        timeout_sec: None,
        environment: TaskEnvironment::default(),
        settings: settings().environment,
        sweep_environment: None,
        user: None,
        results_file: "results.csv".into(),
        sweep_config_limit: None,
        env: BTreeMap::new(),
        gateway: None,
        secrets: BTreeSet::new(),
    }
}

fn ideas_spec() -> IdeasSpec {
    IdeasSpec {
        name: IdeasOrigin { tree: "t".into(), node: "0000".into() },
        repository: repository_spec(),
        command: command(),
        environment: TaskEnvironment::default(),
        settings: settings().environment,
        count: 1,
        earlier: Vec::new(),
        pack: blob(),
        gateway: None,
        secrets: BTreeSet::new(),
    }
}

#[tokio::test]
async fn work_of_search_waits_for_slot_and_gives_it_back() {
    let pool = PoolFixture::new().await;
    let held = pool.slots.try_acquire(&user("bob"), 1).expect("it is free");
    let waiting = pool.waiting();
    assert_eq!((pool.counts(), pool.begun()), ((1, 2), Vec::new()));
    drop(held);
    for execution in waiting {
        execution.await;
    }
    assert_eq!(pool.begun(), [BegunExecution { held: 1, stop: None }; 2]);
    assert_eq!(pool.counts(), (0, 0));
}

#[tokio::test]
async fn waiting_work_of_search_that_is_stopped_ends_without_slot() {
    for level in [StopLevel::Drain, StopLevel::Kill] {
        let pool = PoolFixture::new().await;
        let held = pool.slots.try_acquire(&user("bob"), 1).expect("it is free");
        let waiting = pool.waiting();
        pool.execution.stop.send_replace(Some(level));
        for execution in waiting {
            execution.await;
        }
        // The runner sees the stop and runs nothing.
        assert_eq!(pool.begun(), [BegunExecution { held: 1, stop: Some(level) }; 2]);
        drop(held);
        assert_eq!(pool.counts(), (0, 0), "{level:?}");
    }
}

#[tokio::test]
async fn work_of_search_that_nothing_can_stop_waits_for_slot() {
    let pool = PoolFixture::new().await;
    let held = pool.slots.try_acquire(&user("bob"), 1).expect("it is free");
    let mut execution = pool.execution();
    // The sender is dropped.
    execution.stop = tokio::sync::watch::channel(None).1;
    let ideas = Arc::new(ideas_spec());
    let ideas = IdeasContext { execution, ideas, permits: Arc::new(()) };
    let mut waiting = pool.runner.ideas(ideas);
    assert!((&mut waiting).now_or_never().is_none(), "it has a slot");
    drop(held);
    drop(waiting.await);
    assert_eq!(pool.begun(), [BegunExecution { held: 1, stop: None }]);
}
