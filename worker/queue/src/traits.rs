//! The queue's traits: one per role, so that workers cannot do what only coordinators may.
//!
//! # Semantics of every implementation, because the real broker has them
//! * **Acknowledgements are not fenced**: acknowledging, refusing or extending an earlier delivery
//!   acts on the latest one. The coordinator decides ownership, never the queue.
//! * **Redelivery**: a delivery that is neither acknowledged nor extended for one lease is
//!   delivered again; after a restart of the broker everything in flight is delivered again at
//!   once.
//! * **Incarnations**: a broker that lost its state has a new incarnation; positions and tokens of
//!   other incarnations are not valid in it.
//! * Publishing an offer is idempotent per (item, try).
//! * Reports of a run have one total order and stay readable from any position until purged.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use rollout_protocol::id::{ItemId, RunId, TryId};
use rollout_protocol::wire::claim::{Claim, ClaimAnswer};
use rollout_protocol::wire::command::{CommandReceipt, RunCommand};
use rollout_protocol::wire::control::ControlMessage;
use rollout_protocol::wire::delivery::{
    Delivery, FreeCapacity, MessageToken, OfferOutcome, PreviousPools, PublishError, QueuedOffer,
};
use rollout_protocol::wire::heartbeat::{Heartbeat, ReceivedHeartbeat};
use rollout_protocol::wire::offer::Offer;
use rollout_protocol::wire::output::{TrialAnswer, TrialRequest};
use rollout_protocol::wire::position::{Incarnation, ReportBatch, ReportPosition};
use rollout_protocol::wire::report::Report;
use rollout_protocol::wire::trial_control::{TrialControlReceipt, TrialControlRequest};
use tokio::sync::{broadcast, oneshot, watch};

/// The worker's side of the queue.
#[async_trait]
pub trait WorkSource: Send + Sync + fmt::Debug {
    /// Pulls at most as many offers as fit into `room`, the largest class that fits first, waiting
    /// up to `wait` for the first. A caller may drop it while it waits; offers that were pulled for
    /// it are then redelivered after their lease, or sooner.
    ///
    /// # Errors
    /// [`QueueError`].
    async fn pull(
        &self,
        capacity: FreeCapacity,
        wait: Duration,
    ) -> Result<Vec<Delivery>, QueueError>;

    /// Ends what dropped pulls left under way: when it returns, nothing more is delivered here, and
    /// deliveries that no pull returned are the queue's again at once. No pull may follow. Waits for
    /// the broker. The default has nothing to end: a dropped pull took nothing.
    async fn end_pulls(&self) {}

    /// Extends the lease of deliveries.
    ///
    /// # Errors
    /// [`QueueError`].
    async fn progress(&self, tokens: &[MessageToken]) -> Result<(), QueueError>;

    /// Removes delivered offers from the queue.
    ///
    /// # Errors
    /// [`QueueError`].
    async fn ack(&self, tokens: &[MessageToken]) -> Result<(), QueueError>;

    /// Returns deliveries for immediate redelivery.
    ///
    /// # Errors
    /// [`QueueError`].
    async fn nak(&self, tokens: &[MessageToken]) -> Result<(), QueueError>;

    /// Asks the coordinator of the run whether to run a suspicious delivery.
    ///
    /// # Errors
    /// [`QueueError::NoAnswer`] without a coordinator, or [`QueueError::NoAnswerInTime`].
    async fn claim(&self, claim: Claim) -> Result<ClaimAnswer, QueueError>;

    /// Whether the heartbeat of a live worker contests a claim, see [`Claim::is_contested_by`].
    /// Used when no coordinator answers.
    ///
    /// # Errors
    /// [`QueueError`].
    async fn is_contested(&self, claim: &Claim) -> Result<bool, QueueError>;

    /// Appends reports; each is durable in the stream when its answer is `Ok`.
    ///
    /// # Errors
    /// [`QueueError`] when the outcome of all of them is unknown; sending them again is harmless.
    async fn report(
        &self,
        reports: Vec<Report>,
    ) -> Result<Vec<Result<(), PublishError>>, QueueError>;

    /// Publishes the state of this worker and its executions.
    ///
    /// # Errors
    /// [`QueueError`].
    async fn heartbeat(&self, heartbeat: Heartbeat) -> Result<(), QueueError>;

    /// The connection to the broker, from now on.
    fn connection_status(&self) -> watch::Receiver<ConnectionStatus>;

    /// Commands of coordinators from now on. Some may be missed: they are hints only.
    fn controls(&self) -> broadcast::Receiver<ControlMessage>;

