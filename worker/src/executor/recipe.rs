//! The interface of a kind of work, and the attempt state that all kinds share.

use std::path::PathBuf;
use std::sync::Arc;

use rollout_base::secrets::Redactor;
use rollout_base::supervise::panic_message;
use rollout_environment::Environment;
use rollout_protocol::error::{ErrorType, TrialError};
use rollout_protocol::phase::Phase;
use rollout_protocol::wire::control::StopLevel;
use tokio::sync::watch;
use tokio::time::Instant;

use super::capture::Capture;
use super::context::{ExecutionContext, ExecutionServices, PhaseSink, ScratchWork};
use super::environment::{ManagedEnvironment, RemovalOutcome};
use super::environment_fault::EnvironmentFault;
use super::errors;
use super::finished::Finished;
use super::full_disk::{DiskFullEvidence, FullDisk, is_conclusive};
use super::host_fault::FaultedExecution;
use super::timing::Timing;
use super::unrecorded::UnrecordedCaptures;

/// A kind of work: its own parts of an attempt.
pub(crate) trait WorkRecipe: Sized + Send {
    /// The record of an execution.
    type Record: Send;

    /// The state that all kinds share.
    fn attempt(&mut self) -> &mut AttemptState;

    /// Runs all phases before the collection.
    fn phases(&mut self) -> impl Future<Output = Result<(), PhaseInterrupt>> + Send;

    /// Reads outputs from the environment. Called while it is running.
    fn collect(&mut self) -> impl Future<Output = ()> + Send;

    /// Decides which error counts, when no stop ended the attempt. Environments can be measured.
    fn settle_errors(&mut self) -> impl Future<Output = ()> + Send;

    /// Adds the current phase to an error of the phases.
    fn with_phase(&mut self, error: TrialError) -> TrialError {
        let phase = self.attempt().timing.phase();
        error.in_phase(phase)
    }

    /// Whether the attempt had an environment at any time.
    fn had_environment(&mut self) -> bool {
        self.attempt().environment.was_created()
    }

    /// The second environment, if there is one.
    fn second_environment(&mut self) -> Option<&mut ManagedEnvironment> {
        None
    }

    /// Whether the environments are kept for inspection.
    fn keeps_environments(&mut self) -> bool {
        false
    }

    /// Releases everything else that the attempt holds on this host.
    fn release(&mut self) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }

    /// Called when an outage failed the attempt and nothing of it is kept: the execution starts
    /// over.
    fn start_over(&mut self) {}

    /// The result; `stopped` names the phase that a stop ended. Waits for nothing if there are no files.
    fn finished(
        self,
        stopped: Option<Phase>,
    ) -> impl Future<Output = Finished<Self::Record>> + Send;
}

/// Why the phases of an attempt do not continue.
#[derive(Debug)]
pub(crate) enum PhaseInterrupt {
    /// An error.
    Failed(TrialError),
    /// The run is drained.
    Drained,
    /// The remaining phases are not needed.
    Complete,
}

impl From<TrialError> for PhaseInterrupt {
    fn from(error: TrialError) -> Self {
        Self::Failed(error)
    }
}

/// The attempt state that all kinds of work share.
pub(crate) struct AttemptState {
    pub(super) stop: watch::Receiver<Option<StopLevel>>,
    phases: Arc<dyn PhaseSink>,
    pub(super) scratch: PathBuf,
    pub(super) scratch_work: ScratchWork,
    /// Output of commands that is only quoted.
    pub(crate) unrecorded: UnrecordedCaptures,
    pub(crate) timing: Timing,
    started_at: Instant,
    pub(crate) redactor: Redactor,
    /// The first cause of failure.
    pub(crate) first_error: Option<TrialError>,
    /// The other errors, in their order.
    pub(crate) secondary_errors: Vec<TrialError>,
    pub(crate) environment: ManagedEnvironment,
}

impl AttemptState {
    pub(crate) fn new(ctx: &ExecutionContext) -> Self {
        Self {
            stop: ctx.stop.clone(),
            phases: Arc::clone(&ctx.phases),
            scratch: ctx.scratch.clone(),
            scratch_work: ctx.scratch_work.clone(),
            unrecorded: UnrecordedCaptures::new(ctx),
            timing: Timing::begin(),
            started_at: Instant::now(),
            redactor: Redactor::default(),
            first_error: None,
            secondary_errors: Vec::new(),
            environment: ManagedEnvironment::default(),
        }
    }

