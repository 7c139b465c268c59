//! One execution of a trial.

use rollout_protocol::error::{ErrorClass, ErrorType, TrialError};
use rollout_protocol::phase::Phase;
use rollout_protocol::record::{EnvironmentRecord, TrialRecord};
use tokio::sync::SemaphorePermit;

use super::artifacts::Artifacts;
use super::collect::{self, Collected, What};
use super::outputs::Outputs;
use super::rewards::Wanted;
use super::score::Score;
use super::step::StepRun;
use super::{TrialContext, preserve, setup};
use crate::agents::AgentPlan;
use crate::environment::Failure;
use crate::executor::{
    self, Attempt, CleanArchive, Finished, Halt, ManagedEnvironment, Recipe, RecordFile, TaskPart,
    TrialServices, errors, stopped,
};
use crate::verifier::LOGS;

/// Runs one execution of a trial to its end. Must not be dropped before: the environment would stay
/// until a reaper finds its owner dead.
pub async fn run(ctx: TrialContext, services: &TrialServices) -> Finished<TrialRecord> {
    let plan = match setup::plan(&ctx) {
        Ok(plan) => plan,
        // It concerns neither an environment nor a service nor a disk.
        Err(error) => {
            let mut run = Run::new(&ctx, services, AgentPlan::default());
            run.attempt.fail(error);
            return run.into_finished(None);
        }
    };
    let kind = ctx.settings.environment.provider.kind();
    let recipe = || Run::new(&ctx, services, plan.clone());
    executor::execute(&ctx.execution, services, kind, recipe).await
}

/// One execution under way.
pub(super) struct Run<'a> {
    pub(super) ctx: &'a TrialContext,
    pub(super) services: &'a TrialServices,
    /// The state of the attempt; its environment is the agent's.
    pub(super) attempt: Attempt,
    /// The agent's part of the first step.
    plan: AgentPlan,
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
    /// An error of the agent after which the task was verified all the same.
    pub(super) survived: Option<TrialError>,
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
    fn new(ctx: &'a TrialContext, services: &'a TrialServices, plan: AgentPlan) -> Self {
        Self {
            ctx,
            services,
            attempt: Attempt::new(&ctx.execution),
            plan,
            outputs: Outputs::new(ctx.execution.scratch.clone()),
            logs: None,
            apart_logs: None,
            step_logs: Vec::new(),
            artifacts: Artifacts::default(),
            score: None,
            steps: Vec::new(),
            survived: None,
            apart: None,
            apart_record: None,
            spent: 0.0,
            parts: Vec::new(),
            verified: false,
            test_exit: 0,
        }
    }

    /// Waits until an environment may be begun.
    pub(super) async fn may_start(&self) -> Result<(), Halt> {
        let Some(pacing) = &self.ctx.pacing else { return Ok(()) };
        tokio::select! {
            biased;
            () = stopped(self.ctx.execution.stop.clone()) => Err(Halt::Drained),
            () = pacing.start() => Ok(()),
        }
    }

    /// Waits until one more agent may execute, if there is anything to execute.
    pub(super) async fn turn(&self, executes: bool) -> Result<Option<SemaphorePermit<'a>>, Halt> {
        let Some(pacing) = self.ctx.pacing.as_deref().filter(|_| executes) else { return Ok(None) };
        tokio::select! {
            biased;
            () = stopped(self.ctx.execution.stop.clone()) => Err(Halt::Drained),
            turn = pacing.agent() => Ok(turn),
        }
    }

    async fn read_outputs(&mut self) -> Result<Collected, Failure> {
        if self.attempt.environment.tainted {
            self.attempt.environment.stop().await?;
        }
        let apart = self.apart_logs.is_some() || !self.step_logs.is_empty();
        let what = if apart { What::WithoutVerifier } else { What::All };
        let wanted = Wanted::of(self.ctx.task.format, &self.ctx.settings.verifier);
        let wanted = self.verified.then_some(&wanted);
        let file = self.outputs.scratch().join("logs.tar");
        Ok(collect::collect(
            self.attempt.environment.present(),
            what,
            file,
            &self.attempt.redactor,
            wanted,
        )
        .await)
    }

    async fn take(&mut self, collected: Collected) {
        match collected.score {
            Some(Ok(score)) => self.score = Some(score),
            Some(Err(error)) => {
                let error = self.no_reward(error);
                self.attempt.fail(error);
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
            self.attempt.later.push(errors::output_lost(&why, shortage, &self.attempt.redactor));
        }
    }

    /// Which error stands beside the reward, or in its place. What we could not do prevented a
    /// reward more than what the agent could not.
    pub(super) fn settle_survived(&mut self) {
        let Some(survived) = self.survived.take() else { return };
        match &self.attempt.first {
            Some(first) if first.class == ErrorClass::Infrastructure => {
                self.attempt.later.push(survived);
            }
            _ => {
                self.attempt.fail_before_all(survived);
            }
        }
    }

    /// The cost of an environment so far.
    pub(super) fn cost_of(&self, environment: Option<&ManagedEnvironment>) -> f64 {
        let rates = &self.ctx.settings.environment.rates;
        environment.map_or(0.0, |environment| environment.cost(rates))
    }
}

impl Recipe for Run<'_> {
    type Record = TrialRecord;

    fn attempt(&mut self) -> &mut Attempt {
        &mut self.attempt
    }

    async fn phases(&mut self) -> Result<(), Halt> {
        let plan = std::mem::take(&mut self.plan);
        self.phases_of_task(plan).await
    }

    async fn collect(&mut self) {
        match self.read_outputs().await {
            Ok(collected) => self.take(collected).await,
            Err(failure) => {
                let why = format!("/logs: processes may still write: {}", failure.chain());
                self.attempt.not_collected(&why);
            }
        }
    }

    async fn settle_errors(&mut self) {
        self.settle_survived();
        self.blame_disk().await;
    }

    fn in_phase(&mut self, error: TrialError) -> TrialError {
        self.placed(error)
    }

    fn second_environment(&mut self) -> Option<&mut ManagedEnvironment> {
        self.apart.as_deref_mut()
    }

    fn keeps_environments(&mut self) -> bool {
        let policy = self.ctx.settings.environment.preserve_env;
        let verdict = self.verdict(0.0);
        preserve::should_preserve(policy, &verdict, self.ctx.settings.verifier.disable)
    }

    fn finished(self, stopped: Option<Phase>) -> Finished<TrialRecord> {
        self.into_finished(stopped)
    }
}

/// Whether an error is of the trial itself, not of the end of its environment.
pub(super) fn is_of_trial(error: &TrialError) -> bool {
    error.kind != ErrorType::EnvironmentTeardownFailed
}
