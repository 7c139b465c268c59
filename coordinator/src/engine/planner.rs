//! The engine's interface to a planner: of a job, or of a tree search.

use std::collections::HashMap;
use std::sync::Arc;

use rollout_protocol::digest::Digest;
use rollout_protocol::id::{ItemId, RunId, TryId};
use rollout_protocol::item_name::ItemName;
use rollout_protocol::wire::command::TrialSelection;
use rollout_protocol::wire::offer::Offer;
use tokio::sync::Notify;

use crate::engine::WorkerRequirements;
use crate::engine::concurrency::ConcurrencyLimiter;
use crate::engine::core::{AnnouncedChunk, ItemSettlement, NewItem};

/// Finds the items of a plan that users name as `agent/dataset/task__attempt` or by their ids, by
/// these keys. Goes through the whole plan: it blocks.
pub type ItemLookup = Box<dyn FnOnce(&[String]) -> HashMap<String, ItemId> + Send>;

/// Supplies the items of a run and their offers.
pub trait Planner: Send {
    /// Number of items of the plan.
    fn total(&self) -> u64;

    /// The next items in dispatch order, at most `max`; empty when there are no more.
    fn next(&mut self, max: usize) -> Vec<NewItem>;

    /// The item of the plan with this key.
    fn find(&self, item: &ItemId) -> Option<NewItem>;

    /// The offer of a try of an item.
    fn offer(&self, run: RunId, item: ItemId, try_id: TryId, ordinal: u64) -> Offer;

    /// The requirements of each lane.
    fn lanes(&self) -> &[WorkerRequirements];

    /// The items that a user's selection names, in the plan's order.
    fn select(&self, selection: &TrialSelection) -> Vec<NewItem>;

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
}
