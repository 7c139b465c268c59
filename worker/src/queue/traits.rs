//! What workers and coordinators ask of the queue. Two traits, one per role, so that workers have no
//! power they must not have.
//!
//! # Semantics every implementation has, because the real broker has them
//! * **Acknowledgements are not fenced**: acknowledging, refusing or extending an earlier delivery
//!   acts on the present one. Ownership is decided by the coordinator, never here.
//! * **Redelivery**: a delivery that is neither acknowledged nor extended for one lease is delivered
//!   again; after a restart of the broker everything in flight is, at once.
//! * **Incarnations**: a broker that lost its state has a new incarnation; positions and tokens of
//!   another incarnation mean nothing in it.
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
use rollout_protocol::wire::position::{Incarnation, ReportBatch, ReportPosition};
use rollout_protocol::wire::report::Report;
use tokio::sync::{broadcast, oneshot, watch};

/// The worker's side of the queue.
#[async_trait]
pub trait WorkSource: Send + Sync + fmt::Debug {
    /// Takes at most as many offers as there is room for, the biggest class that fits first,
    /// waiting up to `wait` for the first. A caller may drop it while it waits; what was taken for
    /// it then comes again after its lease, or sooner.
    ///
    /// # Errors
    /// [`QueueError`].
    async fn pull(&self, room: FreeCapacity, wait: Duration) -> Result<Vec<Delivery>, QueueError>;

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

    /// Gives deliveries back for immediate redelivery.
    ///
    /// # Errors
    /// [`QueueError`].
    async fn nak(&self, tokens: &[MessageToken]) -> Result<(), QueueError>;

    /// Asks the coordinator of the run whether a suspicious delivery shall run.
    ///
    /// # Errors
    /// [`QueueError::NoAnswer`] when no coordinator answers.
    async fn claim(&self, claim: Claim) -> Result<ClaimAnswer, QueueError>;

    /// Whether the hello of a live worker contests a claim, see [`Claim::is_contested_by`]: asked
    /// when no coordinator answers.
    ///
    /// # Errors
    /// [`QueueError`].
    async fn is_contested(&self, claim: &Claim) -> Result<bool, QueueError>;

    /// Appends reports; each is durable in the stream when its answer is `Ok`.
    ///
    /// # Errors
    /// [`QueueError`] when nothing is known of any of them; saying them again is harmless.
    async fn report(
        &self,
        reports: Vec<Report>,
    ) -> Result<Vec<Result<(), PublishError>>, QueueError>;

    /// Says what this worker is and runs.
    ///
    /// # Errors
    /// [`QueueError`].
    async fn heartbeat(&self, hello: Heartbeat) -> Result<(), QueueError>;

    /// Whether the broker is reached, from now on.
    fn connection_status(&self) -> watch::Receiver<ConnectionStatus>;

    /// Commands of coordinators from now on. May miss some: a hint only.
    fn controls(&self) -> broadcast::Receiver<ControlMessage>;
}

/// The coordinator's side of the queue.
#[async_trait]
pub trait Dispatch: Send + Sync + fmt::Debug {
    /// The broker's present incarnation.
    ///
    /// # Errors
    /// [`QueueError`].
    async fn incarnation(&self) -> Result<Incarnation, QueueError>;

    /// Whether the broker is reached, from now on.
    fn connection_status(&self) -> watch::Receiver<ConnectionStatus>;

    /// Publishes offers unless they are already there.
    ///
    /// # Errors
    /// [`QueueError`] when nothing is known of any of them; offering them again is harmless.
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

    /// Tells which pools the tries of a run were offered to, by epoch, where that was another one
    /// than this dispatch's own or is not known. Reports of a try count only from its pool's
    /// workers, those of an epoch whose pool is not known from any of them. Must be called before
    /// the run's reports are read.
    fn set_previous_pools(&self, run: RunId, former: PreviousPools);

    /// Reports of the run after `from` (all of them when absent), at most `max`, waiting up to
    /// `wait` for the first. Messages that were passed over end the wait, too.
    ///
    /// # Errors
    /// [`QueueError::ReportPosition`] when the position is not of this stream as it is now: read from the
    /// beginning.
    async fn reports(
        &self,
        run: RunId,
        from: Option<ReportPosition>,
        max: usize,
        wait: Duration,
    ) -> Result<ReportBatch, QueueError>;

