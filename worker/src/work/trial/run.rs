//! Drives the phases of one execution and guarantees what must hold on every path: whatever has an
//! environment is collected and torn down, a panic is an error like another, the first cause stays
//! the first, and something is always said at the end.

use std::panic::AssertUnwindSafe;

use futures_util::FutureExt as _;
use rollout_protocol::error::{ErrorClass, ErrorType, TrialError};
use rollout_protocol::phase::Phase;
use rollout_protocol::record::{EnvironmentRecord, TrialRecord};
use tokio::sync::SemaphorePermit;
use tokio::time::Instant;

use super::artifacts::Artifacts;
use super::collect::{self, Collected, What};
use super::course::{Course, Halt};
use super::outputs::Outputs;
use super::rewards::Wanted;
use super::score::Score;
use super::step::StepRun;
use super::{TrialContext, preserve, setup};
use crate::environment::Failure;
use crate::executor::{
    CleanArchive, Finished, ManagedEnvironment, Park, RecordFile, Removed, TaskPart, Timing,
    TrialServices, Waited, Waiter, attempts, errors, killed, stopped,
};
use crate::secrets::Redactor;
use crate::supervise::panic_message;
use crate::verifier::LOGS;

/// Runs one execution of a trial to its end. Must not be dropped before: the environment would stay
/// until a reaper finds its owner dead.
pub async fn run(ctx: TrialContext, services: &TrialServices) -> Finished<TrialRecord> {
    let provider = setup::provider(&ctx, services).ok();
    let who = Waiter {
        phases: &*ctx.phases,
        stop: &ctx.stop,
        slot: &*ctx.slot,
        max_park: ctx.max_park,
        files: &services.files,
    };
    attempts(who, provider.as_deref(), |park| Box::pin(attempt(&ctx, services, park))).await
}

/// Runs the execution once; nothing when it met a service that gave no answer, waited for it, and
/// is to begin anew.
async fn attempt(
    ctx: &TrialContext,
    services: &TrialServices,
    park: &mut Park<'_>,
) -> Option<Finished<TrialRecord>> {
    let mut run = Run::new(ctx, services);
    let plan = match setup::plan(ctx) {
        Ok(plan) => plan,
        Err(error) => {
            run.fail(error);
            return Some(run.finished(None));
        }
    };
    if park.begin().await == Waited::Stopped {
        return Some(run.finished(Some(Phase::Queued)));
    }
    let (mut stopped, mut killed) = match run.course(plan).await {
        Course::Ran => (false, false),
        Course::Drained => (true, false),
        Course::Killed => (true, true),
    };
    let phase = run.timing.phase();
    if !stopped {
        match run.silence(park).await {
            Silence::None => {}
            Silence::Over => return None,
            Silence::Stopped => (stopped, killed) = (true, park.is_down()),
        }
    }
    if !killed && run.main.up().is_some() {
        park.steady().await;
        killed = run.collection().await;
        stopped |= killed;
        if !stopped {
            // A reward that could not be read.
            match run.silence(park).await {
                Silence::None => {}
                Silence::Over => return None,
                Silence::Stopped => stopped = true,
            }
        }
    }
    if !stopped {
        run.settle_errors();
        run.blame_disk().await;
    }
    run.teardown(stopped, park).await;
    Some(run.finished(stopped.then_some(phase)))
}

/// What became of an attempt that may have failed because a service gave no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Silence {
    /// Another reason, or it lasted too long: the attempt's end counts.
    None,
    /// The service answers again, and nothing of the attempt is left.
    Over,
    /// The execution was stopped meanwhile.
    Stopped,
}

