//! Drives one execution of a command that writes ideas. On every path the environment is removed, a
//! panic is an error like another, and the first cause of failure stays the first.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use rollout_protocol::Timestamp;
use rollout_protocol::error::{ErrorType, TrialError};
use rollout_protocol::phase::Phase;
use rollout_protocol::record::{CommandRecord, IdeasEnd, IdeasRecord};
use rollout_protocol::spec::eval::EvalStage;
use rollout_protocol::spec::timeout::seconds;
use rollout_protocol::wire::control::StopLevel;
use tokio::time::Instant;

use super::IdeasContext;
use super::record;
use super::variables::{REPOSITORY, SCRIPT, Variables};
use crate::environment::{Command, Environment};
use crate::executor::errors::{self, ScriptError};
use crate::executor::{
    self, BuildLog, Capture, CleanArchive, End, Finished, FullDisk, ManagedEnvironment, Normal,
    Park, Ran, ScriptLimit, Timing, Traces, TrialServices, Waited, Waiter, attempts, cost, killed,
    stands_anyway, stopped,
};
use crate::spool;
use crate::supervise::panic_message;
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
    let provider = services.providers.get(&kind).cloned();
    let who = Waiter {
        phases: &*ctx.phases,
        stop: &ctx.stop,
        slot: &*ctx.slot,
        max_park: ctx.max_park,
        files: &services.files,
    };
    attempts(who, provider.as_deref(), |park| Box::pin(attempt(&ctx, services, repositories, park)))
        .await
}

/// Runs the execution once; `None` when it met a service that gave no answer, waited for it, and has
/// to begin again.
async fn attempt(
    ctx: &IdeasContext,
    services: &TrialServices,
    repositories: &Repositories,
    park: &mut Park<'_>,
) -> Option<Finished<IdeasRecord>> {
    let mut run = Run::new(ctx, services, repositories);
    if park.begin().await == Waited::Stopped {
        run.end = IdeasEnd::Stopped;
        return Some(record::finished(run));
    }
    run.guarded().await;
    let is_killed = *ctx.stop.borrow() >= Some(StopLevel::Kill);
    let mut waited = Waited::TooLong;
    if let Some(error) = run.first.clone().filter(|_| !is_killed)
        && let Some(on) = park.cause(&error, run.place.was_created()).await
    {
        waited = park.wait(on, !run.place.is_empty()).await;
        match waited {
            Waited::TooLong => run.first = Some(park.given_up(on, error)),
            Waited::Stopped => run.end = IdeasEnd::Stopped,
            Waited::Back => {}
        }
    }
    if !is_killed && waited == Waited::TooLong {
        park.steady().await;
        run.blame_disk().await;
    }
    park.steady().await;
    run.teardown().await;
    run.give_back_slot().await;
    if waited == Waited::Back {
        // Files that cannot be removed are written over.
        let _left = tokio::fs::remove_dir_all(&ctx.scratch).await;
        return None;
    }
    Some(record::finished(run))
}

/// Why an execution does not go on.
pub(super) enum Halt {
    Failed(TrialError),
    Stopped,
}

impl From<TrialError> for Halt {
    fn from(error: TrialError) -> Self {
        Self::Failed(error)
    }
}

