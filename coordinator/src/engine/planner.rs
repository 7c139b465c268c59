//! What the engine asks of a planner: of a job, or of a tree search.

use std::sync::Arc;

use rollout_protocol::digest::Digest;
use rollout_protocol::id::{ItemId, RunId, TryId};
use rollout_protocol::item_name::ItemName;
use rollout_protocol::wire::command::TrialSelection;
use rollout_protocol::wire::offer::Offer;
use tokio::sync::Notify;

use crate::engine::WorkerRequirements;
use crate::engine::concurrency::ConcurrencyLimiter;
use crate::engine::core::{ItemSettlement, NewItem};

/// Knows what is owed and how to ask for it.
pub trait Planner: Send {
    /// Number of items of the plan.
    fn total(&self) -> u64;

    /// The next items in the order of dispatch, at most `max`; none when there are no more.
    fn next(&mut self, max: usize) -> Vec<NewItem>;

    /// The item of the plan with this key.
    fn find(&self, item: &ItemId) -> Option<NewItem>;

    /// The offer of a try of an item.
    fn offer(&self, run: RunId, item: ItemId, try_id: TryId, ordinal: u64) -> Offer;

    /// What the items of each lane need of a worker.
    fn lanes(&self) -> &[WorkerRequirements];

    /// The items that a user's selection names, in the plan's order.
    fn select(&self, selection: &TrialSelection) -> Vec<NewItem>;

    /// The name of the item at a position of the plan.
    fn name(&self, ordinal: u64) -> ItemName;

    /// Commit of the repository that the item's task is from, where there is one.
    fn commit(&self, ordinal: u64) -> Option<String> {
        let _none = ordinal;
        None
    }

    /// Rings when a plan that grows has more items than before, or will have no more. A plan that
    /// is whole from the beginning has none.
    fn growth_signal(&self) -> Option<Arc<Notify>> {
        None
    }

    /// Without which some commands of its items may not run, if there are such.
    fn concurrency_limiter(&self) -> Option<Arc<ConcurrencyLimiter>> {
        None
    }

    /// Whether more items may come.
    fn is_open(&self) -> bool {
        false
    }

    /// Hears of every settlement that is durable, once in every sitting: those of former sittings
    /// while the run is opened, also of items that are not in the plan. `spec` is what the item ran
    /// under. A plan that grows may have the item from now on.
    fn on_settled(&self, _settled: &ItemSettlement, _spec: Option<Digest>) {}
}