    /// The next request of a user about a trial, of this worker or of another one.
    /// Cancel-safe. The default never returns: users do not reach such a queue.
    async fn next_trial_request(&self) -> PendingTrialRequest {
        std::future::pending().await
    }

    /// Answers a request about a trial that runs on this worker.
    ///
    /// # Errors
    /// [`QueueError`].
    async fn answer_trial_request(
        &self,
        reply_to: String,
        answer: TrialAnswer,
    ) -> Result<(), QueueError> {
        // A queue without requests has none to answer.
        drop((reply_to, answer));
        Ok(())
    }
}

/// The coordinator's side of the queue.
#[async_trait]
pub trait Dispatch: Send + Sync + fmt::Debug {
    /// The broker's current incarnation.
    ///
    /// # Errors
    /// [`QueueError`].
    async fn incarnation(&self) -> Result<Incarnation, QueueError>;

    /// The connection to the broker, from now on.
    fn connection_status(&self) -> watch::Receiver<ConnectionStatus>;

    /// Publishes offers unless they are already in the queue.
    ///
    /// # Errors
    /// [`QueueError`] when the outcome of all of them is unknown; offering them again is
    /// harmless.
    async fn offer(
        &self,
        offers: &[Offer],
    ) -> Result<Vec<Result<OfferOutcome, PublishError>>, QueueError>;

    /// Deletes offers, delivered or not. Never proves that a try did not run.
    ///
    /// # Errors
    /// [`QueueError`].
    async fn withdraw(&self, run: RunId, tries: &[(ItemId, TryId)]) -> Result<(), QueueError>;

    /// Every offer of the run that is in the queue.
    ///
    /// # Errors
    /// [`QueueError`].
    async fn list(&self, run: RunId) -> Result<Vec<QueuedOffer>, QueueError>;

    /// Sets the pools that the tries of a run were offered to, by epoch, for epochs whose pool is
    /// not this dispatch's own or is unknown. Reports of a try count only from its pool's workers;
    /// those of an epoch whose pool is unknown count from any of these pools. Must be called before
    /// the run's reports are read.
    fn set_previous_pools(&self, run: RunId, former: PreviousPools);

    /// Reports of the run after `from` (all of them when absent), at most `max`, waiting up to
    /// `wait` for the first. Messages that were skipped end the wait, too.
    ///
    /// # Errors
    /// [`QueueError::Position`] when the position does not exist in the current stream: read from
    /// the beginning.
    async fn reports(
        &self,
        run: RunId,
        from: Option<ReportPosition>,
        max: usize,
        wait: Duration,
    ) -> Result<ReportBatch, QueueError>;

    /// Records that the coordinator's journal durably holds the run's reports up to and including
    /// this position. Reports strictly below it are deleted; the report at the position stays as an
    /// anchor. A queue that does not outlive its process acknowledges reports to workers only now:
    /// until then, the worker may hold the only durable copy.
    ///
    /// # Errors
    /// [`QueueError`].
    async fn mark_journaled(&self, run: RunId, position: ReportPosition) -> Result<(), QueueError>;

    /// Removes the run's reports up to and including this sequence, also the anchor of its position:
    /// for a run that has ended. A session that reads the run again begins at its first report.
    ///
    /// # Errors
    /// [`QueueError`].
    async fn remove_reports(&self, run: RunId, last: u64) -> Result<(), QueueError>;

    /// The next claim for this run.
    ///
    /// # Errors
    /// [`QueueError`].
    async fn next_claim(&self, run: RunId) -> Result<PendingClaim, QueueError>;

    /// The last heartbeat of every worker that sent one.
    ///
    /// # Errors
    /// [`QueueError`].
    async fn heartbeats(&self) -> Result<Vec<ReceivedHeartbeat>, QueueError>;

    /// The next command of a user for this run.
    ///
    /// # Errors
    /// [`QueueError`].
    async fn next_command(&self, run: RunId) -> Result<PendingCommand, QueueError>;

    /// The sequence of the run's last report, 0 when there is none. A reader that has read up to it
    /// knows everything that was reported before this call.
    ///
    /// # Errors
    /// [`QueueError`].
    async fn last_report_sequence(&self, run: RunId) -> Result<u64, QueueError>;

    /// For how long, until now, every heartbeat was kept: a worker that sent one in this time is
    /// among [`Dispatch::heartbeats`], even if it sent it before this coordinator started.
    fn heartbeat_retention(&self) -> Duration;

