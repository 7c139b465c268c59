//! One execution of a trial.

use rollout_environment::Failure;
use rollout_gateway::agents::AgentPlan;
use rollout_protocol::error::{ErrorClass, ErrorType, TrialError};
use rollout_protocol::phase::Phase;
use rollout_protocol::record::{EnvironmentRecord, FormatDoubt, HarnessRecord, TrialRecord};
use rollout_protocol::spec::budget::ModelUse;
use tokio::sync::SemaphorePermit;

use super::artifacts::Artifacts;
use super::collect::{self, CollectedLogs, LogScope};
use super::outputs::TrialOutputs;
use super::rewards::RewardFiles;
use super::score::VerifierScore;
use super::step::StepRun;
use super::{TrialContext, preserve, setup, variables};
use crate::executor::{
    self, AttemptState, CleanArchive, EnvironmentFault, ExecutionServices, Finished,
    ManagedEnvironment, PhaseInterrupt, RecordFile, TaskPart, WorkRecipe, errors, wait_for_stop,
};
use crate::verifier::LOGS;
use crate::work::agent::{KeptSession, ModelCalls};

/// Runs one execution of a trial to its end. Must not be dropped before: the environment would stay
/// until a reaper finds that its owner is dead.
pub async fn run(ctx: TrialContext, services: &ExecutionServices) -> Finished<TrialRecord> {
    let ctx = variables::with_host_proxies(ctx, services);
    let planned = match setup::agent_plan(&ctx) {
        Ok(planned) => planned,
        // It involves neither an environment nor a service nor a disk.
        Err(error) => {
            let mut run = TrialRun::new(&ctx, services, AgentPlan::default());
            run.attempt.record_error(error);
            return run.into_finished(None).await;
        }
    };
    let kind = ctx.settings.environment.provider.kind();
    let recipe = || TrialRun {
        survived_error: planned.error.clone(),
        ..TrialRun::new(&ctx, services, planned.plan.clone())
    };
    executor::execute(&ctx.execution, services, kind, recipe).await
}

/// An execution in progress.
pub(super) struct TrialRun<'a> {
    pub(super) ctx: &'a TrialContext,
    pub(super) services: &'a ExecutionServices,
    /// The state of the attempt; its environment is the agent's.
    pub(super) attempt: AttemptState,
    /// The agent's plan for the first step.
    plan: AgentPlan,
    pub(super) outputs: TrialOutputs,
    /// The logs of the trial.
    pub(super) logs: Option<CleanArchive>,
    /// Logs of the verifier's own environment.
    pub(super) verifier_logs: Option<CleanArchive>,
    /// Logs of the steps' verifiers.
    pub(super) step_logs: Vec<RecordFile>,
    pub(super) artifacts: Artifacts,
    /// The result of the harness in the last step that ran it.
    pub(super) harness: Option<Box<HarnessRecord>>,
    /// The files of the harness in all steps.
    pub(super) harness_files: Vec<RecordFile>,
    /// The model calls of the agent.
    pub(super) models: ModelCalls,
    /// Whether the agent reaches the gateway from its environment.
    pub(super) serves_gateway: bool,
    /// The conversation of the agent `shell` between steps.
    pub(super) shell_session: KeptSession,
    /// Whether the image has the agent installed.
    pub(super) is_installed: bool,
    /// Whether a command of the agent ran, or began to: in the environment, or to install it in the
    /// image.
    pub(super) agent_began: bool,
    /// The result of verification.
    pub(super) score: Option<VerifierScore>,
    /// The steps with names that ran.
    pub(super) steps: Vec<StepRun>,
    /// An agent error after which the task was verified all the same.
    pub(super) survived_error: Option<TrialError>,
    /// The verifier's own environment, while it exists.
    pub(super) verifier_environment: Option<Box<ManagedEnvironment>>,
    /// The record of the last verifier environment that was removed, and the cost of all of them.
    pub(super) verifier_record: Option<EnvironmentRecord>,
    pub(super) removed_cost: f64,
    /// Parts of the task that the environments may still use.
    pub(super) parts: Vec<TaskPart>,
    /// Whether the test script succeeded, so that its reward is read with the logs.
    pub(super) verified: bool,
    /// The exit code of the test script.
    pub(super) test_exit: i32,
    /// Whether the agent failed in a step.
    pub(super) agent_failed: bool,
    /// Why the format of the task decides about a score, if it is a guess.
    pub(super) score_doubt: Option<FormatDoubt>,
    /// The fault of this host that the environment had when a collect hook failed.
    pub(super) hook_fault: Option<EnvironmentFault>,
}

impl<'a> TrialRun<'a> {
    pub(super) fn new(
        ctx: &'a TrialContext,
        services: &'a ExecutionServices,
        plan: AgentPlan,
    ) -> Self {
        Self {
            ctx,
            services,
            attempt: AttemptState::new(&ctx.execution),
            plan,
            outputs: TrialOutputs::new(&ctx.execution),
            logs: None,
            verifier_logs: None,
            step_logs: Vec::new(),
            artifacts: Artifacts::default(),
            harness: None,
            harness_files: Vec::new(),
            models: ModelCalls::default(),
            serves_gateway: false,
            shell_session: KeptSession::default(),
            is_installed: false,
            agent_began: false,
            score: None,
            steps: Vec::new(),
            survived_error: None,
            verifier_environment: None,
            verifier_record: None,
            removed_cost: 0.0,
            parts: Vec::new(),
            verified: false,
            test_exit: 0,
            agent_failed: false,
            score_doubt: None,
            hook_fault: None,
        }
    }

