//! Drives the phases of one execution and guarantees what must hold on every path: whatever has an
//! environment is collected and torn down, a panic is an error like another, the first cause stays
//! the first, and something is always said at the end.

use std::panic::AssertUnwindSafe;

use futures_util::FutureExt as _;
use rollout_protocol::error::{ErrorClass, ErrorType, TrialError};
use rollout_protocol::phase::Phase;
use rollout_protocol::record::EnvironmentRecord;
use rollout_protocol::wire::control::StopLevel;
use tokio::sync::{SemaphorePermit, watch};

use super::artifacts::Artifacts;
use super::collect::{self, Collected, Logs, What};
use super::course::{Course, Halt};
use super::failure;
use super::files::TaskPart;
use super::outputs::Outputs;
use super::record::Ended;
use super::rewards::Wanted;
use super::score::Score;
use super::site::Site;
use super::step::StepRun;
use super::teardown::{self, Torn};
use super::timing::Timing;
use super::{CapturedFile, Finished, TrialContext, TrialServices, setup};
use crate::environment::Failure;
use crate::secrets::Redactor;
use crate::supervise::panic_message;

/// Runs one execution of a trial to its end. Must not be dropped before: the environment would stay
/// until a reaper finds its owner dead.
pub async fn run(ctx: TrialContext, services: &TrialServices) -> Finished {
    let mut run = Run::new(&ctx, services);
    let plan = match setup::plan(&ctx) {
        Ok(plan) => plan,
        Err(error) => {
            run.fail(error);
            return Finished::Verdict(run.finish(None));
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
    run.teardown(stopped).await;
    let had_environment = run.main.was_created();
    let draft = run.finish(stopped.then_some(phase));
    if stopped {
        Finished::Stopped { phase, draft: had_environment.then_some(draft) }
    } else {
        Finished::Verdict(draft)
    }
}

/// One execution under way.
pub(super) struct Run<'a> {
    pub(super) ctx: &'a TrialContext,
    pub(super) services: &'a TrialServices,
    pub(super) timing: Timing,
    pub(super) redactor: Redactor,
    pub(super) outputs: Outputs,
    /// The logs of the trial.
    pub(super) logs: Option<Logs>,
    /// Those of the verifier's own environment.
    pub(super) apart_logs: Option<Logs>,
    /// Those of the steps' verifiers.
    pub(super) step_logs: Vec<CapturedFile>,
    pub(super) artifacts: Artifacts,
    /// What verification came to.
    pub(super) score: Option<Score>,
    /// The steps with names that ran.
    pub(super) steps: Vec<StepRun>,
    /// The first cause of failure.
    pub(super) first: Option<TrialError>,
    /// An error of the agent after which the task was verified all the same.
    pub(super) survived: Option<TrialError>,
    /// Everything that went wrong after it or beside it.
    pub(super) later: Vec<TrialError>,
    /// The agent's environment.
    pub(super) main: Site,
    /// The verifier's own, while there is one.
    pub(super) apart: Option<Box<Site>>,
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
            main: Site::default(),
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
        if self.main.environment().is_none() {
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
                self.later.push(failure::not_collected(&why, &self.redactor));
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
        Ok(collect::collect(self.main.up(), what, file, &self.redactor, wanted).await)
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
                let (logs, failure) = logs.and(apart).await;
                failures.extend(failure);
                Some(logs)
            }
            (logs, apart) => logs.or(apart),
        };
        for why in failures {
            self.later.push(failure::not_collected(&why, &self.redactor));
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
    async fn teardown(&mut self, stopped: bool) {
        self.settle_errors();
        if self.main.is_empty() && self.apart.is_none() {
            return;
        }
        self.enter(Phase::Teardown);
        let verifier = &self.ctx.settings.verifier;
        let policy = self.ctx.settings.environment.preserve_env;
        let verdict = self.verdict(0.0);
        let keep = !stopped && teardown::should_preserve(policy, &verdict, verifier.disable);
        let mut torn = self.main.teardown(keep, &self.redactor).await;
        self.torn(torn, stopped);
        if let Some(site) = self.apart.as_deref_mut() {
            torn = site.teardown(keep, &self.redactor).await;
            self.torn(torn, stopped);
        }
    }

    fn torn(&mut self, (torn, late): (Torn, Option<TrialError>), stopped: bool) {
        self.later.extend(late);
        if let Some(failure) = &torn.failure {
            let error = failure::teardown(failure, &self.redactor);
            if stopped {
                self.later.push(error);
            } else {
                self.fail(error);
            }
        }
    }

    /// What the life of an environment cost.
    pub(super) fn cost_of(&self, site: Option<&Site>) -> f64 {
        let rates = &self.ctx.settings.environment.rates;
        let used = site.and_then(Site::used);
        used.map_or(0.0, |(resources, lived)| rates.cost(&resources, lived.as_secs_f64()))
    }

    /// Everything that is known, as a record.
    fn finish(self, stopped: Option<Phase>) -> super::Draft {
        let ended = if stopped.is_some() { Ended::Stopped } else { Ended::Itself };
        self.draft(ended)
    }
}

/// Whether an error is of the trial itself, not of the end of its environment.
pub(super) fn is_of_trial(error: &TrialError) -> bool {
    error.kind != ErrorType::EnvironmentTeardownFailed
}

/// Comes true when the execution must end at once.
pub(super) async fn killed(stop: watch::Receiver<Option<StopLevel>>) {
    reached(stop, StopLevel::Kill).await;
}

/// Comes true when the execution must end, be it at the next opportunity.
async fn stopped(stop: watch::Receiver<Option<StopLevel>>) {
    reached(stop, StopLevel::Drain).await;
}

async fn reached(mut stop: watch::Receiver<Option<StopLevel>>, wanted: StopLevel) {
    let reached = stop.wait_for(|level| *level >= Some(wanted)).await.is_ok();
    if !reached {
        // Nobody can stop it any more.
        std::future::pending::<()>().await;
    }
}
