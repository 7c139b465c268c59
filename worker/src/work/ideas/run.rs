//! One execution of a command that writes ideas.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use rollout_environment::Failure;
use rollout_gateway::CallFailure;
use rollout_gateway::agents;
use rollout_protocol::Timestamp;
use rollout_protocol::error::TrialError;
use rollout_protocol::phase::Phase;
use rollout_protocol::record::{CommandRecord, IdeasEnd, IdeasRecord};
use rollout_protocol::spec::eval::EvalStage;
use rollout_protocol::spec::timeout::seconds;

use super::IdeasContext;
use super::record;
use super::variables::{self, IdeasVariables, REPOSITORY, SCRIPT};
use crate::executor::errors::{self, ScriptError};
use crate::executor::{
    self, AttemptState, BuildLog, Capture, CleanArchive, ExecutionServices, Finished, NormalExit,
    PhaseInterrupt, ScriptEnd, ScriptLimit, ScriptRun, WorkRecipe, cost, wait_for_stop,
};
use crate::work::agent::{self, ModelCalls, PlannedScript};
use crate::work::eval::{CheckoutSlot, Repositories, failure};

/// The stage of the command, for permits and errors.
pub(super) const STAGE: EvalStage = EvalStage::Ideas;

/// Runs one execution to its end. Must not be dropped before: the environment would stay until a
/// reaper finds that its owner is dead.
pub async fn run(
    ctx: IdeasContext,
    services: &ExecutionServices,
    repositories: &Repositories,
) -> Finished<IdeasRecord> {
    let ctx = variables::with_host_proxies(ctx, services);
    let kind = ctx.ideas.settings.provider.kind();
    let recipe = || IdeasRun::new(&ctx, services, repositories);
    executor::execute(&ctx.execution, services, kind, recipe).await
}

/// An execution in progress.
pub(super) struct IdeasRun<'a> {
    pub(super) ctx: &'a IdeasContext,
    pub(super) services: &'a ExecutionServices,
    pub(super) repositories: &'a Repositories,
    pub(super) attempt: AttemptState,
    pub(super) variables: IdeasVariables,
    pub(super) capture: Option<Arc<Capture>>,
    pub(super) command: Option<CommandRecord>,
    pub(super) end: IdeasEnd,
    /// Whether the command succeeded.
    pub(super) succeeded: bool,
    pub(super) ideas: Option<CleanArchive>,
    pub(super) left_out: Vec<String>,
    pub(super) logs: Option<CleanArchive>,
    pub(super) reported_cost: Option<f64>,
    /// Model calls of the agent.
    pub(super) models: ModelCalls,
    /// Why they say nothing about the agent, if they do not.
    pub(super) call_failure: Option<CallFailure>,
    /// Whether the image has the agent installed.
    pub(super) is_installed: bool,
    /// Output of its installation in the environment.
    pub(super) install_capture: Option<Arc<Capture>>,
    pub(super) slot: Option<CheckoutSlot>,
    /// The log of the image build.
    pub(super) build_log: BuildLog,
}

impl<'a> IdeasRun<'a> {
    fn new(
        ctx: &'a IdeasContext,
        services: &'a ExecutionServices,
        repositories: &'a Repositories,
    ) -> Self {
        Self {
            ctx,
            services,
            repositories,
            attempt: AttemptState::new(&ctx.execution),
            variables: IdeasVariables::default(),
            capture: None,
            command: None,
            end: IdeasEnd::Failed,
            succeeded: false,
            ideas: None,
            left_out: Vec::new(),
            logs: None,
            reported_cost: None,
            models: ModelCalls::default(),
            call_failure: None,
            is_installed: false,
            install_capture: None,
            slot: None,
            build_log: BuildLog::new(&ctx.execution.scratch),
        }
    }

    /// Runs the command. Nothing that it started runs afterwards, or the environment is tainted.
    async fn run_command(&mut self) -> Result<(), PhaseInterrupt> {
        self.place_command().await?;
        let ran = match self.open_calls().await {
            Ok(()) => self.run_placed().await,
            Err(error) => Err(error),
        };
        self.close_calls().await;
        Ok(ran?)
    }

