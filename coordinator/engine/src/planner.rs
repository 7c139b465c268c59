//! The engine's interface to a planner: of a job, or of a tree search.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use rollout_protocol::Timestamp;
use rollout_protocol::digest::Digest;
use rollout_protocol::farm::FarmRecord;
use rollout_protocol::id::{ItemId, RunId, TryId};
use rollout_protocol::item_name::ItemName;
use rollout_protocol::limits::READY_AHEAD;
use rollout_protocol::wire::command::{ReopenSelection, TrialSelection};
use rollout_protocol::wire::offer::Offer;
use tokio::sync::Notify;

use crate::WorkerRequirements;
use crate::concurrency::ConcurrencyLimiter;
use crate::core::{AnnouncedChunk, ItemSettlement, NewItem};

/// Finds the items of a plan that a selection names, by its keys or their names; none for a selection
/// by outcome alone. Goes through the whole plan: it blocks.
pub type ItemLookup = Box<dyn Fn(&ReopenSelection) -> HashMap<String, ItemId> + Send>;

/// How a position of a plan relates to a user's selection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SelectionStep {
    /// The selection names its item.
    Named(NewItem),
    /// The selection names no item before this later position.
    Skip(u64),
    /// The selection names no item from here on.
    End,
}

/// Decisions of a workload with records of its own.
#[derive(Debug, Default)]
pub struct PlannerDecisions {
    /// Records for the journal, in order.
    pub records: Vec<FarmRecord>,
    /// Items to cancel.
    pub cancelled: Vec<NewItem>,
    /// Settled items that nothing refers to any more.
    pub forgotten: Vec<ItemId>,
    /// Whether the run is paused from now on, if that changes. A new session is not paused.
    pub pause: Option<bool>,
}

/// Supplies the items of a run and their offers.
pub trait Planner: fmt::Debug + Send + Sync {
    /// Number of items of the plan.
    fn total(&self) -> u64;

    /// The next items in dispatch order, at most `max`; empty when there are no more.
    fn next(&mut self, max: usize) -> Vec<NewItem>;

    /// Items that may wait for capacity of their size class while later ones of other classes are
    /// looked for. Items that wait are begun: nothing overtakes them.
    fn ready_ahead(&self) -> usize {
        READY_AHEAD
    }

    /// The item of the plan with this key.
    fn find(&self, item: &ItemId) -> Option<NewItem>;

    /// The name of an item of the last session's plan that this plan lacks and whose result must not
    /// go unnoticed.
    fn removed(&self, item: &ItemId) -> Option<ItemName> {
        let _not_known = item;
        None
    }

    /// Whether an item of the plan keeps a result of another spec: the user asks for it now, or the
    /// last session had the same plan of this item, and kept the result.
    fn keeps_result(&self, planned: &NewItem) -> bool {
        let _refused = planned;
        false
    }

    /// The offer of a try of an item.
    fn offer(&self, run: RunId, item: ItemId, try_id: TryId, ordinal: u64) -> Offer;

    /// The requirements of each lane.
    fn lanes(&self) -> &[WorkerRequirements];

    /// The agent of each lane, for budgets of agents; empty if there are none.
    fn agents_of_lanes(&self) -> Vec<u16> {
        Vec::new()
    }

    /// Number of items of each lane; empty if it is not known from the beginning.
    fn lane_totals(&self) -> Vec<u64> {
        Vec::new()
    }

    /// The lane of the item at a position of the plan; `None` if the totals are not known.
    fn lane(&self, ordinal: u64) -> Option<u16> {
        let _unknown = ordinal;
        None
    }

    /// Whether a user's selection names the item at a position of the plan. Takes a short time.
    fn select(&self, selection: &TrialSelection, ordinal: u64) -> SelectionStep;

    /// A lookup of items that run again within a session; `None` if settled items cannot. After
    /// the lookup, [`find`](Self::find) is fast.
    fn item_lookup(&self) -> Option<ItemLookup> {
        None
    }

    /// The name of the item at a position of the plan.
    fn name(&self, ordinal: u64) -> ItemName;

    /// Commit of the repository that the item's task is from, where there is one.
    fn commit(&self, ordinal: u64) -> Option<String> {
        let _none = ordinal;
        None
    }

    /// Notified when a growing plan has more items than before, or will have no more. `None` for a
    /// plan that is complete from the beginning.
    fn growth_signal(&self) -> Option<Arc<Notify>> {
        None
    }

    /// The limiter of commands with bounded concurrency, if the plan has such.
    fn concurrency_limiter(&self) -> Option<Arc<ConcurrencyLimiter>> {
        None
    }

    /// Whether more items may come.
    fn is_open(&self) -> bool {
        false
    }

    /// Called for every durable settlement, once in every session: for those of previous sessions
    /// while the run is opened, also for items that are not in the plan. `spec` is the item's spec.
    /// A growing plan may have the item from now on.
    fn on_settled(&self, _settled: &ItemSettlement, _spec: Option<Digest>) {}

    /// Called for every announcement of hook events that this session reads, when it is durable and
    /// before the settlement of its item.
    fn on_event_chunk(&self, _chunk: AnnouncedChunk) {}

    /// Whether the run keeps the settlement of every item, in memory and in its record files. A
    /// workload with records of its own says when items are forgotten.
    fn keeps_settlements(&self) -> bool {
        true
    }

    /// Whether the journal has its records in their short form, which programs of earlier versions
    /// refuse.
    fn has_short_records(&self) -> bool {
        false
    }

    /// Called for each record of the workload's own while the run is opened, in order.
    fn on_record(&self, _at: Timestamp, _record: &FarmRecord) {}

    /// The time at which the decisions of a session begin, which follows the records of former
    /// sessions. `wall` is what the wall clock shows.
    fn session_start(&self, wall: Timestamp) -> Timestamp {
        wall
    }

    /// The decisions of the workload since the last call, made at `now`. Called before items are
    /// requested, after each growth signal, and when [`next_due`](Self::next_due) has passed.
    fn decide(&mut self, _now: Timestamp) -> PlannerDecisions {
        PlannerDecisions::default()
    }

    /// Called after each [`decide`](Self::decide): its effects wait for the batch of records with
    /// this number.
    fn decided(&mut self, _batch: u64) {}

    /// Whether effects wait for this batch or an earlier one.
    fn has_effects(&self, _batch: u64) -> bool {
        false
    }

    /// Called when the records up to this batch are durable.
    fn on_durable(&mut self, _batch: u64) {}

    /// Records that stand for all records of the workload so far, for a journal with this many bytes
    /// beyond those of the last such records; `None` while it need not be compacted.
    fn compaction(&self, _journal_bytes: u64) -> Option<Vec<FarmRecord>> {
        None
    }

    /// When the workload must decide again at the latest.
    fn next_due(&self) -> Option<Timestamp> {
        None
    }
}
