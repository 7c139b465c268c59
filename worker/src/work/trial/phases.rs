//! The phases up to the last verification: setup, install, and the task's steps.

use std::sync::Arc;

use rollout_environment::proxies;
use rollout_environment::{
    BuildProxies, CommandExit, EnvironmentPurpose, Image, ImageSource, Provider,
};
use rollout_gateway::agents::{self, AgentPlan};
use rollout_protocol::Timestamp;
use rollout_protocol::error::{ErrorType, TrialError};
use rollout_protocol::phase::Phase;
use rollout_protocol::spec::task::{AfterAgentError, StepSpec, TaskEnvironment};
use rollout_protocol::spec::timeout::seconds;

use super::run::TrialRun;
use super::setup::PreparedEnvironment;
use super::{setup, variables};
use crate::executor::errors::{self, ScriptError, ScriptStage, SetupError};
use crate::executor::{Capture, ManagedEnvironment, NormalExit, PhaseInterrupt, RequestedImage};
use crate::work::agent::{
    PlannedScript, ScriptEnv, ScriptFailure, ScriptWork, ToldLimits, run_agent_script,
};
use crate::work::readiness::{self, DeclaredStart};

impl TrialRun<'_> {
    /// Runs the phases up to the last verification.
    pub(super) async fn run_task_phases(
        &mut self,
        mut plan: AgentPlan,
    ) -> Result<(), PhaseInterrupt> {
        self.attempt.end_phase()?;
        self.attempt.enter(Phase::EnvironmentSetup);
        self.set_up_environment(&plan).await?;
        self.attempt.end_phase()?;
        self.attempt.enter(Phase::AgentSetup);
        let ctx = self.ctx;
        let limit = ctx.agent.limits.install_sec.unwrap_or(ctx.task.install_sec);
        let install = plan.install.take().filter(|_| !self.is_installed);
        let install = install.map(ScriptWork::Command);
        let install = self.agent_script(ctx.step(), install, seconds(limit));
        // Only the agent itself plans its time.
        let install = install.map(|script| PlannedScript { told: None, ..script });
        let has_codes = agents::has_install_codes(&ctx.agent.kind);
        self.run_agent_script(ScriptStage::Install { has_codes }, install).await?;
        if ctx.settings.install_only {
            return Ok(());
        }
        let mut execute = plan.execute.take();
        for (index, step) in ctx.task.steps.iter().enumerate() {
            if index > 0 {
                execute =
                    agents::plan(&ctx.agent, ctx.task.format, step).unwrap_or_default().execute;
            }
            let ended = self.run_step(index, step, execute.take()).await;
            if !self.finish_step(step, ended)? {
                break;
            }
        }
        self.score_steps();
        Ok(())
    }

    /// Adds the current phase to an error whose type does not imply one.
    pub(super) fn with_error_phase(&self, error: TrialError) -> TrialError {
        let anywhere = error.kind == ErrorType::InternalError || error.is_unsupported();
        if anywhere { error.in_phase(self.attempt.timing.phase()) } else { error }
    }

    async fn set_up_environment(&mut self, plan: &AgentPlan) -> Result<(), PhaseInterrupt> {
        let redactor = variables::redactor(self.ctx, &self.services.variables);
        self.attempt.redactor = redactor
            .map_err(|unset| SetupError::Unset(unset).into_error(&self.attempt.redactor))?;
        let ready = self.prepare_environment(plan).await;
        let PreparedEnvironment { provider, request, services, workdir_files } =
            ready.map_err(|error| error.into_error(&self.attempt.redactor))?;
        self.wait_for_start().await?;
        let created = self.attempt.environment.create_beside(provider, request, services).await;
        created.map_err(|why| why.into_error(&self.attempt.redactor))?;
        self.ctx.execution.phases.parked(None);
        if let Some(part) = workdir_files {
            let environment = self.attempt.environment.expect_running();
            let placed = setup::place_workdir_files(environment, &part).await;
            self.parts.push(part);
            placed.map_err(|error| error.into_error(&self.attempt.redactor))?;
        }
        let declared = DeclaredStart::Task(&self.ctx.task.environment);
        let capture = || self.attempt.unrecorded.start(&self.attempt.redactor);
        let ready = readiness::wait_until_ready(&mut self.attempt.environment, declared, capture);
        let ready = Box::pin(ready).await;
        ready.map_err(|error| error.into_error(&self.attempt.redactor))?;
        let opened = Box::pin(self.open_gateway()).await;
        opened.map_err(|error| error.into_error(&self.attempt.redactor))?;
        Ok(())
    }

    /// Prepares everything that the agent's environment is created from.
    async fn prepare_environment(
        &mut self,
        plan: &AgentPlan,
    ) -> Result<PreparedEnvironment, SetupError> {
        let (ctx, services) = (self.ctx, self.services);
        let (task, provider) = (&ctx.task.environment, setup::provider(ctx, services)?);
        if !provider.is_in_memory() {
            ctx.execution.create_scratch().await.map_err(SetupError::Disk)?;
        }
        let (source, image) = self.prepare_image(task, provider.as_ref()).await?;
        let image = Box::pin(self.install_agent(provider.as_ref(), image)).await;
        let uploads = setup::uploads(ctx, services, plan, &mut self.parts).await?;
        self.fetch_tests().await?;
        let (purpose, image) = (EnvironmentPurpose::Agent, (source, image));
        let request = setup::create_request(ctx, services, task, purpose, image, uploads);
        let workdir_files = setup::workdir_files(task, &services.files).await?;
        let services =
            setup::sidecars(task, &ctx.settings.compose_overlays, &services.files).await?;
        Ok(PreparedEnvironment { provider, request, services, workdir_files })
    }

    /// Pulls or builds the image of an environment.
    pub(super) async fn prepare_image(
        &mut self,
        environment: &TaskEnvironment,
        provider: &dyn Provider,
    ) -> Result<(ImageSource, Image), SetupError> {
        let requested = RequestedImage { environment, settings: &self.ctx.settings.environment };
        let (source, part) = requested.source(&self.services.files).await?;
        self.parts.extend(part);
        let env = variables::environment_env(&self.services.variables, environment);
        let (proxies, labels) = (BuildProxies::of(&env), &self.ctx.execution.labels);
        let log = &mut self.outputs.build_log;
        let prepared = requested.prepare(provider, &source, proxies, labels, log).await;
        Ok((source, prepared?))
    }

    /// Fetches the tests before the agent begins: a later outage of the store costs no agent's
    /// work. Permanent errors are reported when the tests are needed.
    async fn fetch_tests(&mut self) -> Result<(), SetupError> {
        for step in &self.ctx.task.steps {
            let Some(tests) =
                step.files.tests.as_ref().filter(|_| !setup::has_tests_in_image(step))
            else {
                continue;
            };
            match self.services.files.archive("the tests", tests).await {
                Ok(part) => self.parts.push(part),
                Err(error) if error.is_store_unanswered() => return Err(SetupError::Files(error)),
                Err(_) => {}
            }
        }
        Ok(())
    }

    pub(super) fn start_capture(&mut self, stage: ScriptStage, step: &StepSpec) -> Arc<Capture> {
        self.outputs.start_capture(stage, step.name.as_deref(), &self.attempt.redactor)
    }

    /// A script of the agent, if it has one.
    pub(super) fn agent_script(
        &self,
        step: &StepSpec,
        work: Option<ScriptWork>,
        limit: std::time::Duration,
    ) -> Option<PlannedScript> {
        let mut env = self.agent_env(step);
        let budget = self.ctx.settings.budget.as_ref();
        let told = ToldLimits::new(limit, Timestamp::now(), budget);
        env.extend(told.variables());
        let script = |work| PlannedScript {
            work,
            env,
            workdir: None,
            user: step.agent.user.clone(),
            limit,
            normal: NormalExit::Zero,
            // One of its processes may be a service that is verified.
            keep_processes: self.ctx.task.rules.after_agent_error == AfterAgentError::Verify,
            clock: self.models.clock(&self.ctx.execution),
            told: Some(told),
        };
        work.map(script)
    }

    /// The variables of the agent's scripts. Those of services win: only services know their
    /// addresses.
    fn agent_env(&self, step: &StepSpec) -> ScriptEnv {
        let mut env = variables::agent_env(self.ctx, &self.services.variables, step);
        env.extend(self.attempt.environment.sidecar_env());
        let models = self.models.env();
        if self.attempt.environment.network_env().is_empty() {
            proxies::exempt(&mut env, models.values().map(String::as_str));
        }
        env.extend(models);
        let agent = &self.ctx.agent;
        let index = self.steps.len().saturating_sub(1);
        if agent.trajectory(index, step).is_some() {
            if agent.kind.runs_own_scripts() {
                for (name, file) in [
                    (agents::TRAJECTORY_VARIABLE, agents::TRAJECTORY_FILE),
                    (agents::CONVERSATION_VARIABLE, agents::CONVERSATION_FILE),
                ] {
                    env.insert(name.to_owned(), file.to_owned());
                }
            }
        } else if agent.task_options.resume_trajectory && index > 0 {
            env.insert(agents::RESUME_VARIABLE.to_owned(), "1".to_owned());
        }
        env
    }

    /// Runs the agent's install script.
    async fn run_agent_script(
        &mut self,
        stage: ScriptStage,
        script: Option<PlannedScript>,
    ) -> Result<(), PhaseInterrupt> {
        let Some(script) = script else { return Ok(()) };
        self.agent_began = true;
        let capture = self.outputs.start_capture(stage, None, &self.attempt.redactor);
        let ended = run_agent_script(
            self.attempt.environment.expect_running(),
            script,
            capture,
            std::future::pending(),
        )
        .await;
        self.script_result(stage, ended)?;
        Ok(())
    }

    /// The environment in which scripts currently run.
    pub(super) fn script_environment(&mut self) -> &mut ManagedEnvironment {
        self.verifier_environment.as_deref_mut().unwrap_or(&mut self.attempt.environment)
    }

    /// Interprets the end of a script.
    pub(super) fn script_result(
        &mut self,
        stage: ScriptStage,
        ended: Result<CommandExit, ScriptFailure>,
    ) -> Result<CommandExit, TrialError> {
        let (ended, processes_left) = match ended {
            Ok(exit) => (Ok(exit), None),
            Err(ScriptFailure { error, processes_left }) => (Err(error), processes_left),
        };
        let fault = self.script_environment().access_fault();
        let error = match ScriptError::blame_proxy(fault, ended) {
            Ok(exit) => return Ok(exit),
            Err(error) => error,
        };
        if let (ScriptStage::Verify, ScriptError::Exit { code, .. }) = (stage, &error) {
            self.test_exit = *code;
        }
        // The agent's processes live on, and the error itself says so.
        let tainted = processes_left.is_some() || matches!(error, ScriptError::ProcessesLeft(_));
        self.script_environment().tainted |= tainted;
        if let Some(failure) = processes_left {
            let phase = self.attempt.timing.phase();
            self.attempt.secondary_errors.push(errors::processes_left(
                &failure,
                phase,
                &self.attempt.redactor,
            ));
        }
        Err(error.into_error(stage, &self.attempt.redactor))
    }
}
