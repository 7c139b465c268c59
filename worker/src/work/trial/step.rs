//! One step of a task: the agent, its artifacts, the verification. A task without steps of its own
//! is one step without a name.

use std::sync::Arc;

use rollout_base::supervise;
use rollout_gateway::agents::{AgentWork, PriorConversation};
use rollout_protocol::error::{ErrorClass, ErrorCode, TrialError};
use rollout_protocol::phase::Phase;
use rollout_protocol::record::{HarnessRecord, StepRecord};
use rollout_protocol::spec::agent::AgentKind;
use rollout_protocol::spec::task::{AfterAgentError, NetworkPolicy, StepSpec};
use rollout_protocol::spec::timeout::seconds;
use rollout_protocol::{Timestamp, limits};

use super::artifacts::{self, CollectedArtifacts};
use super::collect::{self, LogScope};
use super::failure::{self, RewardError, TestEnd};
use super::harness::HarnessMonitor;
use super::rewards::RewardFiles;
use super::run::TrialRun;
use super::score::VerifierScore;
use super::{TrialContext, variables, verify};
use crate::executor::errors::{self, ScriptError, ScriptStage, SetupError};
use crate::executor::{self, CleanArchive, FileRole, PhaseInterrupt, RecordFile};
use crate::work::agent::{ScriptFailure, ScriptWork, ShellAgent, run_agent_script};

/// A step with a name that ran, or began to.
#[derive(Debug)]
pub(super) struct StepRun {
    pub(super) name: String,
    pub(super) score: Option<VerifierScore>,
    pub(super) error: Option<TrialError>,
    /// Start and end of the agent, and of its verification.
    pub(super) times: [Option<(Timestamp, Option<Timestamp>)>; 2],
    /// The result of the harness.
    pub(super) harness: Option<Box<HarnessRecord>>,
}

impl StepRun {
    /// Converts it to its record.
    pub(super) fn into_record(self) -> StepRecord {
        let VerifierScore { reward, rewards } = self.score.unwrap_or_default();
        let [agent, verifier] = self.times;
        let began = |times: Option<(Timestamp, Option<Timestamp>)>| times.map(|(began, _)| began);
        let ended = |times: Option<(Timestamp, Option<Timestamp>)>| times.and_then(|(_, end)| end);
        StepRecord {
            name: self.name,
            reward,
            rewards,
            error: self.error,
            agent_execution_started_at: began(agent),
            agent_execution_ended_at: ended(agent),
            verifier_started_at: began(verifier),
            verifier_ended_at: ended(verifier),
            logs: None,
            harness: self.harness,
        }
    }
}

/// The network policy of a step's agent.
pub(super) fn agent_network(ctx: &TrialContext, step: &StepSpec) -> NetworkPolicy {
    let of_task = step.agent.network.as_ref().unwrap_or(&ctx.task.environment.network);
    ctx.agent.network(of_task)
}

