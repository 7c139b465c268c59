//! Read access to the state of items, for readers of a journal.

use std::collections::hash_map::Entry;

use rollout_protocol::Timestamp;
use rollout_protocol::digest::Digest;
use rollout_protocol::id::ItemId;
use rollout_protocol::record::{Execution, ItemOutcome};

use super::Core;
use super::apply::NO_TRY;
use super::item::{ItemEntry, ItemStatus, KnownExecution};

/// Progress of one item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ItemProgress {
    /// Its stage.
    pub stage: ItemStage,
    /// Tries so far, over all sessions.
    pub tries: u32,
    /// Whether an execution is known that has not ended.
    pub has_open: bool,
}

/// Stage of one item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ItemStage {
    /// To be offered.
    Pending,
    /// Waits before it is tried again.
    Waiting,
    /// Its current try is in the queue or runs.
    Offered,
    /// Has its settlement.
    Settled(ItemOutcome),
}

impl Core {
    /// Gives items their positions in the plan's order, in a core that only replays a journal: as
    /// one that plans them, but nothing is ever offered.
    pub fn assign_ordinals(&mut self, items: impl IntoIterator<Item = (ItemId, u64, Digest)>) {
        for (item, ordinal, spec) in items {
            let row = match self.items.entry(item) {
                Entry::Occupied(row) => row.into_mut(),
                Entry::Vacant(free) => free.insert(ItemEntry::new(spec, NO_TRY)),
            };
            if row.ordinal.replace(ordinal).is_some() {
                continue;
            }
            match row.is_settled() {
                true => self.settled += 1,
                false => self.unsettled += 1,
            }
        }
    }

    /// The progress of an item; `None` if it was neither planned nor offered.
    pub fn progress(&self, item: &ItemId) -> Option<ItemProgress> {
        let row = self.items.get(item)?;
        let stage = match row.state {
            ItemStatus::Pending => ItemStage::Pending,
            ItemStatus::Waiting => ItemStage::Waiting,
            ItemStatus::Offered => ItemStage::Offered,
            ItemStatus::Settled(outcome) => ItemStage::Settled(outcome),
        };
        Some(ItemProgress { stage, tries: row.current.n, has_open: row.has_open() })
    }

    /// The known executions of an unsettled item, in order. Those of a settled item are in its
    /// settlement.
    pub fn executions(&self, item: &ItemId) -> Vec<Execution> {
        let Some(row) = self.items.get(item) else { return Vec::new() };
        let mut known: Vec<&KnownExecution> = row.executions.iter().collect();
        known.sort_by_key(|known| known.order_key());
        known.into_iter().map(|known| known.clone().into_execution()).collect()
    }

    /// When an item that waits is tried again.
    pub fn next_try_at(&self, item: &ItemId) -> Option<Timestamp> {
        let failed_at = self.failed_at.get(item)?;
        let wait_ms = i64::try_from(self.wait_ms(item)).ok()?;
        let due = failed_at.as_millisecond().checked_add(wait_ms)?;
        Timestamp::from_millisecond(due).ok()
    }
}