    /// The coordinator's journal holds the run's reports up to and including this position, for
    /// good. Reports strictly below it are deleted; it stays itself, as an anchor. A queue that
    /// does not outlive its process acknowledges reports to workers only now, so that a worker
    /// keeps what it would otherwise be the only one to know.
    ///
    /// # Errors
    /// [`QueueError`].
    async fn mark_journaled(&self, run: RunId, position: ReportPosition) -> Result<(), QueueError>;

    /// The next claim for this run.
    ///
    /// # Errors
    /// [`QueueError`].
    async fn next_claim(&self, run: RunId) -> Result<PendingClaim, QueueError>;

    /// The last hello of every worker that said one.
    ///
    /// # Errors
    /// [`QueueError`].
    async fn heartbeats(&self) -> Result<Vec<ReceivedHeartbeat>, QueueError>;

    /// The next command of a user for this run.
    ///
    /// # Errors
    /// [`QueueError`].
    async fn next_command(&self, run: RunId) -> Result<PendingCommand, QueueError>;

    /// The sequence of the run's last report, 0 when there is none: who has read up to it knows
    /// everything that was reported before this was asked.
    ///
    /// # Errors
    /// [`QueueError`].
    async fn last_report_sequence(&self, run: RunId) -> Result<u64, QueueError>;

    /// For how long every hello was kept, until now: a worker that said one since then is among
    /// [`Dispatch::heartbeats`]. Another coordinator may have been there to hear it.
    fn heartbeat_retention(&self) -> Duration;

    /// Tells workers something at once. A hint only.
    ///
    /// # Errors
    /// [`QueueError`].
    async fn control(&self, control: ControlMessage) -> Result<(), QueueError>;
}

/// How a client stands with its broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionStatus {
    /// Whether the broker can be reached.
    pub up: bool,
    /// How often a connection was made. Another number means that something may have been missed,
    /// and that the broker may not be what it was.
    pub connections: u64,
}

/// A small store of values under keys, each with a revision, for locks and states of runs.
#[async_trait]
pub trait KvStore: Send + Sync + fmt::Debug {
    /// What stands under a key.
    ///
    /// # Errors
    /// [`QueueError`].
    async fn read(&self, key: &str) -> Result<Option<KvEntry>, QueueError>;

    /// Writes a key if what stands there has this revision, or if nothing stands there when there
    /// is none; its new revision. `None` when somebody else wrote in between.
    ///
    /// # Errors
    /// [`QueueError`], after which it may have been written or not.
    async fn write(
        &self,
        key: &str,
        value: Bytes,
        revision: Option<u64>,
    ) -> Result<Option<u64>, QueueError>;

    /// Removes a key if what stands there has this revision; whether it did.
    ///
    /// # Errors
    /// [`QueueError`].
    async fn remove(&self, key: &str, revision: u64) -> Result<bool, QueueError>;

    /// Every key with what stands there.
    ///
    /// # Errors
    /// [`QueueError`].
    async fn entries(&self) -> Result<Vec<(String, KvEntry)>, QueueError>;
}

/// A value of a [`KvStore`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvEntry {
    /// Grows with every write of the board.
    pub revision: u64,
    /// The value.
    pub value: Bytes,
}

/// A claim that waits for its answer.
#[derive(Debug)]
pub struct PendingClaim {
    /// The claim.
    pub claim: Claim,
    /// Where the answer goes. Dropping it is no answer.
    pub reply: oneshot::Sender<ClaimAnswer>,
}

/// A command that waits for its receipt.
#[derive(Debug)]
pub struct PendingCommand {
    /// The command.
    pub command: RunCommand,
    /// Where the receipt goes. Dropping it is no answer.
    pub reply: oneshot::Sender<CommandReceipt>,
}

/// Why the queue could not do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum QueueError {
    /// The broker cannot be reached.
    #[error("the queue cannot be reached: {reason}")]
    Unreachable {
        /// What the client says.
        reason: String,
    },
    /// No coordinator answered a claim.
    #[error("no coordinator answers for run {run}")]
    NoAnswer {
        /// The run.
        run: RunId,
    },
    /// The broker works, and does not do this for us: asking again will not help.
    #[error("the queue refuses: {reason}")]
    Denied {
        /// What it says.
        reason: String,
    },
    /// A position is not of the stream as it is now.
    #[error("the reports were read up to a position that the queue no longer knows")]
    Position,
}