impl TrialRun<'_> {
    /// Runs a step; returns whether the following steps run.
    pub(super) async fn run_step(
        &mut self,
        index: usize,
        step: &StepSpec,
        execute: Option<AgentWork>,
    ) -> Result<bool, PhaseInterrupt> {
        if let Some(name) = &step.name {
            self.attempt.timing.begin_step();
            let (name, times) = (name.clone(), [None; 2]);
            let (score, error, harness) = (None, None, None);
            self.steps.push(StepRun { name, score, error, times, harness });
            Box::pin(self.prepare_step(index, step)).await?;
        }
        let ctx = self.ctx;
        let watched = Box::pin(self.watch_directories(step)).await;
        let error = self.run_agent(step, execute).await?;
        Box::pin(self.collect_changes(step, watched)).await;
        let last = index + 1 == ctx.task.steps.len();
        let mut collected = Ok(CollectedArtifacts::default());
        if artifacts::has_artifacts(ctx, &step.artifacts) || !step.verifier.collect.is_empty() {
            collected = Box::pin(self.collect_artifacts(step, last)).await;
            if step.verifier.environment.is_none() {
                self.artifacts.remove_unmasked().await;
            }
        }
        if let Some(error) = error {
            self.agent_failed = true;
            if ctx.task.rules.after_agent_error == AfterAgentError::EndTrial {
                self.attempt.secondary_errors.extend(collected.err());
                return Err(error.into());
            }
            self.record_survived_error(error);
        }
        let taken = collected?;
        if ctx.settings.verifier.disable {
            return Ok(true);
        }
        self.attempt.end_phase()?;
        self.attempt.enter(Phase::Verification);
        let score = match step.verifier.environment.as_deref() {
            Some(own) => {
                let verified = Box::pin(self.verify_separately(step, own, taken, last)).await;
                self.artifacts.remove_unmasked().await;
                Some(verified?)
            }
            None if step.name.is_some() => Some(Box::pin(self.verify_step(step)).await?),
            // The reward is read with the logs.
            None => {
                self.run_tests(step).await?;
                self.verified = true;
                None
            }
        };
        Ok(self.record_score(step, score))
    }

    /// Runs the agent. Returns an error of the agent after which its environment can still be used;
    /// every process of it is dead then.
    async fn run_agent(
        &mut self,
        step: &StepSpec,
        execute: Option<AgentWork>,
    ) -> Result<Option<TrialError>, PhaseInterrupt> {
        self.attempt.end_phase()?;
        let permit = self.acquire_agent(execute.is_some()).await?;
        self.attempt.enter(Phase::AgentExecution);
        let limit = self.ctx.agent.limits.execute(step.agent.timeout_sec);
        let limit = limit.map_or(std::time::Duration::MAX, seconds);
        let index = self.steps.len().saturating_sub(1);
        if index > 0 {
            let served = Box::pin(self.serve_gateway()).await;
            served.map_err(|error| error.into_error(&self.attempt.redactor))?;
        }
        let prior = Box::pin(self.prior_conversation(index, step)).await?;
        let work = execute.map(|work| self.script_work(work, prior)).transpose()?;
        if work.is_none() {
            // The turn of an agent that does nothing is over.
            self.agent_began = true;
            return Ok(None);
        }
        let network = agent_network(self.ctx, step);
        self.set_network(Some(&network), ScriptStage::Execute).await?;
        // The network decides its variables.
        let Some(script) = self.agent_script(step, work, limit) else { return Ok(None) };
        let mut harness = Box::pin(self.place_harness(step, limit)).await?;
        let capture = self.start_capture(ScriptStage::Execute, step);
        let environment = self.attempt.environment.expect_running();
        let redactor = &self.attempt.redactor;
        let mut monitor = HarnessMonitor::new(self.ctx, harness.as_ref(), index, redactor);
        let overdue = monitor.wait_until_overdue(environment);
        self.agent_began = true;
        let ended = run_agent_script(environment, script, capture.clone(), overdue).await;
        drop(permit);
        self.attempt.timing.leave();
        let ended = self.script_result(ScriptStage::Execute, ended).map(drop);
        let ended = self.models.check_answers(ended).await;
        let ended = self.models.check_budget(ended);
        let environment = &self.attempt.environment;
        let readable = (!environment.tainted).then(|| environment.expect_running());
        monitor.finish(readable, harness.as_mut()).await;
        let ended = match harness {
            Some(placed) => Box::pin(self.collect_harness(step, placed, ended, &capture)).await,
            None => ended,
        };
        match ended {
            Ok(()) => Ok(None),
            // Nothing can be verified in an environment that exceeded its storage limit.
            Err(error) if error.code == ErrorCode::STORAGE_EXCEEDED => Err(error.into()),
            Err(error) if error.class == ErrorClass::Agent && !self.attempt.environment.tainted => {
                Ok(Some(error))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The conversation that the agent `shell` continues in a step.
    async fn prior_conversation(
        &self,
        index: usize,
        step: &StepSpec,
    ) -> Result<Option<Arc<PriorConversation>>, TrialError> {
        let agent = &self.ctx.agent;
        let is_shell = matches!(agent.kind, AgentKind::Shell(_));
        let Some(blob) = agent.trajectory(index, step).filter(|_| is_shell) else {
            return Ok(None);
        };
        let most = limits::TRAJECTORY_BYTES;
        let bytes = self.services.files.bytes("the trajectory", blob, most).await;
        let bytes =
            bytes.map_err(|error| SetupError::Files(error).into_error(&self.attempt.redactor))?;
        let parsed = supervise::blocking(move || PriorConversation::parse(&bytes)).await;
        let prior = parsed.map_err(|error| {
            failure::task_invalid(&format!("the trajectory cannot be read: {error}"))
        })?;
        Ok(Some(Arc::new(prior)))
    }

    fn script_work(
        &self,
        work: AgentWork,
        prior: Option<Arc<PriorConversation>>,
    ) -> Result<ScriptWork, TrialError> {
        match work {
            AgentWork::Command(argv) => Ok(ScriptWork::Command(argv)),
            AgentWork::Shell => {
                let (agent, servers) = (&self.ctx.agent, self.ctx.settings.gateway.as_ref());
                let gateway = self.models.gateway();
                let agent = ShellAgent::new(agent, servers, gateway, &self.shell_session);
                let missing = || failure::task_invalid("the agent `shell` has no model server");
                let agent = agent.ok_or_else(missing)?;
                Ok(ScriptWork::Shell(agent.with_prior(prior)))
            }
        }
    }

    /// Sets the network policy of a phase in the agent's environment; the environment's own policy
    /// applies when the phase has none.
    pub(super) async fn set_network(
        &mut self,
        phase: Option<&NetworkPolicy>,
        stage: ScriptStage,
    ) -> Result<(), TrialError> {
        let policy = phase.unwrap_or(&self.ctx.task.environment.network);
        let reached = self.attempt.environment.set_network(policy).await;
        reached.map_err(|failure| {
            ScriptError::Network(failure).into_error(stage, &self.attempt.redactor)
        })
    }

    /// Runs the tests in the agent's environment.
    async fn run_tests(&mut self, step: &StepSpec) -> Result<(), TrialError> {
        if self.ctx.settings.verifier.kill_agent_processes
            && let Some(failure) =
                executor::kill_processes(self.attempt.environment.expect_running()).await
        {
            let left = ScriptFailure::from(ScriptError::ProcessesLeft(failure));
            return self.script_result(ScriptStage::Verify, Err(left)).map(drop);
        }
        self.set_network(step.verifier.network.as_ref(), ScriptStage::Verify).await?;
        let capture = self.start_capture(ScriptStage::Verify, step);
        let mut env = variables::verifier_env(self.ctx, &self.services.variables, step);
        env.extend(self.attempt.environment.sidecar_env());
        let target = (self.attempt.environment.expect_running(), step);
        let files = &self.services.files;
        let ended = verify::run_tests(self.ctx, files, target, Vec::new(), env, capture).await;
        self.test_exit = self.script_result(ScriptStage::Verify, ended)?.code;
        Ok(())
    }

    /// Runs the tests of one of several steps in the agent's environment.
    async fn verify_step(&mut self, step: &StepSpec) -> Result<VerifierScore, PhaseInterrupt> {
        let verified = self.run_tests(step).await;
        self.collect_verifier_logs(verified).await.map_err(PhaseInterrupt::Failed)
    }

    /// Collects the logs of the tests where they ran, and their score if they succeeded.
    pub(super) async fn collect_verifier_logs(
        &mut self,
        verified: Result<(), TrialError>,
    ) -> Result<VerifierScore, TrialError> {
        let wanted = RewardFiles::for_task(&self.ctx.task, &self.ctx.settings.verifier);
        let wanted = (verified.is_ok() || self.is_exit_in_doubt()).then_some(&wanted);
        let file = self.outputs.scratch().join(format!("verifier-{}.tar", self.steps.len()));
        let environment_in_use =
            self.verifier_environment.as_deref().unwrap_or(&self.attempt.environment);
        let (environment, redactor) = (environment_in_use.expect_running(), &self.attempt.redactor);
        if environment_in_use.tainted {
            // Remaining processes could still write: the logs are not worth a risk.
            return verified.map(|()| VerifierScore::default());
        }
        let collected =
            collect::collect(environment, LogScope::Verifier, file, redactor, wanted).await;
        if let Some((why, shortage)) = collected.failure {
            self.attempt.secondary_errors.push(errors::output_lost(&why, shortage, redactor));
        }
        if let Some(logs) = collected.logs {
            self.keep_logs(logs);
        }
        let score = collected.score.filter(|_| verified.is_ok());
        let valid = score.as_ref().and_then(|score| score.as_ref().ok());
        self.compare_formats(valid, collected.other_score);
        verified?;
        match score.expect("it was asked for") {
            Ok(score) => Ok(score),
            Err(error) => Err(self.reward_error(error).await),
        }
    }

    fn keep_logs(&mut self, logs: CleanArchive) {
        match self.steps.len() {
            0 => self.verifier_logs = Some(logs),
            steps => {
                let role = |counts| FileRole::StepLogs { step: steps - 1, counts };
                self.step_logs.push(RecordFile::archive(logs, role));
            }
        }
    }

    /// The error of a missing or invalid reward.
    pub(super) async fn reward_error(&self, error: RewardError) -> TrialError {
        let last_words = self.outputs.last_words(ScriptStage::Verify).await;
        let end = TestEnd { code: self.test_exit, last_words };
        error.into_error(&end, &self.attempt.redactor)
    }

    /// Records the score of a step; returns whether the following steps run.
    fn record_score(&mut self, step: &StepSpec, score: Option<VerifierScore>) -> bool {
        let Some(run) = self.steps.last_mut() else {
            self.score = score;
            return true;
        };
        let continues = score.as_ref().is_none_or(|score| score.reaches(&step.min_reward));
        run.score = score;
        continues
    }

    /// Records an agent error after which the task is verified all the same.
    fn record_survived_error(&mut self, error: TrialError) {
        if let Some(run) = self.steps.last_mut() {
            run.error = Some(error.clone());
        }
        match &self.survived_error {
            None => self.survived_error = Some(error),
            Some(_) => self.attempt.secondary_errors.push(error),
        }
    }

    /// Finishes a step with a name. Where the format continues after errors, an error other than
    /// the infrastructure's ends the steps, and those that were verified count.
    pub(super) fn finish_step(
        &mut self,
        step: &StepSpec,
        ended: Result<bool, PhaseInterrupt>,
    ) -> Result<bool, PhaseInterrupt> {
        if step.name.is_none() {
            return ended;
        }
        self.attempt.timing.leave();
        let times =
            [Phase::AgentExecution, Phase::Verification].map(|p| self.attempt.timing.latest(p));
        let error = match &ended {
            Err(PhaseInterrupt::Failed(error)) => Some(self.with_error_phase(error.clone())),
            _ => None,
        };
        let run = self.steps.last_mut().expect("it has begun");
        run.times = times;
        let Some(error) = error else { return ended };
        run.error.get_or_insert_with(|| error.clone());
        let counts = self.ctx.task.rules.after_agent_error == AfterAgentError::Verify;
        if !counts || error.class == ErrorClass::Infrastructure {
            return Err(error.into());
        }
        self.attempt.record_error(error);
        Ok(false)
    }

    /// The steps that ran, or began to, and were not verified.
    pub(super) fn unverified_steps(&self) -> Vec<String> {
        let unverified = self.steps.iter().filter(|step| step.score.is_none());
        unverified.map(|step| step.name.clone()).collect()
    }

    /// Computes the score of all steps with names.
    pub(super) fn score_steps(&mut self) {
        let (task, key) = (&self.ctx.task, self.ctx.settings.verifier.reward_key.as_deref());
        if !self.steps.is_empty() {
            let scores = self.steps.iter().map(|step| step.score.as_ref());
            self.score = VerifierScore::from_steps(scores, task.strategy, key);
        }
    }
}
