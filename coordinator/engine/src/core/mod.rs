//! The core: which items are pending, offered, waiting or settled. Pure: no clock, no IO, no
//! randomness, no tasks; time arrives with the inputs.
//!
//! ```text
//! CoreInput ──handle──▶ JournalRecord ──apply──▶ state, CoreEffect
//!                             ▲
//!                   journal ──┘ (replay: the same apply)
//! ```
//!
//! [`Core::handle`] decides and writes records. [`Core::apply`] is the one transition function,
//! used live, in replay and on resume. An effect may be carried out only when the records made with
//! it are durable.
//!
//! # Invariants
//! * Every planned item ends with exactly one settlement.
//! * At most `permits` items are offered and unreported.
//! * No item is offered whose execution the budgets of model calls could not cover.
//! * A result settles only at or above the item's floor, under the item's present spec, and when no
//!   newer execution is open.

mod apply;
mod budget;
mod cancel;
mod claim;
mod deferred_claim;
mod effect;
mod event_chunk;
mod forget;
mod handle;
mod heartbeat;
mod input;
mod invariants;
mod item;
mod merge;
mod offer;
mod parked;
mod pause;
mod ready_queue;
mod reclaim;
mod reconcile;
mod record;
mod reopen;
mod resume;
mod settle;
#[cfg(test)]
mod tests;
mod unplaceable;
mod view;
mod wait;
mod worker_liveness;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap};
use std::time::Duration;

use self::budget::BudgetLedger;
use self::item::{ItemEntry, ItemStatus};
use self::ready_queue::ReadyQueue;
use self::unplaceable::UnplaceableLane;
use self::worker_liveness::WorkerLiveness;
pub use effect::{CoreEffect, ItemRetry, ItemSettlement};
pub use event_chunk::{AnnouncedChunk, HexDigest};
pub use handle::CoreOutput;
pub use input::{CoreInput, InputTime, ItemToReopen, NewItem};
pub use invariants::InvariantViolation;
pub use record::{
    JournalRecord, NamedItem, OfferedTry, PredecessorSegment, ReplacedSegment, SeenExecution,
    SessionEnd, SessionStart, Takeover, WithdrawnTry,
};
use rollout_protocol::Timestamp;
use rollout_protocol::id::{ExecId, ItemId, RunId, TryId};
use rollout_protocol::limits;
use rollout_protocol::retry::RetryPolicy;
use rollout_protocol::spec::budget::RunBudget;
use rollout_protocol::wire::control::StopLevel;
use rollout_protocol::wire::offer::SizeClass;
use rollout_protocol::wire::position::ReportPosition;
pub use view::{ItemProgress, ItemStage};

/// Settings of a core, fixed at the beginning of a session.
#[derive(Debug, Clone, Copy)]
pub struct CoreSettings {
    /// Run.
    pub run: RunId,
    /// Epoch of this session.
    pub epoch: u32,
    /// Items that may be offered and unreported at a time.
    pub permits: usize,
    /// When infrastructure failures are tried again.
    pub retry: RetryPolicy,
    /// Timeouts for remote workers.
    pub timeouts: RemoteTimeouts,
}

/// Timeouts of a session with remote workers, on the clock of [`InputTime`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoteTimeouts {
    /// How long a delivery belongs to a silent worker.
    pub lease: Duration,
    /// How long an unreachable worker keeps its executions, unless its heartbeats name a longer
    /// time; after that they are dead.
    pub max_offline: Duration,
    /// How long items that no registered worker could run wait for a suitable one; `None` in an
    /// elastic pool, where one may still be started.
    pub unplaceable_timeout: Option<Duration>,
}

impl Default for RemoteTimeouts {
    fn default() -> Self {
        Self {
            lease: limits::LEASE,
            max_offline: limits::MAX_OFFLINE,
            unplaceable_timeout: Some(limits::UNPLACEABLE_TIMEOUT),
        }
    }
}

/// The state of a run.
#[derive(Debug)]
pub struct Core {
    settings: CoreSettings,
    items: HashMap<ItemId, ItemEntry>,
    /// Items to offer.
    ready: ReadyQueue,
    /// Items that wait for their next try, by time.
    waiting: BinaryHeap<Reverse<(u64, ItemId)>>,
    /// When the items that wait for their next try failed.
    failed_at: HashMap<ItemId, Timestamp>,
    /// Items that hold a permit.
    in_flight: usize,
    /// Planned items without a settlement.
    unsettled: usize,
    /// Planned items with a settlement.
    settled: usize,
    /// Whether the whole plan was fed in.
    exhausted: bool,
    /// Whether offers may be made: the session knows what previous sessions left.
    dispatching: bool,
    stop: Option<StopLevel>,
    /// Whether a user paused the session: nothing is offered.
    paused: bool,
    /// Position of the last report that a record holds.
    position: Option<ReportPosition>,
    /// Counter that orders executions by when they were first heard of.
    next_hearing: i64,
    /// Unsettled items with known executions.
    disturbed: BTreeSet<ItemId>,
    /// Limits on unstarted offers, by size class.
    offer_limits: BTreeMap<SizeClass, usize>,
    /// Lanes that no registered worker could ever run.
    unplaceable_lanes: BTreeMap<u16, UnplaceableLane>,
    /// State of remote workers; `None` while the only worker is in this process.
    remote: Option<Box<WorkerLiveness>>,
    /// Use and budgets of model calls.
    ledger: Box<BudgetLedger>,
    /// Permits that previous sessions held when this one began.
    inherited: usize,
}

