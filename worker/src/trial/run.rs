//! Drives the phases of one execution and guarantees what must hold on every path: whatever has an
//! environment is collected and torn down, a panic is an error like another, the first cause stays
//! the first, and something is always said at the end.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt as _;
use rollout_protocol::error::TrialError;
use rollout_protocol::phase::Phase;
use rollout_protocol::record::EnvironmentRecord;
use rollout_protocol::wire::control::StopLevel;
use tokio::sync::watch;
use tokio::time::Instant;

use super::collect::{self, Collected};
use super::course::Course;
use super::failure;
use super::files::TaskPart;
use super::outputs::Outputs;
use super::record::Ended;
use super::teardown::{self, Torn};
use super::timing::Timing;
use super::{Finished, TrialContext, TrialServices, setup, within};
use crate::environment::{Environment, Failure, FailureKind};
use crate::secrets::Redactor;
use crate::supervise::{Task, panic_message};

/// How much longer an environment that came too late is waited for, to be removed.
const LATE_LIMIT: Duration = Duration::from_secs(60);

/// Longest a stop of an environment with unkillable processes may take.
const STOP_LIMIT: Duration = Duration::from_secs(60);

/// Runs one execution of a trial to its end. Must not be dropped before: the environment would stay
/// until a reaper finds its owner dead.
pub async fn run(ctx: TrialContext, services: &TrialServices) -> Finished {
    let mut run = Run::new(&ctx, services);
    let plan = match setup::plan(&ctx) {
        Ok(plan) => plan,
        Err(error) => {
            run.fail(error);
            return Finished::Verdict(run.finish(None, Torn::default()));
        }
    };
    let (mut stopped, mut killed) = match run.course(plan).await {
        Course::Ran => (false, false),
        Course::Drained => (true, false),
        Course::Killed => (true, true),
    };
    let phase = run.timing.phase();
    if !killed {
        killed = run.collection().await;
        stopped |= killed;
    }
    let torn = run.teardown(stopped).await;
    let had_environment = run.created.is_some();
    let draft = run.finish(stopped.then_some(phase), torn);
    if stopped {
        Finished::Stopped { phase, draft: had_environment.then_some(draft) }
    } else {
        Finished::Verdict(draft)
    }
}

/// Where an execution's environment is.
pub(super) enum Place {
    None,
    /// On its way: it must be waited for and removed, whatever happens meanwhile.
    Creating(Task<Result<Box<dyn Environment>, Failure>>),
    Up(Box<dyn Environment>),
}

/// One execution under way.
pub(super) struct Run<'a> {
    pub(super) ctx: &'a TrialContext,
    pub(super) services: &'a TrialServices,
    pub(super) timing: Timing,
    pub(super) redactor: Redactor,
    pub(super) outputs: Outputs,
    pub(super) collected: Collected,
    /// The first cause of failure.
    pub(super) first: Option<TrialError>,
    /// Everything that went wrong after it or beside it.
    pub(super) later: Vec<TrialError>,
    /// When the environment came into being.
    pub(super) created: Option<Instant>,
    pub(super) environment: Option<EnvironmentRecord>,
    /// Variables of the agent's scripts.
    pub(super) agent_env: BTreeMap<String, String>,
    /// Variables of the task's tests.
    pub(super) verifier_env: BTreeMap<String, String>,
    pub(super) place: Place,
    /// Parts of the task that the environment may still use.
    pub(super) parts: Vec<TaskPart>,
    /// Processes may still be alive: nothing more runs, nothing is read.
    pub(super) tainted: bool,
    /// The test script ended well.
    pub(super) verified: bool,
}

impl<'a> Run<'a> {
    fn new(ctx: &'a TrialContext, services: &'a TrialServices) -> Self {
        Self {
            ctx,
            services,
            timing: Timing::begin(),
            redactor: Redactor::default(),
            outputs: Outputs::new(ctx.scratch.clone()),
            collected: Collected::default(),
            first: None,
            later: Vec::new(),
            created: None,
            environment: None,
            agent_env: BTreeMap::new(),
            verifier_env: BTreeMap::new(),
            place: Place::None,
            parts: Vec::new(),
            tainted: false,
            verified: false,
        }
    }