/// One execution under way.
pub(super) struct Run<'a> {
    pub(super) ctx: &'a IdeasContext,
    pub(super) services: &'a TrialServices,
    pub(super) repositories: &'a Repositories,
    pub(super) timing: Timing,
    pub(super) variables: Variables,
    pub(super) capture: Option<Arc<Capture>>,
    pub(super) command: Option<CommandRecord>,
    pub(super) end: IdeasEnd,
    pub(super) first: Option<TrialError>,
    pub(super) later: Vec<TrialError>,
    pub(super) ideas: Option<CleanArchive>,
    pub(super) left_out: Vec<String>,
    pub(super) logs: Option<CleanArchive>,
    pub(super) reported: Option<f64>,
    pub(super) slot: Option<Slot>,
    pub(super) place: ManagedEnvironment,
    /// The log of the image build.
    pub(super) build: BuildLog,
    /// When it began.
    began: Instant,
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
            timing: Timing::begin(),
            variables: Variables::default(),
            capture: None,
            command: None,
            end: IdeasEnd::Failed,
            first: None,
            later: Vec::new(),
            ideas: None,
            left_out: Vec::new(),
            logs: None,
            reported: None,
            slot: None,
            place: ManagedEnvironment::default(),
            build: BuildLog::new(&ctx.scratch),
            began: Instant::now(),
        }
    }

    pub(super) fn enter(&mut self, phase: Phase) {
        self.timing.enter(phase);
        self.ctx.phases.entered(phase);
    }

    pub(super) fn up(&self) -> &dyn Environment {
        self.place.present()
    }

    fn fail(&mut self, error: TrialError) {
        match self.first {
            None => self.first = Some(error),
            Some(_) => self.later.push(error),
        }
    }

    /// Runs all phases up to the teardown, until a kill comes.
    async fn guarded(&mut self) {
        let stop = self.ctx.stop.clone();
        let ended = tokio::select! {
            biased;
            () = killed(stop) => None,
            ended = AssertUnwindSafe(self.phases()).catch_unwind() => Some(ended),
        };
        let phase = self.timing.phase();
        match ended {
            None | Some(Ok(Err(Halt::Stopped))) => self.end = IdeasEnd::Stopped,
            Some(Ok(Ok(()))) => {}
            Some(Ok(Err(Halt::Failed(error)))) => self.fail(error.in_phase(phase)),
            Some(Err(panic)) => {
                let message = panic_message(panic.as_ref());
                self.end = IdeasEnd::Failed;
                self.fail(errors::panicked(&message, phase, &self.variables.redactor));
            }
        }
        self.timing.leave();
    }

    async fn phases(&mut self) -> Result<(), Halt> {
        self.go_on()?;
        self.enter(Phase::EnvironmentSetup);
        self.setup().await?;
        self.go_on()?;
        tokio::select! {
            biased;
            () = self.ctx.tickets.begin(STAGE) => {}
            () = stopped(self.ctx.stop.clone()) => return Err(Halt::Stopped),
        }
        self.enter(Phase::AgentExecution);
        let ended = self.run_command().await;
        if !self.place.tainted {
            self.ctx.tickets.end(STAGE);
        }
        self.collect_logs().await;
        ended?;
        self.enter(Phase::Collection);
        self.collect_ideas().await
    }

    /// Stops here when the run is stopped.
    fn go_on(&mut self) -> Result<(), Halt> {
        self.timing.leave();
        if self.ctx.stop.borrow().is_some() { Err(Halt::Stopped) } else { Ok(()) }
    }

    /// Runs the command. Nothing that it started runs afterwards, or the execution is tainted.
    async fn run_command(&mut self) -> Result<(), Halt> {
        let limit = self.ctx.ideas.command.timeout_sec.map_or(Duration::MAX, seconds);
        let redactor = self.variables.redactor.clone();
        let scratch = &self.ctx.scratch;
        let files = (scratch.join("stdout.txt"), scratch.join("stderr.txt"));
        let capture = Arc::new(Capture::new(files.0, files.1, &redactor));
        self.capture = Some(Arc::clone(&capture));
        let command = Command {
            argv: vec!["bash".to_owned(), SCRIPT.to_owned()],
            env: self.variables.command.clone(),
            workdir: Some(REPOSITORY.to_owned()),
            user: None,
        };
        let started_at = Timestamp::now();
        let ran = executor::run(self.up(), command, limit, capture.clone(), Normal::Zero).await;
        self.command = Some(ran.end.record(STAGE, started_at));
        self.note_cost(&ran).await;
        let Ran { end, left } = ran;
        let limit = ScriptLimit { limit, whose: Some("its") };
        let Err(error) = end.judged(self.up(), &capture, limit, Normal::Zero).await else {
            // A process in the background could still change the ideas.
            let Some(left) = executor::kill(self.up()).await.or(left) else { return Ok(()) };
            self.place.tainted = true;
            return Err(failure::command(ScriptError::Left(left), STAGE, &redactor).into());
        };
        if let Some(left) = left {
            self.place.tainted = true;
            self.later.push(errors::processes_left(&left, self.timing.phase(), &redactor));
        }
        Err(failure::command(error, STAGE, &redactor).into())
    }

    /// Notes the cost that the command reported, however it ended.
    async fn note_cost(&mut self, ran: &Ran) {
        if ran.left.is_some() || matches!(ran.end, End::Failed(_)) {
            return;
        }
        match cost::reported(self.up()).await {
            Ok(cost) => self.reported = cost,
            Err(why) => {
                let why = format!("the cost of the command is not known: {why}");
                self.later.push(errors::not_collected(&why, &self.variables.redactor));
            }
        }
    }

    /// A command that wrote no idea while a disk of this host was full says nothing about its agent,
    /// unless it filled the disk itself beyond its own limit.
    async fn blame_disk(&mut self) {
        if self.end != IdeasEnd::Failed || self.first.as_ref().is_some_and(stands_anyway) {
            return;
        }
        let traces = Traces {
            began: self.began,
            captures: self.capture.as_deref().into_iter().collect(),
            errors: &self.later,
            environments: self.place.up().into_iter().collect(),
        };
        let Some(disk) = FullDisk::met(&self.services.disks, traces).await else { return };
        let former = self.first.take();
        let (otherwise, redactor) = (ErrorType::AgentExecutionFailed, &self.variables.redactor);
        self.first = Some(disk.into_error("command", former.as_ref(), otherwise, "", redactor));
        self.later.splice(0..0, former);
    }

    /// Removes the environment, also one that is still being created.
    async fn teardown(&mut self) {
        if self.place.is_empty() {
            return;
        }
        self.enter(Phase::Teardown);
        let removed = self.place.remove().await;
        let redactor = &self.variables.redactor;
        self.later.extend(removed.not_created.map(|why| why.into_error(redactor)));
        if let Some(failure) = removed.failure {
            self.fail(errors::teardown(&failure, &self.variables.redactor));
        }
        self.timing.leave();
    }

    async fn give_back_slot(&mut self) {
        if let Some(slot) = self.slot.take()
            && let Err(error) = slot.clean().await
        {
            // It is wiped before its next use.
            tracing::warn!(error = %error.chain(), "cannot clean a checkout");
        }
    }
}

impl IdeasContext {
    /// Creates the scratch directory with the mark of its execution.
    pub(super) async fn create_scratch(&self) -> std::io::Result<()> {
        spool::create_scratch(&self.labels, self.spec, self.scratch.clone()).await
    }
}
