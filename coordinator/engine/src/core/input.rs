//! Inputs of the core.

use std::collections::BTreeMap;
use std::time::Duration;

use rollout_protocol::Timestamp;
use rollout_protocol::digest::Digest;
use rollout_protocol::id::{ItemId, TryId};
use rollout_protocol::wire::claim::Claim;
use rollout_protocol::wire::control::StopLevel;
use rollout_protocol::wire::delivery::QueuedOffer;
use rollout_protocol::wire::heartbeat::ReceivedHeartbeat;
use rollout_protocol::wire::offer::SizeClass;
use rollout_protocol::wire::position::PositionedReport;
use rollout_protocol::wire::report::Report;

use super::effect::ItemSettlement;

/// The time of an input.
#[derive(Debug, Clone, Copy)]
pub struct InputTime {
    /// Milliseconds on a monotonic clock.
    pub monotonic_ms: u64,
    /// Wall clock; recorded, and compared only to find the rest of a wait when a session begins.
    pub wall: Timestamp,
}

/// One input.
#[derive(Debug)]
pub enum CoreInput {
    /// The plan's next items, in dispatch order.
    Items(Vec<NewItem>),
    /// The plan has no more items.
    PlanComplete,
    /// Every executor of previous sessions is proven dead, and the results they left were reported:
    /// every open execution is lost and every offer is gone.
    PreviousExecutorsDead,
    /// A report was read.
    Reported(Box<PositionedReport>),
    /// A worker asks whether to run a suspicious delivery. Since the claim arrived, the reports
    /// were read to their head.
    Claim {
        /// Id of the request, for the answer.
        id: u64,
        /// The claim.
        claim: Claim,
    },
    /// A session begins while executions of previous sessions may still run: offers stay offered,
    /// and running executions are learnt from reports and heartbeats.
    ResumeRemote,
    /// How long every heartbeat has been kept until now: each worker that sent one since then is
    /// among the heartbeats that follow. Without this input, none was kept before the session.
    HeartbeatsKept(Duration),
    /// The last heartbeat of every worker that sent one, all at once.
    Heartbeats(Vec<ReceivedHeartbeat>),
    /// The queue was unreachable, or is another incarnation: that an execution is not shown means
    /// nothing until heartbeats were watched for one lease again.
    Reconnected,
    /// A reconciliation round: every offer of the run in the queue. Over one unbroken connection
    /// and in this order, the reports were read to their head, the offers were listed, the
    /// heartbeats were taken in, and the reports were read to their head again.
    Observed(Vec<QueuedOffer>),
    /// Results of an item found in the store, in place of reports that were lost.
    Found {
        /// The item.
        item: ItemId,
        /// Reports made from its result markers.
        reports: Vec<Report>,
    },
    /// The queue has accepted these offers. Until then nothing is concluded from their absence: their
    /// journal record may wait for the disk, or they for room in the queue.
    Published(Vec<(ItemId, TryId)>),
    /// Maximum number of unstarted offers in the queue, by size class. An absent class is
    /// unlimited.
    OfferLimits(BTreeMap<SizeClass, usize>),
    /// Lanes that no registered worker could ever run, and why.
    Unplaceable(BTreeMap<u16, String>),
    /// A user cancels these items for good.
    Cancel {
        /// Id of the command, for the receipt.
        id: u64,
        /// The items, including those that the core has not requested yet.
        items: Vec<NewItem>,
    },
    /// A user gives settled items another try.
    Reopen {
        /// Id of the command, for the receipt.
        id: u64,
        /// Items that the command names.
        named: u64,
        /// Of these, the settled ones, as the journal showed them.
        items: Vec<ItemToReopen>,
    },
    /// A user pauses the run, or ends the pause.
    Pause {
        /// Id of the command, for the receipt.
        id: u64,
        /// Whether to pause.
        is_paused: bool,
    },
    /// Time passed.
    Tick,
    /// Stop.
    Stop(StopLevel),
}

/// A settled item that a user wants to run again.
#[derive(Debug, Clone, PartialEq)]
pub struct ItemToReopen {
    /// The item of the plan.
    pub new: NewItem,
    /// Its tries until it was settled.
    pub tries: u32,
    /// Its settlement. An item with another one by now is left alone.
    pub former: Box<ItemSettlement>,
}

/// An item of the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewItem {
    /// Item.
    pub item: ItemId,
    /// Position in the plan's order of results.
    pub ordinal: u64,
    /// Digest of its spec.
    pub spec: Digest,
    /// Its size class.
    pub class: SizeClass,
    /// Its requirements of a worker: an index into the planner's lanes.
    pub lane: u16,
}