impl Core {
    /// The core of a run that has done nothing yet.
    pub fn new(settings: CoreSettings) -> Self {
        Self {
            settings,
            items: HashMap::new(),
            ready: ReadyQueue::default(),
            waiting: BinaryHeap::new(),
            failed_at: HashMap::new(),
            in_flight: 0,
            unsettled: 0,
            settled: 0,
            exhausted: false,
            dispatching: false,
            stop: None,
            paused: false,
            position: None,
            next_hearing: 0,
            disturbed: BTreeSet::new(),
            offer_limits: BTreeMap::new(),
            unplaceable_lanes: BTreeMap::new(),
            remote: None,
            ledger: Box::default(),
            inherited: 0,
        }
    }

    /// Sets the budgets of model calls, before the journal is read.
    #[must_use]
    pub fn with_budget(self, budget: RunBudget) -> Self {
        Self { ledger: Box::new(BudgetLedger::new(budget)), ..self }
    }

    /// Begins a session once the journal of the previous ones was read.
    pub fn begin_session(&mut self, run: RunId, retry: RetryPolicy) {
        self.settings.run = run;
        self.settings.retry = retry;
        self.stop = None;
        self.paused = false;
    }

    /// Every item of the journal, in no order.
    pub fn items(&self) -> impl Iterator<Item = ItemId> + '_ {
        self.items.keys().copied()
    }

    /// Position of the last report that a record holds: resume reading there.
    pub fn position(&self) -> Option<ReportPosition> {
        self.position
    }

    /// Planned items that are settled.
    pub fn settled(&self) -> usize {
        self.settled
    }

    /// Items that are offered and unreported.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// The stop level, if a stop was requested.
    pub fn stopping(&self) -> Option<StopLevel> {
        self.stop
    }

    /// Whether a user paused the session.
    pub fn is_paused(&self) -> bool {
        self.paused
    }

    /// The item's position in the plan's order, if it was ever planned or offered.
    pub fn ordinal(&self, item: &ItemId) -> Option<u64> {
        self.items.get(item).and_then(|row| row.ordinal)
    }

    /// Whether an execution runs, as far as is known, and is wanted: neither reported nor lost, nor
    /// its item settled. `None` when it was never heard of.
    pub fn is_open(&self, item: &ItemId, exec: &ExecId) -> Option<bool> {
        let row = self.items.get(item)?;
        if row.is_settled() {
            return Some(false);
        }
        let known = row.executions.iter().find(|known| known.exec == *exec)?;
        Some(known.is_open() && known.try_id >= row.floor)
    }

    /// Whether an execution that was seen still runs: its item has no settlement, its end is not
    /// known, and, if it is remote, a live worker shows it.
    pub fn is_running(
        &self,
        monotonic_ms: u64,
        item: &ItemId,
        try_id: TryId,
        exec: &ExecId,
    ) -> bool {
        let Some(row) = self.items.get(item).filter(|row| !row.is_settled()) else { return false };
        let known = row.executions.iter().find(|known| known.exec == *exec);
        match (&self.remote, known) {
            (Some(remote), Some(known)) => known.may_run() && remote.is_shown(monotonic_ms, exec),
            (Some(_), None) => false,
            (None, Some(known)) => known.is_open(),
            (None, None) => row.state == ItemStatus::Offered && row.current == try_id,
        }
    }

    /// Whether every remote worker that may run something of this run was heard in this session, by
    /// this monotonic time.
    pub fn is_watched(&self, monotonic_ms: u64) -> bool {
        self.remote.as_ref().is_some_and(|remote| remote.is_watched(monotonic_ms))
    }

    /// Whether a worker counts as alive when it was last heard this long ago.
    pub fn counts_as_alive(&self, age: Duration) -> bool {
        let age = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
        self.remote.as_ref().is_some_and(|remote| age < remote.timeouts.silence)
    }

    /// Whether every planned item is settled.
    pub fn is_complete(&self) -> bool {
        self.exhausted && self.unsettled == 0
    }

    /// Whether the journal holds no item at all.
    pub fn is_untouched(&self) -> bool {
        self.items.is_empty()
    }

    /// The spec under which a settled item ran, or `None` when it is not settled.
    pub fn settled_spec(&self, item: &ItemId) -> Option<rollout_protocol::digest::Digest> {
        self.items.get(item).filter(|row| row.is_settled()).map(|row| row.spec)
    }
}
