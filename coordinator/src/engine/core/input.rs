//! What the core is told.

use std::collections::BTreeMap;
use std::time::Duration;

use rollout_protocol::Timestamp;
use rollout_protocol::digest::Digest;
use rollout_protocol::id::{ExecId, ItemId};
use rollout_protocol::wire::claim::Claim;
use rollout_protocol::wire::control::StopLevel;
use rollout_protocol::wire::delivery::QueuedOffer;
use rollout_protocol::wire::heartbeat::ReceivedHeartbeat;
use rollout_protocol::wire::offer::SizeClass;
use rollout_protocol::wire::position::PositionedReport;
use rollout_protocol::wire::report::Report;

use super::record::RecordBlobStatus;

/// The time of an input.
#[derive(Debug, Clone, Copy)]
pub struct InputTime {
    /// Milliseconds on a monotonic clock.
    pub monotonic_ms: u64,
    /// Wall clock; written down, and compared only for how much of a wait is left when a sitting
    /// begins.
    pub wall: Timestamp,
}

/// One input.
#[derive(Debug)]
pub enum CoreInput {
    /// The plan's next items, in the order in which they shall be dispatched.
    Items(Vec<NewItem>),
    /// The plan has no more items.
    Exhausted,
    /// Whoever executed something in a former sitting is proven dead, and what it left was
    /// reported: every open execution is lost and every offer is gone.
    FormerExecutorsDead,
    /// A report was read.
    Reported(Box<PositionedReport>),
    /// A report was read whose record blob is not in the store, or cannot be looked for.
    Unbacked {
        /// The report with its place.
        reported: Box<PositionedReport>,
        /// Which of the two.
        why: RecordBlobStatus,
    },
    /// The record blob of a result was looked for after all, see [`Core::unchecked`].
    ///
    /// [`Core::unchecked`]: super::Core::unchecked
    Checked {
        /// Item.
        item: ItemId,
        /// Execution.
        exec: ExecId,
        /// Whether the store has it.
        found: bool,
    },
    /// A worker asks whether it shall run a suspicious delivery. The reports were read to their
    /// head since it came.
    Claim {
        /// Names the question in the answer.
        id: u64,
        /// The question.
        claim: Claim,
    },
    /// A sitting begins while executions of former sittings may still run: offers stay offered, and
    /// what runs is learnt from reports and hellos.
    Begin,
    /// For how long every hello was kept, until now: whoever said one since then is among the
    /// hellos that follow. When this is never said, nothing was kept before the sitting.
    HellosKept(Duration),
    /// The last hello of every worker that said one, all of them at once.
    Hellos(Vec<ReceivedHeartbeat>),
    /// The queue was out of reach, or it is another incarnation: that something is not shown means
    /// nothing until hellos were watched for one lease again.
    Reconnected,
    /// A round of reconciliation: every offer of the run in the queue. The reports were read to
    /// their head, the offers were listed, the hellos were taken in, and the reports were read to
    /// their head again, in this order, without a break in the connection.
    Observed(Vec<QueuedOffer>),
    /// What the store has of an item of which results were looked for, as the reports that were lost.
    Found {
        /// The item.
        item: ItemId,
        /// Reports made from its result markers.
        reports: Vec<Report>,
    },
    /// How many offers of each size class the queue shall hold at most that nobody is known to have
    /// started. A class that is not named has no bound.
    Room(BTreeMap<SizeClass, usize>),
    /// Lanes that no registered worker could ever run, and why.
    Unplaceable(BTreeMap<u16, String>),
    /// A user ends these items for good.
    Cancel {
        /// Names the command in the receipt.
        id: u64,
        /// The items, with those that nobody asked for yet.
        items: Vec<NewItem>,
    },
    /// Time passed.
    Tick,
    /// Stop.
    Stop(StopLevel),
}

/// An item of the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewItem {
    /// Item.
    pub item: ItemId,
    /// Position in the plan's order of results.
    pub ordinal: u64,
    /// Digest of what it runs under.
    pub spec: Digest,
    /// Its size class.
    pub class: SizeClass,
    /// What it needs of a worker: an index into the planner's lanes.
    pub lane: u16,
}