    /// Begins a phase.
    pub(crate) fn enter(&mut self, phase: Phase) {
        self.timing.enter(phase);
        self.phases.entered(phase);
    }

    /// Ends a phase. Fails when the run is drained: the next phase must not begin.
    pub(crate) fn end_phase(&mut self) -> Result<(), PhaseInterrupt> {
        self.timing.leave();
        if self.stop.borrow().is_some() { Err(PhaseInterrupt::Drained) } else { Ok(()) }
    }

    /// The environment, which must be running.
    pub(crate) fn running_environment(&self) -> &dyn Environment {
        self.environment.expect_running()
    }

    /// Records an error; the first is the cause.
    pub(crate) fn record_error(&mut self, error: TrialError) {
        match self.first_error {
            None => self.first_error = Some(error),
            Some(_) => self.secondary_errors.push(error),
        }
    }

    /// Records an error before all others.
    pub(crate) fn record_first_error(&mut self, error: TrialError) {
        let former = self.first_error.replace(error);
        self.secondary_errors.splice(0..0, former);
    }

    /// Records a collection error, which is never the cause.
    pub(crate) fn record_not_collected(&mut self, why: &str) {
        self.secondary_errors.push(errors::not_collected(why, &self.redactor));
    }

    /// Detects a full disk during the attempt.
    pub(crate) async fn full_disk(
        &self,
        services: &ExecutionServices,
        captures: Vec<&Capture>,
        second: Option<&ManagedEnvironment>,
    ) -> Option<FullDisk> {
        let environments = [Some(&self.environment), second].into_iter().flatten();
        let evidence = DiskFullEvidence {
            began: self.started_at,
            captures,
            errors: &self.secondary_errors,
            environments: environments.filter_map(ManagedEnvironment::running).collect(),
        };
        FullDisk::detect(&services.disks, evidence).await
    }

    /// Detects a fault of this host that an environment of the attempt met. Failures of commands ask here, at
    /// the end, whatever the command was for.
    pub(crate) async fn environment_fault(
        &self,
        second: Option<&ManagedEnvironment>,
    ) -> Option<EnvironmentFault> {
        let environments = [Some(&self.environment), second].into_iter().flatten();
        EnvironmentFault::detect(environments.collect()).await
    }

    /// Makes a fault of this host the first error (that of an environment, a full disk), if the attempt
    /// met one and has no result for a reason that it may explain. Returns whether it did; `work` and
    /// `without_cause` are parts of the message.
    pub(crate) async fn blame_host(
        &mut self,
        services: &ExecutionServices,
        captures: Vec<&Capture>,
        work: &str,
        without_cause: &str,
    ) -> bool {
        if self.first_error.as_ref().is_some_and(is_conclusive) {
            return false;
        }
        let fault = self.environment_fault(None).await;
        let execution = FaultedExecution {
            work,
            cause: self.first_error.as_ref(),
            otherwise: ErrorType::AgentExecutionFailed,
            without_cause,
            redactor: &self.redactor,
        };
        let error = match fault {
            Some(fault) => fault.error(execution),
            None => {
                let Some(disk) = self.full_disk(services, captures, None).await else {
                    return false;
                };
                disk.error(execution)
            }
        };
        self.record_first_error(error);
        true
    }

    /// Records a panic as an error.
    pub(super) fn record_panic(&mut self, panic: &(dyn std::any::Any + Send)) {
        let (message, phase) = (panic_message(panic), self.timing.phase());
        self.record_error(errors::panicked(&message, phase, &self.redactor));
    }

    /// Records the removal of an environment. After a stop it is no failure: the work runs again.
    pub(super) fn record_removal(&mut self, removed: RemovalOutcome, stopped: bool) {
        self.secondary_errors.extend(removed.not_created.map(|why| why.into_error(&self.redactor)));
        let Some(failure) = &removed.failure else { return };
        let error = errors::teardown_failed(failure, &self.redactor);
        if stopped { self.secondary_errors.push(error) } else { self.record_error(error) }
    }
}