    /// Waits until an environment may be started.
    pub(super) async fn wait_for_start(&self) -> Result<(), PhaseInterrupt> {
        let Some(limiter) = &self.ctx.rate_limiter else { return Ok(()) };
        tokio::select! {
            biased;
            () = wait_for_stop(self.ctx.execution.stop.clone()) => Err(PhaseInterrupt::Drained),
            () = limiter.wait_for_start() => Ok(()),
        }
    }

    /// Waits until one more agent may run, if there is one to run.
    pub(super) async fn acquire_agent(
        &self,
        executes: bool,
    ) -> Result<Option<SemaphorePermit<'a>>, PhaseInterrupt> {
        let Some(limiter) = self.ctx.rate_limiter.as_deref().filter(|_| executes) else {
            return Ok(None);
        };
        tokio::select! {
            biased;
            () = wait_for_stop(self.ctx.execution.stop.clone()) => Err(PhaseInterrupt::Drained),
            permit = limiter.acquire_agent() => Ok(permit),
        }
    }

    async fn read_outputs(&mut self) -> Result<CollectedLogs, Failure> {
        if self.attempt.environment.tainted {
            self.attempt.environment.stop().await?;
        }
        let separate = self.verifier_logs.is_some() || !self.step_logs.is_empty();
        let what = if separate { LogScope::WithoutVerifier } else { LogScope::All };
        let wanted = RewardFiles::for_task(&self.ctx.task, &self.ctx.settings.verifier);
        let is_wanted = self.verified || !separate && self.is_exit_in_doubt();
        let wanted = is_wanted.then_some(&wanted);
        let file = self.outputs.scratch().join("logs.tar");
        Ok(collect::collect(
            self.attempt.environment.expect_running(),
            what,
            file,
            &self.attempt.redactor,
            wanted,
        )
        .await)
    }

    async fn apply_collected(&mut self, collected: CollectedLogs) {
        let score = collected.score.filter(|_| self.verified);
        let valid = score.as_ref().and_then(|score| score.as_ref().ok());
        self.compare_formats(valid, collected.other_score);
        match score {
            Some(Ok(score)) => self.score = Some(score),
            Some(Err(error)) => {
                let error = self.reward_error(error).await;
                self.attempt.record_error(error);
            }
            None => {}
        }
        let mut failures = vec![];
        failures.extend(collected.failure);
        self.logs = match (collected.logs, self.verifier_logs.take()) {
            (Some(logs), Some(separate)) => {
                let (logs, failure) = logs.join(separate, LOGS).await;
                failures.extend(failure);
                Some(logs)
            }
            (logs, separate) => logs.or(separate),
        };
        if let Some(logs) = self.logs.as_ref().filter(|logs| !logs.truncated) {
            self.models.set_logs(&self.ctx.agent, &logs.file);
        }
        for (why, shortage) in failures {
            self.attempt.secondary_errors.push(errors::output_lost(
                &why,
                shortage,
                &self.attempt.redactor,
            ));
        }
    }

    /// Decides which error is the cause. A failure of the infrastructure comes before an agent
    /// error that the trial survived.
    pub(super) fn settle_survived(&mut self) {
        let Some(survived) = self.survived_error.take() else { return };
        match &self.attempt.first_error {
            Some(first) if first.class == ErrorClass::Infrastructure => {
                self.attempt.secondary_errors.push(survived);
            }
            _ => {
                self.attempt.record_first_error(survived);
            }
        }
    }

    /// The cost of an environment so far.
    pub(super) fn environment_cost(&self, environment: Option<&ManagedEnvironment>) -> f64 {
        let rates = &self.ctx.settings.environment.rates;
        environment.map_or(0.0, |environment| environment.cost(rates))
    }
}

impl WorkRecipe for TrialRun<'_> {
    type Record = TrialRecord;

    fn attempt(&mut self) -> &mut AttemptState {
        &mut self.attempt
    }

    async fn phases(&mut self) -> Result<(), PhaseInterrupt> {
        let plan = std::mem::take(&mut self.plan);
        self.run_task_phases(plan).await
    }

    async fn collect(&mut self) {
        match self.read_outputs().await {
            Ok(collected) => self.apply_collected(collected).await,
            Err(failure) => {
                let why =
                    format!("cannot collect /logs, processes may still write: {}", failure.chain());
                self.attempt.record_not_collected(&why);
            }
        }
    }

    async fn settle_errors(&mut self) {
        self.settle_survived();
        self.blame_host().await;
    }

    fn with_phase(&mut self, error: TrialError) -> TrialError {
        self.with_error_phase(error)
    }

    fn second_environment(&mut self) -> Option<&mut ManagedEnvironment> {
        self.verifier_environment.as_deref_mut()
    }

    fn keeps_environments(&mut self) -> bool {
        let policy = self.ctx.settings.environment.preserve_env;
        let verdict = self.verdict(0.0, ModelUse::default());
        preserve::should_preserve(policy, &verdict, self.ctx.settings.verifier.disable)
    }

    async fn release(&mut self) {
        self.models.close().await;
    }

    async fn finished(self, stopped: Option<Phase>) -> Finished<TrialRecord> {
        self.into_finished(stopped).await
    }
}

/// Whether an error is of the trial itself, not of the end of its environment.
pub(super) fn is_trial_error(error: &TrialError) -> bool {
    error.kind != ErrorType::EnvironmentTeardownFailed
}