/// One execution under way.
pub(super) struct Run<'a> {
    pub(super) ctx: &'a TrialContext,
    pub(super) services: &'a TrialServices,
    pub(super) timing: Timing,
    pub(super) redactor: Redactor,
    pub(super) outputs: Outputs,
    /// The logs of the trial.
    pub(super) logs: Option<CleanArchive>,
    /// Those of the verifier's own environment.
    pub(super) apart_logs: Option<CleanArchive>,
    /// Those of the steps' verifiers.
    pub(super) step_logs: Vec<RecordFile>,
    pub(super) artifacts: Artifacts,
    /// What verification came to.
    pub(super) score: Option<Score>,
    /// The steps with names that ran.
    pub(super) steps: Vec<StepRun>,
    /// When it began.
    pub(super) began: Instant,
    /// The first cause of failure.
    pub(super) first: Option<TrialError>,
    /// An error of the agent after which the task was verified all the same.
    pub(super) survived: Option<TrialError>,
    /// Everything that went wrong after it or beside it.
    pub(super) later: Vec<TrialError>,
    /// The agent's environment.
    pub(super) main: ManagedEnvironment,
    /// The verifier's own, while there is one.
    pub(super) apart: Option<Box<ManagedEnvironment>>,
    /// The last one of the verifier's own that is gone, and what those cost.
    pub(super) apart_record: Option<EnvironmentRecord>,
    pub(super) spent: f64,
    /// Parts of the task that the environments may still use.
    pub(super) parts: Vec<TaskPart>,
    /// The test script ended well, and its reward comes with the logs.
    pub(super) verified: bool,
    /// The code that the test script ended with.
    pub(super) test_exit: i32,
}