    async fn run_placed(&mut self) -> Result<(), TrialError> {
        let command = &self.ctx.ideas.command;
        let limit = command.timeout_sec.map_or(Duration::MAX, seconds);
        let redactor = self.attempt.redactor.clone();
        let scratch = &self.ctx.execution.scratch;
        let files = ["stdout.txt", "stderr.txt"].map(|name| scratch.join(name));
        let scratch_work = &self.ctx.execution.scratch_work;
        let capture = Arc::new(Capture::new(scratch, files, &redactor, scratch_work));
        self.capture = Some(Arc::clone(&capture));
        let (servers, argv) = (self.ctx.ideas.gateway.as_ref(), agents::bash(SCRIPT.to_owned()));
        let mut env = self.variables.command.clone();
        let told = agent::command::complete(&mut env, command, &self.models, limit);
        let mut script = PlannedScript {
            work: agent::command::work(command, servers, &self.models, argv)?,
            env,
            workdir: Some(REPOSITORY.to_owned()),
            user: None,
            limit,
            normal: NormalExit::Zero,
            keep_processes: false,
            clock: self.models.clock(&self.ctx.execution),
            told: Some(told),
        };
        let environment = self.attempt.running_environment();
        let placed = agent::place_limits(environment, &mut script).await;
        placed.map_err(|error| failure::command_error(error, STAGE, &redactor))?;
        let started_at = Timestamp::now();
        let environment = self.attempt.running_environment();
        let ran = agent::run_to_end(environment, script, capture.clone(), pending()).await;
        self.command = Some(ran.end.command_record(STAGE, started_at));
        self.record_cost(&ran).await;
        let ScriptRun { end, processes_left } = ran;
        let limit = ScriptLimit { limit, whose: Some("its") };
        let environment = self.attempt.running_environment();
        let ended = end.into_result(environment, &capture, limit, NormalExit::Zero).await;
        let ended = ScriptError::blame_proxy(self.attempt.environment.access_fault(), ended);
        let typed = |error| failure::command_error(error, STAGE, &redactor);
        let ended = ended.map(drop).map_err(typed);
        let ended = agent::command::check_answers(&self.models, STAGE, ended).await;
        if let Err(error) = agent::command::check_budget(&self.models, STAGE, ended) {
            self.record_processes_left(processes_left);
            return Err(error);
        }
        // A process in the background could still change the ideas.
        let environment = self.attempt.running_environment();
        let killed = executor::kill_processes(environment).await;
        let Some(left) = killed.or(processes_left) else { return Ok(()) };
        self.attempt.environment.tainted = true;
        Err(failure::command_error(ScriptError::ProcessesLeft(left), STAGE, &redactor))
    }

    /// Records processes of a command that may be alive.
    pub(super) fn record_processes_left(&mut self, left: Option<Failure>) {
        let Some(left) = left else { return };
        self.attempt.environment.tainted = true;
        let phase = self.attempt.timing.phase();
        let error = errors::processes_left(&left, phase, &self.attempt.redactor);
        self.attempt.secondary_errors.push(error);
    }

    /// Records the cost that the command reported, however it ended.
    async fn record_cost(&mut self, ran: &ScriptRun) {
        if ran.processes_left.is_some() || matches!(ran.end, ScriptEnd::Failed(_)) {
            return;
        }
        match cost::read_reported(self.attempt.running_environment()).await {
            Ok(cost) => self.reported_cost = cost,
            Err(why) => {
                let why = format!("cannot read the cost of the command: {why}");
                self.attempt.record_not_collected(&why);
            }
        }
    }
}

impl WorkRecipe for IdeasRun<'_> {
    type Record = IdeasRecord;

    fn attempt(&mut self) -> &mut AttemptState {
        &mut self.attempt
    }

    async fn phases(&mut self) -> Result<(), PhaseInterrupt> {
        self.attempt.end_phase()?;
        self.attempt.enter(Phase::EnvironmentSetup);
        self.setup().await?;
        self.attempt.end_phase()?;
        self.install_agent().await?;
        tokio::select! {
            biased;
            () = self.ctx.permits.acquire(STAGE) => {}
            () = wait_for_stop(self.ctx.execution.stop.clone()) => return Err(PhaseInterrupt::Drained),
        }
        self.attempt.enter(Phase::AgentExecution);
        let ended = self.run_command().await;
        if !self.attempt.environment.tainted {
            self.ctx.permits.release(STAGE);
        }
        self.succeeded = ended.is_ok();
        ended
    }

    async fn collect(&mut self) {
        self.collect_logs().await;
        if self.succeeded
            && let Err(error) = self.collect_ideas().await
        {
            let error = error.in_phase(Phase::Collection);
            self.attempt.record_error(agent::blame_server(self.call_failure, error));
        }
    }

    /// A command without an idea does not count against its agent when its environment was removed, the proxy
    /// of its allowed hosts failed, or a disk of this host was full meanwhile, unless the command itself filled
    /// the disk beyond its own limit.
    async fn settle_errors(&mut self) {
        if self.end == IdeasEnd::Failed {
            let captures = self.capture.as_deref().into_iter().collect();
            self.attempt.blame_host(self.services, captures, "command", "").await;
        }
    }

    async fn release(&mut self) {
        self.close_calls().await;
        if let Some(slot) = self.slot.take() {
            slot.return_cleaned().await;
        }
    }

    fn start_over(&mut self) {
        self.ctx.permits.start_over();
    }

    async fn finished(self, stopped: Option<Phase>) -> Finished<IdeasRecord> {
        record::finished(self, stopped).await
    }
}
