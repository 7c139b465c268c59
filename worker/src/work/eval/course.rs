//! The steps of an eval, from its checkout to the sweep.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rollout_protocol::Timestamp;
use rollout_protocol::phase::Phase;
use rollout_protocol::record::{CommandRecord, EvalEnd};
use rollout_protocol::spec::eval::{EvalCommand, EvalStage};
use rollout_protocol::spec::timeout::seconds;
use tokio::time::Instant;

use super::candidate::Outcome;
use super::checkout::Checkout;
use super::failure;
use super::run::Run;
use super::variables::{self, REPOSITORY};
use crate::dependency::Dependency;
use crate::environment::{ExecCommand, Upload};
use crate::executor::errors::{self, ScriptError};
use crate::executor::{
    self, COPY_LIMIT, Capture, End, Halt, Normal, ScriptLimit, cost, stopped, within,
};

/// How long a command may run.
#[derive(Debug, Clone, Copy)]
struct Limit {
    left: Duration,
    /// The rest of the eval's time is no part of messages, so that equal evals have equal ones.
    told: ScriptLimit,
}

impl Run<'_> {
    pub(super) async fn steps(&mut self) -> Result<(), Halt> {
        let eval = self.ctx.eval.clone();
        self.attempt.go_on()?;
        self.attempt.enter(Phase::EnvironmentSetup);
        let checkout = self.setup().await?;
        let limit = eval.timeout_sec.map(seconds);
        self.deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
        let commands = &eval.commands;
        self.command(EvalStage::Implement, Some(&commands.implement)).await?;
        self.command(EvalStage::Tests, commands.tests.as_ref()).await?;
        self.command(EvalStage::Review, commands.review.as_ref()).await?;
        self.candidate(&checkout).await?;
        self.set_apart(checkout).await?;
        self.command(EvalStage::Sweep, Some(&commands.sweep)).await?;
        self.swept = true;
        Ok(())
    }

    /// Runs a command, if there is one, when it may begin.
    async fn command(
        &mut self,
        stage: EvalStage,
        command: Option<&EvalCommand>,
    ) -> Result<(), Halt> {
        let Some(command) = command else { return Ok(()) };
        self.attempt.go_on()?;
        self.ticket(stage).await?;
        let before = self.commands.len();
        let ran = self.run_command(stage, command).await;
        // Otherwise it may be running still, as long as there is its environment.
        let is_over = |command: &CommandRecord| command.exit_code.is_some() || command.timed_out;
        if !self.attempt.environment.tainted && self.commands[before..].iter().all(is_over) {
            self.ctx.tickets.end(stage);
        }
        ran
    }

    /// Waits until a command may begin. That takes nothing of the eval's time.
    async fn ticket(&mut self, stage: EvalStage) -> Result<(), Halt> {
        let asked = Instant::now();
        tokio::select! {
            biased;
            () = self.ctx.tickets.begin(stage) => {}
            () = stopped(self.ctx.execution.stop.clone()) => return Err(Halt::Drained),
        }
        self.deadline = self.deadline.and_then(|deadline| deadline.checked_add(asked.elapsed()));
        let phase =
            if stage == EvalStage::Sweep { Phase::Verification } else { Phase::AgentExecution };
        if self.attempt.timing.phase() == phase {
            self.attempt.timing.enter(phase);
        } else {
            self.attempt.enter(phase);
        }
        Ok(())
    }

    /// Runs a command from the checkout. Its script is placed just before it, so that no command
    /// before it can have changed it; so is the sweep's empty output directory.
    async fn run_command(&mut self, stage: EvalStage, command: &EvalCommand) -> Result<(), Halt> {
        let script = variables::script(stage);
        let commands = Upload::FreshDir { path: variables::COMMANDS.to_owned() };
        let mut uploads = vec![commands, cost::room()];
        if stage == EvalStage::Sweep {
            uploads.push(Upload::FreshDir { path: variables::output(self.ctx) });
        }
        let bytes = command.script.clone().into();
        uploads.push(Upload::File { path: script.clone(), bytes, executable: true });
        let placing = self.attempt.up().copy_to(uploads);
        let placed = within(COPY_LIMIT, "placing a command", placing).await;
        let redactor = self.attempt.redactor.clone();
        placed.map_err(|failure| {
            let error = ScriptError::Place { what: "the command", failure };
            failure::command(error, stage, &redactor)
        })?;
        let limit = self.limit(command);
        let capture = self.capture(stage);
        let arguments = variables::arguments(&self.ctx.eval, stage);
        let argv = ["bash".to_owned(), script].into_iter().chain(arguments).collect();
        let (env, user) = (self.variables.of(stage), self.ctx.eval.user.clone());
        let command = ExecCommand { argv, env, workdir: Some(REPOSITORY.to_owned()), user };
        let (started_at, down_before) = (Timestamp::now(), self.downtime());
        let ran =
            executor::run(self.attempt.up(), command, limit.left, capture.clone(), Normal::Zero)
                .await;
        // The clock of the whole eval stands still with that of its command.
        let away = self.downtime().saturating_sub(down_before);
        self.deadline = self.deadline.and_then(|deadline| deadline.checked_add(away));
        self.commands.push(ran.end.record(stage, started_at));
        if let Some(left) = ran.left {
            self.attempt.environment.tainted = true;
            self.attempt.later.push(errors::processes_left(
                &left,
                self.attempt.timing.phase(),
                &redactor,
            ));
        }
        self.cost(stage, &ran.end).await;
        let ended = ran.end.judged(self.attempt.up(), &capture, limit.told, Normal::Zero).await;
        ended.map(drop).map_err(|error| failure::command(error, stage, &redactor).into())
    }

    /// Adds what a command reports that it cost, however it ended.
    async fn cost(&mut self, stage: EvalStage, end: &End) {
        if self.attempt.environment.tainted || matches!(end, End::Failed(_)) {
            return;
        }
        match cost::reported(self.attempt.up()).await {
            Ok(None) => {}
            Ok(Some(cost)) => self.reported = Some(self.reported.unwrap_or(0.0) + cost),
            Err(why) => {
                let why = format!("what {} reports that it cost: {why}", stage.as_str());
                self.attempt.not_collected(&why);
            }
        }
    }

    /// How long the engine of the environment gave no answer so far.
    fn downtime(&self) -> Duration {
        self.attempt.up().dependency().map_or(Duration::ZERO, Dependency::downtime)
    }

    /// The time that a command has: its own, and no more than is left of the eval's.
    fn limit(&self, command: &EvalCommand) -> Limit {
        let own = command.timeout_sec.map_or(Duration::MAX, seconds);
        let left = self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let (left, limit, whose) = match (left, self.ctx.eval.timeout_sec.map(seconds)) {
            (Some(left), Some(whole)) if left < own => (left, whole, "the eval's"),
            _ => (own, own, "its"),
        };
        Limit { left, told: ScriptLimit { limit, whose: Some(whose) } }
    }

    fn capture(&mut self, stage: EvalStage) -> Arc<Capture> {
        let dir: PathBuf = self.ctx.execution.scratch.join(stage.as_str());
        let (stdout, stderr) = (dir.join("stdout.txt"), dir.join("stderr.txt"));
        let capture = Arc::new(Capture::new(stdout, stderr, &self.attempt.redactor));
        self.captures.push((stage.as_str(), capture.clone()));
        capture
    }

    /// Takes the tree out and makes the commit. Nothing runs any more while the tree is read, so
    /// that what the sweep measures is what is committed.
    async fn candidate(&mut self, checkout: &Checkout) -> Result<(), Halt> {
        self.attempt.go_on()?;
        let redactor = self.attempt.redactor.clone();
        if let Some(left) = executor::kill(self.attempt.up()).await {
            self.attempt.environment.tainted = true;
            let error = ScriptError::Left(left);
            return Err(failure::command(error, EvalStage::Implement, &redactor).into());
        }
        let reading = self.attempt.up().copy_from(REPOSITORY);
        let stream = within(COPY_LIMIT, "reading the checkout", reading).await;
        let stream = stream.map_err(|failure| {
            failure::command(ScriptError::Exec(failure), EvalStage::Implement, &redactor)
        })?;
        let Some(stream) = stream else {
            return Err(failure::no_checkout().into());
        };
        let work = async {
            let tree = checkout.take_out(stream).await?;
            let to = self.ctx.execution.scratch.join("candidate.bundle");
            checkout.commit(&tree, &self.ctx.eval.message, &redactor, &to).await
        };
        match work.await.map_err(|error| failure::files(&error, &redactor))? {
            Outcome::NoChanges(changes) => {
                (self.changes, self.end) = (Some(changes), EvalEnd::NoChanges);
                Err(Halt::Complete)
            }
            Outcome::Candidate(candidate) => {
                self.changes = Some(candidate.changes);
                self.candidate = Some(candidate);
                Ok(())
            }
        }
    }
}
