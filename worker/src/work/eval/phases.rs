//! The phases of an eval, from its checkout to the sweep.

use std::future::pending;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rollout_base::dependency::Dependency;
use rollout_environment::{Failure, Upload};
use rollout_gateway::agents;
use rollout_protocol::Timestamp;
use rollout_protocol::error::TrialError;
use rollout_protocol::phase::Phase;
use rollout_protocol::record::{CommandRecord, EvalEnd};
use rollout_protocol::spec::eval::{EvalCommand, EvalStage};
use rollout_protocol::spec::timeout::seconds;
use tokio::time::Instant;

use super::candidate::CandidateOutcome;
use super::checkout::Checkout;
use super::failure;
use super::run::EvalRun;
use super::variables::{self, REPOSITORY};
use crate::executor::errors::{self, ScriptError};
use crate::executor::{
    self, COPY_LIMIT, Capture, NormalExit, PhaseInterrupt, ScriptEnd, ScriptLimit, cost,
    wait_for_stop, with_timeout,
};
use crate::work::agent::{self, PlannedScript};

/// The time limit of a command.
#[derive(Debug, Clone, Copy)]
struct CommandLimit {
    timeout: Duration,
    /// The limit in messages. It is never the rest of the eval's time, so that equal evals have
    /// equal messages.
    message_limit: ScriptLimit,
}

