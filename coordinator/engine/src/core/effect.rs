//! Effects of the core. None may be carried out before the records made with it are durable.

use rollout_protocol::Timestamp;
use rollout_protocol::error::TrialError;
use rollout_protocol::id::{ExecId, ItemId, TryId};
use rollout_protocol::record::{Execution, Verdict};
use rollout_protocol::wire::claim::ClaimAnswer;
use rollout_protocol::wire::command::CommandReceipt;
use rollout_protocol::wire::control::StopLevel;
use rollout_protocol::wire::offer::SizeClass;

use super::event_chunk::AnnouncedChunk;

/// One effect.
#[derive(Debug, Clone, PartialEq)]
pub enum CoreEffect {
    /// Publish a try.
    Offer {
        /// Item.
        item: ItemId,
        /// Try.
        try_id: TryId,
        /// Position in the plan's order.
        ordinal: u64,
        /// Its size class: the item's own, or [`SizeClass::SOLO`] when it is suspected of killing
        /// workers.
        class: SizeClass,
    },
    /// Delete a try from the queue.
    Withdraw {
        /// Item.
        item: ItemId,
        /// Try.
        try_id: TryId,
    },
    /// Answer a claim.
    Answer {
        /// Id of the request.
        id: u64,
        /// The answer.
        answer: ClaimAnswer,
    },
    /// An item was settled.
    Settled(Box<ItemSettlement>),
    /// An infrastructure failure will be tried again.
    Retry(Box<ItemRetry>),
    /// An execution ended without a verdict.
    Lost {
        /// Item.
        item: ItemId,
        /// Position in the plan's order.
        ordinal: u64,
        /// Try.
        try_id: TryId,
        /// Execution.
        exec: ExecId,
    },
    /// Hook events of an execution were announced, and the journal has the announcement.
    EventChunk(Box<AnnouncedChunk>),
    /// Look in the store for results of an item that is missing, or whose execution is gone, and
    /// report what was found.
    LookForResults {
        /// Item.
        item: ItemId,
    },
    /// Tell a worker to stop an unwanted execution.
    StopExecution {
        /// Execution.
        exec: ExecId,
        /// Stop level.
        level: StopLevel,
    },
    /// Answer a user's command.
    Receipt {
        /// Id of the command.
        id: u64,
        /// The answer.
        receipt: CommandReceipt,
    },
    /// A settled item is pending again: this settlement no longer counts.
    Reopened(Box<ItemSettlement>),
    /// Report that the run is paused from now on, or no longer.
    Paused(bool),
    /// Tell the workers to stop.
    Stop(StopLevel),
}

/// A settlement without the item's name.
#[derive(Debug, Clone, PartialEq)]
pub struct ItemSettlement {
    /// Item.
    pub item: ItemId,
    /// Position in the plan's order; `None` while no plan names the item.
    pub ordinal: Option<u64>,
    /// The execution that settled it.
    pub by: Option<Execution>,
    /// Its verdict.
    pub verdict: Verdict,
    /// The other executions, in order.
    pub superseded: Vec<Execution>,
    /// Time of the settlement.
    pub at: Timestamp,
}

/// A retry.
#[derive(Debug, Clone, PartialEq)]
pub struct ItemRetry {
    /// Item.
    pub item: ItemId,
    /// Position in the plan's order.
    pub ordinal: u64,
    /// Try that failed.
    pub try_id: TryId,
    /// Execution that failed.
    pub exec: ExecId,
    /// Why.
    pub error: TrialError,
    /// Wait before the next try, in milliseconds.
    pub wait_ms: u64,
}