    pub(super) fn enter(&mut self, phase: Phase) {
        self.timing.enter(phase);
        self.ctx.phases.entered(phase);
    }

    /// Keeps an error: the first is the cause.
    pub(super) fn fail(&mut self, error: TrialError) {
        if self.first.is_none() {
            self.first = Some(error);
        } else {
            self.later.push(error);
        }
    }

    /// Collects what there is. Whether a kill ended it.
    async fn collection(&mut self) -> bool {
        let Place::Up(environment) = &self.place else { return false };
        self.timing.enter(Phase::Collection);
        self.ctx.phases.entered(Phase::Collection);
        let (tainted, wants_reward) = (self.tainted, self.verified);
        let work = async {
            if tainted {
                within(STOP_LIMIT, "stopping the environment", environment.stop()).await?;
            }
            let scratch = self.outputs.scratch();
            let redactor = &self.redactor;
            Ok::<_, Failure>(
                collect::collect(environment.as_ref(), scratch, redactor, wants_reward).await,
            )
        };
        let collected = tokio::select! {
            biased;
            () = killed(self.ctx.stop.clone()) => return true,
            collected = AssertUnwindSafe(work).catch_unwind() => collected,
        };
        match collected {
            Ok(Ok(collected)) => self.take(collected),
            Ok(Err(failure)) => {
                let why = format!("/logs: processes may still write: {}", failure.chain());
                self.later.push(failure::not_collected(&why, &self.redactor));
            }
            Err(panic) => self.panicked(&panic_message(panic.as_ref())),
        }
        false
    }

    fn take(&mut self, mut collected: Collected) {
        if let Some(Err(error)) = collected.reward.take_if(|reward| reward.is_err()) {
            let error = error.into_error(&self.redactor);
            self.fail(error);
        }
        if let Some(why) = collected.failure.take() {
            self.later.push(failure::not_collected(&why, &self.redactor));
        }
        self.collected = collected;
    }

    /// Keeps or removes the environment, also one that is still on its way. What was stopped runs
    /// again: its environment is never kept.
    async fn teardown(&mut self, stopped: bool) -> Torn {
        if matches!(self.place, Place::None) {
            return Torn::default();
        }
        self.enter(Phase::Teardown);
        if let Err(error) = self.arrive(LATE_LIMIT).await {
            self.later.push(error);
        }
        if matches!(self.place, Place::Creating(_)) {
            let message = "the environment is still being created: it is left to the reaper";
            let failure = Some(Failure::new(FailureKind::LeftBehind, message));
            return Torn { preserved: None, failure };
        }
        let Place::Up(environment) = &self.place else { return Torn::default() };
        let verifier = &self.ctx.settings.verifier;
        let policy = self.ctx.settings.environment.preserve_env;
        let verdict = self.verdict(0.0);
        let keep = !stopped
            && !self.tainted
            && teardown::should_preserve(policy, &verdict, verifier.disable);
        teardown::teardown(environment.as_ref(), keep).await
    }

    /// Everything that is known, as a record.
    fn finish(mut self, stopped: Option<Phase>, torn: Torn) -> super::Draft {
        if let Some(failure) = &torn.failure {
            let error = failure::teardown(failure, &self.redactor);
            if stopped.is_none() {
                self.fail(error);
            } else {
                self.later.push(error);
            }
        }
        if let Some(environment) = &mut self.environment {
            environment.preserved = torn.preserved;
        }
        let ended = if stopped.is_some() { Ended::Stopped } else { Ended::Itself };
        self.draft(ended)
    }
}

/// Comes true when the execution must end at once.
pub(super) async fn killed(mut stop: watch::Receiver<Option<StopLevel>>) {
    let kill = stop.wait_for(|level| *level >= Some(StopLevel::Kill)).await.is_ok();
    if !kill {
        // Nobody can stop it any more.
        std::future::pending::<()>().await;
    }
}