    /// Sends a command to workers at once. A hint only.
    ///
    /// # Errors
    /// [`QueueError`].
    async fn control(&self, control: ControlMessage) -> Result<(), QueueError>;
}

/// The user's side of the queue: requests about a run, from outside of its coordinator.
#[async_trait]
pub trait RunControl: Send + Sync + fmt::Debug {
    /// Sends a command to the coordinator of a run.
    ///
    /// # Errors
    /// [`QueueError::NoAnswer`] when the run has no coordinator;
    /// [`QueueError::NoAnswerInTime`] when it may yet execute the command.
    async fn command(&self, run: RunId, command: RunCommand) -> Result<CommandReceipt, QueueError>;

    /// Asks the worker of a trial for a control, and waits this long for its receipt; `None` when no
    /// worker answers.
    ///
    /// # Errors
    /// [`QueueError`] when the request could not be sent.
    async fn trial_control(
        &self,
        request: &TrialControlRequest,
        wait: Duration,
    ) -> Result<Option<TrialControlReceipt>, QueueError>;
}

/// The connection of a client to its broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionStatus {
    /// Whether the broker can be reached.
    pub up: bool,
    /// Number of connections made so far. A changed number means that messages may have been
    /// missed, and that the broker may have a new incarnation.
    pub connections: u64,
}

/// A small key-value store with revisions, for locks and states of runs.
#[async_trait]
pub trait KvStore: Send + Sync + fmt::Debug {
    /// The entry of a key.
    ///
    /// # Errors
    /// [`QueueError`].
    async fn read(&self, key: &str) -> Result<Option<KvEntry>, QueueError>;

    /// Writes a key if its entry has this revision, or has no entry when the revision is absent.
    /// Returns the new revision, or `None` when another client wrote in between.
    ///
    /// # Errors
    /// [`QueueError`], after which the key may have been written or not.
    async fn write(
        &self,
        key: &str,
        value: Bytes,
        revision: Option<u64>,
    ) -> Result<Option<u64>, QueueError>;

    /// Removes a key if its entry has this revision; returns whether it did.
    ///
    /// # Errors
    /// [`QueueError`].
    async fn remove(&self, key: &str, revision: u64) -> Result<bool, QueueError>;

    /// Every key with its entry, and the age of the entry.
    ///
    /// # Errors
    /// [`QueueError`].
    async fn entries(&self) -> Result<Vec<ListedKvEntry>, QueueError>;
}

/// A value of a [`KvStore`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvEntry {
    /// Grows with every write to the store.
    pub revision: u64,
    /// The value.
    pub value: Bytes,
}

/// An entry in the list of a [`KvStore`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedKvEntry {
    /// Its key.
    pub key: String,
    /// The entry.
    pub entry: KvEntry,
    /// Time since it was written, by the broker's own clock.
    pub age: Duration,
}

/// A claim that waits for its answer.
#[derive(Debug)]
pub struct PendingClaim {
    /// The claim.
    pub claim: Claim,
    /// Sends the answer. Dropping it means no answer.
    pub reply: oneshot::Sender<ClaimAnswer>,
}

/// A request of a user about a trial.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PendingTrialRequest {
    /// The request.
    pub request: TrialRequest,
    /// Where the answer goes, see [`WorkSource::answer_trial_request`].
    pub reply_to: String,
}

/// A command that waits for its receipt.
#[derive(Debug)]
pub struct PendingCommand {
    /// The command.
    pub command: RunCommand,
    /// Sends the receipt. Dropping it means no answer.
    pub reply: oneshot::Sender<CommandReceipt>,
}

/// Why a request to the queue failed.
#[derive(Debug, thiserror::Error)]
pub enum QueueError {
    /// The broker cannot be reached.
    #[error("cannot use the queue: {reason}")]
    Unreachable {
        /// The client's error.
        reason: String,
    },
    /// The run has no coordinator, or it ended before it answered.
    #[error("no coordinator responds for run {run}")]
    NoAnswer {
        /// The run.
        run: RunId,
    },
    /// The coordinator did not answer in time. It may be busy, and may still handle the request.
    #[error("the coordinator of run {run} did not answer in time")]
    NoAnswerInTime {
        /// The run.
        run: RunId,
    },
    /// The broker works and refuses the request: a retry does not help.
    #[error("the queue refused the request: {reason}")]
    Denied {
        /// The broker's reason.
        reason: String,
    },
    /// A position does not exist in the current stream.
    #[error("the queue no longer has the position that reports were read up to")]
    Position,
}