impl<'a> Run<'a> {
    fn new(ctx: &'a TrialContext, services: &'a TrialServices) -> Self {
        Self {
            ctx,
            services,
            timing: Timing::begin(),
            began: Instant::now(),
            redactor: Redactor::default(),
            outputs: Outputs::new(ctx.scratch.clone()),
            logs: None,
            apart_logs: None,
            step_logs: Vec::new(),
            artifacts: Artifacts::default(),
            score: None,
            steps: Vec::new(),
            first: None,
            survived: None,
            later: Vec::new(),
            main: ManagedEnvironment::default(),
            apart: None,
            apart_record: None,
            spent: 0.0,
            parts: Vec::new(),
            verified: false,
            test_exit: 0,
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

    /// Waits for the service by whose silence the attempt failed, if it did.
    async fn silence(&mut self, park: &mut Park<'_>) -> Silence {
        let Some(error) = self.first.clone() else { return Silence::None };
        let Some(on) = park.cause(&error, self.main.was_created()).await else {
            return Silence::None;
        };
        let waited = park.wait(on, !self.main.is_empty()).await;
        match waited {
            Waited::Back => {
                self.undo().await;
                Silence::Over
            }
            Waited::TooLong => {
                self.first = Some(park.given_up(on, error));
                Silence::None
            }
            Waited::Stopped => {
                self.later.extend(self.first.take());
                Silence::Stopped
            }
        }
    }

    /// Leaves nothing of the attempt.
    async fn undo(&mut self) {
        for site in std::iter::once(&mut self.main).chain(self.apart.as_deref_mut()) {
            let removed = site.remove().await;
            if let Some(failure) = removed.failure {
                tracing::warn!("an environment is left for later: {}", failure.chain());
            }
            if let Some(why) = removed.not_created {
                let error = why.into_error(&self.redactor);
                tracing::debug!("an environment that never came: {error}");
            }
        }
        // What cannot be removed is written over, or in the way with an error of its own.
        let _left = tokio::fs::remove_dir_all(self.outputs.scratch()).await;
    }

    /// Waits until an environment may be begun.
    pub(super) async fn may_start(&self) -> Result<(), Halt> {
        let Some(pacing) = &self.ctx.pacing else { return Ok(()) };
        tokio::select! {
            biased;
            () = stopped(self.ctx.stop.clone()) => Err(Halt::Drained),
            () = pacing.start() => Ok(()),
        }
    }

    /// Waits until one more agent may execute, if there is anything to execute.
    pub(super) async fn turn(&self, executes: bool) -> Result<Option<SemaphorePermit<'a>>, Halt> {
        let Some(pacing) = self.ctx.pacing.as_deref().filter(|_| executes) else { return Ok(None) };
        tokio::select! {
            biased;
            () = stopped(self.ctx.stop.clone()) => Err(Halt::Drained),
            turn = pacing.agent() => Ok(turn),
        }
    }

    /// Collects what there is. Whether a kill ended it.
    async fn collection(&mut self) -> bool {
        if self.main.up().is_none() {
            return false;
        }
        self.enter(Phase::Collection);
        let stop = self.ctx.stop.clone();
        let collected = tokio::select! {
            biased;
            () = killed(stop) => return true,
            collected = AssertUnwindSafe(self.collect()).catch_unwind() => collected,
        };
        match collected {
            Ok(Ok(collected)) => self.take(collected).await,
            Ok(Err(failure)) => {
                let why = format!("/logs: processes may still write: {}", failure.chain());
                self.later.push(errors::not_collected(&why, &self.redactor));
            }
            Err(panic) => self.panicked(&panic_message(panic.as_ref())),
        }
        false
    }

    async fn collect(&mut self) -> Result<Collected, Failure> {
        if self.main.tainted {
            self.main.stop().await?;
        }
        let apart = self.apart_logs.is_some() || !self.step_logs.is_empty();
        let what = if apart { What::WithoutVerifier } else { What::All };
        let wanted = Wanted::of(self.ctx.task.format, &self.ctx.settings.verifier);
        let wanted = self.verified.then_some(&wanted);
        let file = self.outputs.scratch().join("logs.tar");
        Ok(collect::collect(self.main.present(), what, file, &self.redactor, wanted).await)
    }

    async fn take(&mut self, collected: Collected) {
        match collected.score {
            Some(Ok(score)) => self.score = Some(score),
            Some(Err(error)) => {
                let error = self.no_reward(error);
                self.fail(error);
            }
            None => {}
        }
        let mut failures = vec![];
        failures.extend(collected.failure);
        self.logs = match (collected.logs, self.apart_logs.take()) {
            (Some(logs), Some(apart)) => {
                let (logs, failure) = logs.and(apart, LOGS).await;
                failures.extend(failure);
                Some(logs)
            }
            (logs, apart) => logs.or(apart),
        };
        for (why, shortage) in failures {
            self.later.push(errors::output_lost(&why, shortage, &self.redactor));
        }
    }

    /// Which error stands beside the reward, or in its place. What we could not do prevented a
    /// reward more than what the agent could not.
    fn settle_errors(&mut self) {
        let Some(survived) = self.survived.take() else { return };
        match &self.first {
            Some(first) if first.class == ErrorClass::Infrastructure => self.later.push(survived),
            _ => {
                let first = self.first.replace(survived);
                self.later.splice(0..0, first);
            }
        }
    }

    /// Keeps or removes the environments, also one that is still on its way. What was stopped runs
    /// again: its environments are never kept.
    async fn teardown(&mut self, stopped: bool, park: &mut Park<'_>) {
        self.settle_errors();
        if self.main.is_empty() && self.apart.is_none() {
            return;
        }
        self.enter(Phase::Teardown);
        let verifier = &self.ctx.settings.verifier;
        let policy = self.ctx.settings.environment.preserve_env;
        let verdict = self.verdict(0.0);
        let keep = !stopped && preserve::should_preserve(policy, &verdict, verifier.disable);
        let mut removed = vec![remove(&mut self.main, keep, park).await];
        if let Some(site) = self.apart.as_deref_mut() {
            removed.push(remove(site, keep, park).await);
        }
        for removed in removed {
            self.removed(removed, stopped);
        }
    }

    fn removed(&mut self, removed: Removed, stopped: bool) {
        self.later.extend(removed.not_created.map(|why| why.into_error(&self.redactor)));
        if let Some(failure) = &removed.failure {
            let error = errors::teardown(failure, &self.redactor);
            if stopped {
                self.later.push(error);
            } else {
                self.fail(error);
            }
        }
    }

    /// What the life of an environment cost.
    pub(super) fn cost_of(&self, environment: Option<&ManagedEnvironment>) -> f64 {
        let rates = &self.ctx.settings.environment.rates;
        environment.map_or(0.0, |environment| environment.cost(rates))
    }
}

/// Keeps or removes one environment, once more after an outage of what it lives in.
async fn remove(environment: &mut ManagedEnvironment, keep: bool, park: &mut Park<'_>) -> Removed {
    park.steady().await;
    let removed = environment.tear_down(keep).await;
    if removed.failure.is_none() || !park.engine_was_away().await {
        return removed;
    }
    park.steady().await;
    let again = environment.tear_down(keep).await;
    Removed { not_created: removed.not_created.or(again.not_created), ..again }
}

/// Whether an error is of the trial itself, not of the end of its environment.
pub(super) fn is_of_trial(error: &TrialError) -> bool {
    error.kind != ErrorType::EnvironmentTeardownFailed
}
