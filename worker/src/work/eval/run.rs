//! Drives one execution of an eval and guarantees what must hold on every path: an environment is
//! collected and torn down, a panic is an error like another, the first cause stays the first.

use std::panic::AssertUnwindSafe;

use futures_util::FutureExt as _;
use rollout_protocol::error::{ErrorType, TrialError};
use rollout_protocol::phase::Phase;
use rollout_protocol::record::{Changes, CommandRecord, EnvironmentRecord, EvalEnd, EvalRecord};
use rollout_protocol::wire::control::StopLevel;
use tokio::sync::watch;
use tokio::time::Instant;

use super::candidate::Candidate;
use super::collect::Collected;
use super::record;
use super::site::At;
use super::slots::Slot;
use super::variables::Variables;
use super::{EvalContext, Repositories};
use crate::environment::Environment;
use crate::executor::{
    BuildLog, Capture, Finished, FullDisk, ManagedEnvironment, Park, Timing, Traces, TrialServices,
    Waited, Waiter, attempts, errors, killed, stands_anyway,
};
use crate::supervise::panic_message;

/// Runs one execution of an eval to its end. Must not be dropped before: the environment would stay
/// until a reaper finds its owner dead.
pub async fn run(
    ctx: EvalContext,
    services: &TrialServices,
    repositories: &Repositories,
) -> Finished<EvalRecord> {
    let kind = ctx.eval.settings.provider.kind();
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

/// Runs the execution once; nothing when it met a service that gave no answer, waited for it, and
/// is to begin anew.
async fn attempt(
    ctx: &EvalContext,
    services: &TrialServices,
    repositories: &Repositories,
    park: &mut Park<'_>,
) -> Option<Finished<EvalRecord>> {
    let mut run = Run::new(ctx, services, repositories);
    if park.begin().await == Waited::Stopped {
        run.end = EvalEnd::Stopped;
        return Some(record::finished(run));
    }
    let killed = run.course().await;
    let mut waited = Waited::TooLong;
    if let Some(error) = run.first.clone().filter(|_| !killed)
        && let Some(on) = park.cause(&error, run.had_environment()).await
    {
        waited = park.wait(on, !run.place.is_empty()).await;
        match waited {
            Waited::TooLong => run.first = Some(park.given_up(on, error)),
            Waited::Stopped => run.end = EvalEnd::Stopped,
            Waited::Back => {}
        }
    }
    if !killed && waited == Waited::TooLong {
        park.steady().await;
        run.guarded_collection().await;
        run.blame_disk().await;
    }
    park.steady().await;
    run.teardown().await;
    run.give_back_slot().await;
    if waited == Waited::Back {
        // What cannot be removed is written over, or in the way with an error of its own.
        let _left = tokio::fs::remove_dir_all(&ctx.scratch).await;
        return None;
    }
    Some(record::finished(run))
}

/// Why an execution does not go on.
pub(super) enum Halt {
    Failed(TrialError),
    /// The idea changed nothing.
    NoChanges,
    /// The run is drained.
    Drained,
}

impl From<TrialError> for Halt {
    fn from(error: TrialError) -> Self {
        Self::Failed(error)
    }
}

/// One execution under way.
pub(super) struct Run<'a> {
    pub(super) ctx: &'a EvalContext,
    pub(super) services: &'a TrialServices,
    pub(super) repositories: &'a Repositories,
    pub(super) timing: Timing,
    pub(super) variables: Variables,
    pub(super) captures: Vec<(&'static str, std::sync::Arc<Capture>)>,
    pub(super) commands: Vec<CommandRecord>,
    pub(super) end: EvalEnd,
    pub(super) first: Option<TrialError>,
    pub(super) later: Vec<TrialError>,
    pub(super) candidate: Option<Candidate>,
    pub(super) changes: Option<Changes>,
    pub(super) collected: Collected,
    /// What commands reported that they cost, together.
    pub(super) reported: Option<f64>,
    pub(super) slot: Option<Slot>,
    pub(super) place: ManagedEnvironment,
    /// The log of an image build.
    pub(super) build: BuildLog,
    /// Whose place it is.
    pub(super) at: At,
    /// What environments before the present one cost.
    pub(super) spent: f64,
    pub(super) environment: Option<EnvironmentRecord>,
    pub(super) sweep_environment: Option<EnvironmentRecord>,
    /// When it began.
    pub(super) began: Instant,
    /// When all commands must have ended.
    pub(super) deadline: Option<Instant>,
    /// The sweep ended well.
    pub(super) swept: bool,
}

impl<'a> Run<'a> {
    fn new(
        ctx: &'a EvalContext,
        services: &'a TrialServices,
        repositories: &'a Repositories,
    ) -> Self {
        Self {
            ctx,
            services,
            repositories,
            timing: Timing::begin(),
            variables: Variables::default(),
            captures: Vec::new(),
            commands: Vec::new(),
            end: EvalEnd::Failed,
            first: None,
            later: Vec::new(),
            candidate: None,
            changes: None,
            collected: Collected::default(),
            reported: None,
            slot: None,
            place: ManagedEnvironment::default(),
            build: BuildLog::new(&ctx.scratch),
            at: At::Shared,
            spent: 0.0,
            environment: None,
            sweep_environment: None,
            began: Instant::now(),
            deadline: None,
            swept: false,
        }
    }

    pub(super) fn enter(&mut self, phase: Phase) {
        self.timing.enter(phase);
        self.ctx.phases.entered(phase);
    }

    /// Keeps an error: the first is the cause.
    pub(super) fn fail(&mut self, error: TrialError) {
        match self.first {
            None => self.first = Some(error),
            Some(_) => self.later.push(error),
        }
    }

    /// Runs the phases up to the sweep. Whether a kill ended them.
    async fn course(&mut self) -> bool {
        let stop = self.ctx.stop.clone();
        let ended = tokio::select! {
            biased;
            () = killed(stop) => None,
            ended = AssertUnwindSafe(self.phases()).catch_unwind() => Some(ended),
        };
        let phase = self.timing.phase();
        match ended {
            None | Some(Ok(Err(Halt::Drained))) => self.end = EvalEnd::Stopped,
            Some(Ok(Ok(()))) => {}
            Some(Ok(Err(Halt::NoChanges))) => self.end = EvalEnd::NoChanges,
            Some(Ok(Err(Halt::Failed(error)))) => self.fail(error.in_phase(phase)),
            Some(Err(panic)) => {
                let message = panic_message(panic.as_ref());
                self.fail(errors::panicked(&message, phase, &self.variables.redactor));
            }
        }
        ended_is_kill(&self.ctx.stop)
    }

    /// Collects what there is, unless a kill comes.
    async fn guarded_collection(&mut self) {
        let stop = self.ctx.stop.clone();
        let ended = tokio::select! {
            biased;
            () = killed(stop) => None,
            ended = AssertUnwindSafe(self.collection()).catch_unwind() => Some(ended),
        };
        match ended {
            Some(Err(panic)) => {
                let (message, phase) = (panic_message(panic.as_ref()), self.timing.phase());
                self.fail(errors::panicked(&message, phase, &self.variables.redactor));
            }
            None if self.end == EvalEnd::Failed && self.first.is_none() => {
                self.end = EvalEnd::Stopped;
            }
            Some(Ok(())) | None => {}
        }
    }

    /// Between two steps: stops here when the run is drained.
    pub(super) fn go_on(&mut self) -> Result<(), Halt> {
        self.timing.leave();
        if self.ctx.stop.borrow().is_some() { Err(Halt::Drained) } else { Ok(()) }
    }

    /// Whether there was an environment at any time.
    fn had_environment(&self) -> bool {
        self.at != At::Shared || self.place.was_created()
    }

    pub(super) fn up(&self) -> &dyn Environment {
        self.place.present()
    }

    /// Gives the checkout's place back.
    pub(super) async fn give_back_slot(&mut self) {
        if let Some(slot) = self.slot.take()
            && let Err(error) = slot.clean().await
        {
            // It is wiped before its next use.
            tracing::warn!(error = %error.chain(), "a checkout cannot be cleaned");
        }
    }

    /// An eval that came to nothing while a disk of this host was full says nothing about its idea,
    /// unless it filled the disk itself beyond its own limit.
    async fn blame_disk(&mut self) {
        let came_to_nothing = matches!(self.end, EvalEnd::Failed | EvalEnd::NoChanges);
        if !came_to_nothing || self.first.as_ref().is_some_and(stands_anyway) {
            return;
        }
        let traces = Traces {
            began: self.began,
            captures: self.captures.iter().map(|(_, capture)| capture.as_ref()).collect(),
            errors: &self.later,
            environments: self.place.up().into_iter().collect(),
        };
        let Some(disk) = FullDisk::met(&self.services.disks, traces).await else { return };
        let former = self.first.take();
        let (otherwise, redactor) = (ErrorType::AgentExecutionFailed, &self.variables.redactor);
        let without_cause = ": it changed nothing";
        let error = disk.into_error("eval", former.as_ref(), otherwise, without_cause, redactor);
        self.first = Some(error);
        self.later.splice(0..0, former);
        self.end = EvalEnd::Failed;
    }

    /// Removes the environment, also one that is still on its way.
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
}

fn ended_is_kill(stop: &watch::Receiver<Option<StopLevel>>) -> bool {
    *stop.borrow() >= Some(StopLevel::Kill)
}
