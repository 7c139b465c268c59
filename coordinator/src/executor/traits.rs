//! The interface of executors.

use std::fmt;

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use rollout_protocol::blob::BlobRef;
use rollout_protocol::executor::{StartTrial, TrialHandle, TrialStatus};
use rollout_protocol::harness::{ControlRequest, HookEvent};
use rollout_protocol::id::{ExecId, ItemId};
use rollout_protocol::reference::{ArtifactRef, OutputRef};
use rollout_protocol::wire::trial_control::TrialControlReceipt;

use super::{BlobReader, ExecutorError};

/// Runs trials, somewhere. A trial is identified by its item.
///
/// # Obligations of every implementation
/// * A trial gets exactly one settlement, which never changes. A later call may return it from
///   memory, or read it again.
/// * References are immutable: the content of a [`BlobRef`] is the one with its digest, or an error.
/// * [`start_trial`](Self::start_trial) and [`cancel_trial`](Self::cancel_trial) may be repeated. A
///   caller that does not know whether a call was received repeats it.
/// * Calls for a trial that was not started fail with [`ExecutorError::UnknownTrial`].
/// * Dropping a call or a stream has no effect on the trial.
#[async_trait]
pub trait TrialExecutor: Send + Sync + fmt::Debug {
    /// Starts a trial, unless it was started before. The trial is durable once its status is not
    /// `queued`: a caller whose executor ended before starts it again.
    ///
    /// # Errors
    /// [`ExecutorError::UnknownTrial`] or [`ExecutorError::OtherSpec`] when the executor cannot run
    /// this trial.
    async fn start_trial(&self, request: StartTrial) -> Result<TrialHandle, ExecutorError>;

    /// The status of a trial. A settled trial has its settlement in it.
    ///
    /// # Errors
    /// [`ExecutorError`].
    async fn trial_status(&self, trial: ItemId) -> Result<TrialStatus, ExecutorError>;

    /// The events of the trial's harness from the event with the number `from` on, in their order.
    /// The stream ends when the trial is settled and every event was sent: a caller that only waits
    /// for the end of a trial reads it to its end. It ends after an error.
    ///
    /// Events are sent while the trial runs, soon after its harness wrote them, and the rest when it
    /// is settled. Events of an execution that does not settle the trial do not count. An event
    /// replaces every earlier event of the stream with the same or a higher number: numbers begin
    /// again with another execution, and when the record, which is authoritative, has other events
    /// than were sent while the trial ran.
    fn trial_events(&self, trial: ItemId, from: u64) -> TrialEventStream;

    /// Sends a control to the harness of a running trial and waits for the receipt of its worker. The
    /// evidence that the harness observed the control is its acknowledgement, in the receipt and in
    /// its events.
    ///
    /// # Errors
    /// [`ExecutorError::NotRunning`] when no worker runs the trial, and
    /// [`ExecutorError::NoAnswer`] when its worker does not answer.
    async fn send_control(
        &self,
        trial: ItemId,
        control: ControlRequest,
    ) -> Result<TrialControlReceipt, ExecutorError>;

    /// The output of a settled trial; `None` if its settlement contains everything that it left.
    ///
    /// # Errors
    /// [`ExecutorError::NotSettled`] while the trial runs.
    async fn trial_output(&self, trial: ItemId) -> Result<Option<OutputRef>, ExecutorError>;

    /// The artifacts of the execution that settled a trial.
    ///
    /// # Errors
    /// [`ExecutorError::NotSettled`] while the trial runs.
    async fn trial_artifacts(&self, trial: ItemId) -> Result<Vec<ArtifactRef>, ExecutorError>;

    /// Reads the content of an output, an artifact or a log of events. A reader fails at its end if
    /// the content has another digest.
    ///
    /// # Errors
    /// [`ExecutorError::Store`].
    async fn read_artifact(&self, blob: &BlobRef) -> Result<BlobReader, ExecutorError>;

    /// Cancels a trial for good: it settles as cancelled. A trial that has a result keeps it. Returns
    /// when the request is durable.
    ///
    /// # Errors
    /// [`ExecutorError`]; the trial may have been cancelled.
    async fn cancel_trial(&self, trial: ItemId) -> Result<(), ExecutorError>;
}

/// Events of one trial.
pub type TrialEventStream = BoxStream<'static, Result<TrialEvent, ExecutorError>>;

/// An event of a trial's harness.
#[derive(Debug, Clone, PartialEq)]
pub struct TrialEvent {
    /// The execution. After another execution of the trial began, events of earlier ones do not
    /// count.
    pub exec: ExecId,
    /// Number of the event in the execution, from 0 and without gaps, over all steps of the task.
    /// The harness's own number is in the event; each step has its own.
    pub number: u64,
    /// Step of the task, if the task has steps.
    pub step: Option<String>,
    /// The event.
    pub event: HookEvent,
}
