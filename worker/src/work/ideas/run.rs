//! One execution of a command that writes ideas.

use std::sync::Arc;
use std::time::Duration;

use rollout_protocol::Timestamp;
use rollout_protocol::phase::Phase;
use rollout_protocol::record::{CommandRecord, IdeasEnd, IdeasRecord};
use rollout_protocol::spec::eval::EvalStage;
use rollout_protocol::spec::timeout::seconds;

use super::IdeasContext;
use super::record;
use super::variables::{REPOSITORY, SCRIPT, Variables};
use crate::environment::ExecCommand;
use crate::executor::errors::{self, ScriptError};
use crate::executor::{
    self, Attempt, BuildLog, Capture, CleanArchive, End, Finished, Halt, Normal, Ran, Recipe,
    ScriptLimit, TrialServices, cost, stopped,
};
use crate::work::eval::{Repositories, Slot, failure};

/// The stage of the command, for tickets and errors.
const STAGE: EvalStage = EvalStage::Ideas;

/// Runs one execution to its end. Must not be dropped before: the environment would stay until a
/// reaper finds its owner dead.
pub async fn run(
    ctx: IdeasContext,
    services: &TrialServices,
    repositories: &Repositories,
) -> Finished<IdeasRecord> {
    let kind = ctx.ideas.settings.provider.kind();
    let recipe = || Run::new(&ctx, services, repositories);
    executor::execute(&ctx.execution, services, kind, recipe).await
}

/// One execution under way.
pub(super) struct Run<'a> {
    pub(super) ctx: &'a IdeasContext,
    pub(super) services: &'a TrialServices,
    pub(super) repositories: &'a Repositories,
    pub(super) attempt: Attempt,
    pub(super) variables: Variables,
    pub(super) capture: Option<Arc<Capture>>,
    pub(super) command: Option<CommandRecord>,
    pub(super) end: IdeasEnd,
    /// The command ended well.
    pub(super) succeeded: bool,
    pub(super) ideas: Option<CleanArchive>,
    pub(super) left_out: Vec<String>,
    pub(super) logs: Option<CleanArchive>,
    pub(super) reported: Option<f64>,
    pub(super) slot: Option<Slot>,
    /// The log of the image build.
    pub(super) build: BuildLog,
}

impl<'a> Run<'a> {
    fn new(
        ctx: &'a IdeasContext,
        services: &'a TrialServices,
        repositories: &'a Repositories,
    ) -> Self {
        Self {
            ctx,
            services,
            repositories,
            attempt: Attempt::new(&ctx.execution),
            variables: Variables::default(),
            capture: None,
            command: None,
            end: IdeasEnd::Failed,
            succeeded: false,
            ideas: None,
            left_out: Vec::new(),
            logs: None,
            reported: None,
            slot: None,
            build: BuildLog::new(&ctx.execution.scratch),
        }
    }

    /// Runs the command. Nothing that it started runs afterwards, or the execution is tainted.
    async fn run_command(&mut self) -> Result<(), Halt> {
        let limit = self.ctx.ideas.command.timeout_sec.map_or(Duration::MAX, seconds);
        let redactor = self.attempt.redactor.clone();
        let scratch = &self.ctx.execution.scratch;
        let files = (scratch.join("stdout.txt"), scratch.join("stderr.txt"));
        let capture = Arc::new(Capture::new(files.0, files.1, &redactor));
        self.capture = Some(Arc::clone(&capture));
        let command = ExecCommand {
            argv: vec!["bash".to_owned(), SCRIPT.to_owned()],
            env: self.variables.command.clone(),
            workdir: Some(REPOSITORY.to_owned()),
            user: None,
        };
        let started_at = Timestamp::now();
        let ran =
            executor::run(self.attempt.up(), command, limit, capture.clone(), Normal::Zero).await;
        self.command = Some(ran.end.record(STAGE, started_at));
        self.note_cost(&ran).await;
        let Ran { end, left } = ran;
        let limit = ScriptLimit { limit, whose: Some("its") };
        let Err(error) = end.judged(self.attempt.up(), &capture, limit, Normal::Zero).await else {
            // A process in the background could still change the ideas.
            let Some(left) = executor::kill(self.attempt.up()).await.or(left) else {
                return Ok(());
            };
            self.attempt.environment.tainted = true;
            return Err(failure::command(ScriptError::Left(left), STAGE, &redactor).into());
        };
        if let Some(left) = left {
            self.attempt.environment.tainted = true;
            self.attempt.later.push(errors::processes_left(
                &left,
                self.attempt.timing.phase(),
                &redactor,
            ));
        }
        Err(failure::command(error, STAGE, &redactor).into())
    }

    /// Notes the cost that the command reported, however it ended.
    async fn note_cost(&mut self, ran: &Ran) {
        if ran.left.is_some() || matches!(ran.end, End::Failed(_)) {
            return;
        }
        match cost::reported(self.attempt.up()).await {
            Ok(cost) => self.reported = cost,
            Err(why) => {
                let why = format!("the cost of the command is not known: {why}");
                self.attempt.not_collected(&why);
            }
        }
    }
}

impl Recipe for Run<'_> {
    type Record = IdeasRecord;

    fn attempt(&mut self) -> &mut Attempt {
        &mut self.attempt
    }

    async fn phases(&mut self) -> Result<(), Halt> {
        self.attempt.go_on()?;
        self.attempt.enter(Phase::EnvironmentSetup);
        self.setup().await?;
        self.attempt.go_on()?;
        tokio::select! {
            biased;
            () = self.ctx.tickets.begin(STAGE) => {}
            () = stopped(self.ctx.execution.stop.clone()) => return Err(Halt::Drained),
        }
        self.attempt.enter(Phase::AgentExecution);
        let ended = self.run_command().await;
        if !self.attempt.environment.tainted {
            self.ctx.tickets.end(STAGE);
        }
        self.succeeded = ended.is_ok();
        ended
    }

    async fn collect(&mut self) {
        self.collect_logs().await;
        if self.succeeded
            && let Err(error) = self.collect_ideas().await
        {
            self.attempt.fail(error.in_phase(Phase::Collection));
        }
    }

    /// A command that wrote no idea while a disk of this host was full says nothing about its agent,
    /// unless it filled the disk itself beyond its own limit.
    async fn settle_errors(&mut self) {
        if self.end == IdeasEnd::Failed {
            let captures = self.capture.as_deref().into_iter().collect();
            self.attempt.blame_disk(self.services, captures, "command", "").await;
        }
    }

    async fn release(&mut self) {
        if let Some(slot) = self.slot.take() {
            slot.give_back().await;
        }
    }

    fn finished(self, stopped: Option<Phase>) -> Finished<IdeasRecord> {
        record::finished(self, stopped)
    }
}