impl EvalRun<'_> {
    pub(super) async fn run_phases(&mut self) -> Result<(), PhaseInterrupt> {
        let eval = self.ctx.eval.clone();
        self.attempt.end_phase()?;
        self.attempt.enter(Phase::EnvironmentSetup);
        let checkout = self.setup().await?;
        self.time_left = eval.timeout_sec.map(seconds);
        let commands = &eval.commands;
        self.run_stage(EvalStage::Implement, Some(&commands.implement)).await?;
        self.run_stage(EvalStage::Tests, commands.tests.as_ref()).await?;
        self.run_stage(EvalStage::Review, commands.review.as_ref()).await?;
        self.commit_candidate(&checkout).await?;
        self.enter_sweep_environment(checkout).await?;
        self.run_stage(EvalStage::Sweep, Some(&commands.sweep)).await?;
        self.sweep_succeeded = true;
        Ok(())
    }

    /// Runs a command, if there is one, as soon as it may begin.
    async fn run_stage(
        &mut self,
        stage: EvalStage,
        command: Option<&EvalCommand>,
    ) -> Result<(), PhaseInterrupt> {
        let Some(command) = command else { return Ok(()) };
        self.attempt.end_phase()?;
        self.install_agent(stage, command).await?;
        self.acquire_permit(stage).await?;
        let before = self.commands.len();
        let ran = self.run_command(stage, command).await;
        // Otherwise the command may still be running, as long as its environment exists.
        let is_over = |command: &CommandRecord| command.exit_code.is_some() || command.timed_out;
        if !self.attempt.environment.tainted && self.commands[before..].iter().all(is_over) {
            self.ctx.permits.release(stage);
        }
        ran
    }

    /// Waits until a command may begin.
    async fn acquire_permit(&mut self, stage: EvalStage) -> Result<(), PhaseInterrupt> {
        tokio::select! {
            biased;
            () = self.ctx.permits.acquire(stage) => {}
            () = wait_for_stop(self.ctx.execution.stop.clone()) => return Err(PhaseInterrupt::Drained),
        }
        let phase =
            if stage == EvalStage::Sweep { Phase::Verification } else { Phase::AgentExecution };
        if self.attempt.timing.phase() == phase {
            self.attempt.timing.enter(phase);
        } else {
            self.attempt.enter(phase);
        }
        Ok(())
    }

    /// Runs a command in the checkout.
    async fn run_command(
        &mut self,
        stage: EvalStage,
        command: &EvalCommand,
    ) -> Result<(), PhaseInterrupt> {
        self.place_command(stage, command).await?;
        let ran = match self.open_calls(stage, command).await {
            Ok(()) => self.run_placed(stage, command).await,
            Err(error) => Err(error),
        };
        self.close_calls().await;
        if stage == EvalStage::Implement {
            self.implement_failure = self.call_failure;
        }
        Ok(ran?)
    }

    /// Places the files of a command just before it, so that no earlier command can have changed
    /// them; so is the sweep's empty output directory.
    async fn place_command(
        &mut self,
        stage: EvalStage,
        command: &EvalCommand,
    ) -> Result<(), TrialError> {
        let commands = Upload::FreshDir { path: variables::COMMANDS.to_owned() };
        let mut uploads = vec![commands, cost::fresh_directory()];
        if stage == EvalStage::Sweep {
            uploads.push(Upload::FreshDir { path: variables::output_dir(self.ctx) });
        }
        if let Some(agent) = &command.agent {
            uploads.extend(agent::command::uploads(agent, &self.prompt_values(agent)));
            if stage == EvalStage::Review {
                uploads.push(Upload::FreshDir { path: variables::REVIEW.to_owned() });
            }
        }
        let bytes = Bytes::copy_from_slice(agent::command::script(command).as_bytes());
        let path = variables::script_path(stage);
        uploads.push(Upload::File { path, bytes, executable: true });
        let placing = self.attempt.running_environment().copy_to(uploads);
        let placed = with_timeout(COPY_LIMIT, "placing a command", placing).await;
        placed.map_err(|failure| {
            let error = ScriptError::Place { what: "the command", failure };
            failure::command_error(error, stage, &self.attempt.redactor)
        })
    }

    /// Runs a command whose files are in the environment.
    async fn run_placed(
        &mut self,
        stage: EvalStage,
        command: &EvalCommand,
    ) -> Result<(), TrialError> {
        let redactor = self.attempt.redactor.clone();
        let limit = self.command_limit(command);
        let capture = self.start_capture(stage.as_str());
        let mut script = self.planned_script(stage, command, limit.timeout)?;
        let environment = self.attempt.running_environment();
        let placed = agent::place_limits(environment, &mut script).await;
        placed.map_err(|error| failure::command_error(error, stage, &redactor))?;
        let (started_at, stopped_before) = (Timestamp::now(), self.stopped_time());
        let began = Instant::now();
        let environment = self.attempt.running_environment();
        let ran = agent::run_to_end(environment, script, capture.clone(), pending()).await;
        // Only commands use up the time limit of the eval, and not in an outage of the engine or of a
        // model server.
        let stopped = self.stopped_time().saturating_sub(stopped_before);
        let spent = began.elapsed().saturating_sub(stopped);
        self.time_left = self.time_left.map(|left| left.saturating_sub(spent));
        self.commands.push(ran.end.command_record(stage, started_at));
        self.record_processes_left(ran.processes_left);
        self.record_cost(stage, &ran.end).await;
        let ended = ran
            .end
            .into_result(
                self.attempt.running_environment(),
                &capture,
                limit.message_limit,
                NormalExit::Zero,
            )
            .await;
        let ended = ScriptError::blame_proxy(self.attempt.environment.access_fault(), ended);
        let typed = |error| failure::command_error(error, stage, &redactor);
        let ended = ended.map(drop).map_err(typed);
        let ended = agent::command::check_answers(&self.models, stage, ended).await;
        agent::command::check_budget(&self.models, stage, ended)?;
        self.read_decision(stage, command).await
    }

    fn planned_script(
        &self,
        stage: EvalStage,
        command: &EvalCommand,
        limit: Duration,
    ) -> Result<PlannedScript, TrialError> {
        let eval = &self.ctx.eval;
        let mut argv = agents::bash(variables::script_path(stage));
        argv.extend(variables::arguments(eval, stage));
        let mut env = self.variables.for_stage(stage);
        let told = agent::command::complete(&mut env, command, &self.models, limit);
        Ok(PlannedScript {
            work: agent::command::work(command, eval.gateway.as_ref(), &self.models, argv)?,
            env,
            workdir: Some(REPOSITORY.to_owned()),
            user: eval.user.clone(),
            limit,
            normal: NormalExit::Zero,
            keep_processes: false,
            clock: self.models.clock(&self.ctx.execution),
            told: Some(told),
        })
    }

    /// Records processes of a command that may be alive.
    pub(super) fn record_processes_left(&mut self, left: Option<Failure>) {
        let Some(left) = left else { return };
        self.attempt.environment.tainted = true;
        let phase = self.attempt.timing.phase();
        let error = errors::processes_left(&left, phase, &self.attempt.redactor);
        self.attempt.secondary_errors.push(error);
    }

    /// Adds the cost that a command reports, however the command ended.
    async fn record_cost(&mut self, stage: EvalStage, end: &ScriptEnd) {
        if self.attempt.environment.tainted || matches!(end, ScriptEnd::Failed(_)) {
            return;
        }
        match cost::read_reported(self.attempt.running_environment()).await {
            Ok(None) => {}
            Ok(Some(cost)) => self.reported_cost = Some(self.reported_cost.unwrap_or(0.0) + cost),
            Err(why) => {
                let why = format!("cannot read the cost of {}: {why}", stage.as_str());
                self.attempt.record_not_collected(&why);
            }
        }
    }

    /// Total time that does not count for commands: the environment's engine or a model server did
    /// not answer.
    fn stopped_time(&self) -> Duration {
        let engine = self.attempt.running_environment().dependency();
        let models = self.models.stopped_time().min(self.ctx.execution.max_park);
        engine.map_or(Duration::ZERO, Dependency::downtime) + models
    }

    /// The time limit of a command: its own, and at most the rest of the eval's.
    fn command_limit(&self, command: &EvalCommand) -> CommandLimit {
        let own = command.timeout_sec.map_or(Duration::MAX, seconds);
        let (timeout, limit, whose) = match (self.time_left, self.ctx.eval.timeout_sec.map(seconds))
        {
            (Some(left), Some(whole)) if left < own => (left, whole, "the eval's"),
            _ => (own, own, "its"),
        };
        CommandLimit { timeout, message_limit: ScriptLimit { limit, whose: Some(whose) } }
    }

    pub(super) fn start_capture(&mut self, directory: &'static str) -> Arc<Capture> {
        let dir: PathBuf = self.ctx.execution.scratch.join(directory);
        let files = ["stdout.txt", "stderr.txt"].map(|name| dir.join(name));
        let execution = &self.ctx.execution;
        let (root, work) = (&execution.scratch, &execution.scratch_work);
        let capture = Capture::new(root, files, &self.attempt.redactor, work);
        let capture = Arc::new(capture);
        self.captures.push((directory, capture.clone()));
        capture
    }

    /// Extracts the tree and makes the commit. Nothing runs any more while the tree is read, so
    /// that the sweep measures exactly the committed files.
    async fn commit_candidate(&mut self, checkout: &Checkout) -> Result<(), PhaseInterrupt> {
        self.attempt.end_phase()?;
        let redactor = self.attempt.redactor.clone();
        if let Some(left) = executor::kill_processes(self.attempt.running_environment()).await {
            self.attempt.environment.tainted = true;
            let error = ScriptError::ProcessesLeft(left);
            return Err(failure::command_error(error, EvalStage::Implement, &redactor).into());
        }
        let reading = self.attempt.running_environment().copy_from(REPOSITORY);
        let stream = with_timeout(COPY_LIMIT, "reading the checkout", reading).await;
        let stream = stream.map_err(|failure| {
            failure::command_error(ScriptError::Exec(failure), EvalStage::Implement, &redactor)
        })?;
        let Some(stream) = stream else {
            return Err(failure::missing_checkout().into());
        };
        let work = async {
            let tree = checkout.extract(stream).await?;
            let to = self.ctx.execution.scratch.join("candidate.bundle");
            checkout.commit(&tree, &self.ctx.eval.message, &redactor, &to).await
        };
        match work.await.map_err(|error| failure::files_error(&error, &redactor))? {
            CandidateOutcome::NoChanges(changes) => {
                if let Some(error) = self.unanswered_error() {
                    return Err(error.into());
                }
                (self.changes, self.end) = (Some(changes), EvalEnd::NoChanges);
                Err(PhaseInterrupt::Complete)
            }
            CandidateOutcome::Candidate(candidate) => {
                self.changes = Some(candidate.changes);
                self.possible_secrets.extend(candidate.possible_secrets.iter().cloned());
                self.candidate = Some(candidate);
                Ok(())
            }
        }
    }
}
