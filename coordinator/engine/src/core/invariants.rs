//! Invariants that hold after every step. Checked by tests and in debug builds.

use std::collections::{BTreeMap, BTreeSet};

use rollout_protocol::id::ItemId;

use super::Core;
use super::item::{ItemEntry, ItemStatus};
use super::merge;

/// A violated invariant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("broken invariant: {0}")]
pub struct InvariantViolation(String);

fn ensure(holds: bool, what: impl FnOnce() -> String) -> Result<(), InvariantViolation> {
    if holds { Ok(()) } else { Err(InvariantViolation(what())) }
}

impl Core {
    /// Checks every invariant that the state alone can show.
    ///
    /// # Errors
    /// The first one that does not hold.
    pub fn check_invariants(&self) -> Result<(), InvariantViolation> {
        let offered = self.items.values().filter(|row| row.state == ItemStatus::Offered).count();
        ensure(offered == self.in_flight, || {
            format!("{offered} items offered, {} counted", self.in_flight)
        })?;
        let permits = self.settings.permits.max(self.inherited);
        ensure(!self.dispatching || offered <= permits, || {
            format!("{offered} permits of {permits}")
        })?;
        let planned = self.items.values().filter(|row| row.ordinal.is_some());
        let (settled, unsettled): (Vec<_>, Vec<_>) = planned.partition(|row| row.is_settled());
        ensure((settled.len(), unsettled.len()) == (self.settled, self.unsettled), || {
            "settled and unsettled items are miscounted".to_owned()
        })?;
        self.items.iter().try_for_each(|(item, row)| self.check_item(*item, row))?;
        self.check_ready_queue()?;
        self.check_offered_items()
    }

    fn check_item(&self, item: ItemId, row: &ItemEntry) -> Result<(), InvariantViolation> {
        let (settled, known) = (row.is_settled(), !row.executions.is_empty());
        ensure(!settled || !known, || format!("settled item {item} keeps executions"))?;
        ensure(merge::winning_execution(row).is_none(), || {
            format!("item {item} could be settled and is not")
        })?;
        ensure(!merge::is_withheld(row) || row.has_open(), || {
            format!("item {item} withholds a result for nothing")
        })?;
        ensure(settled || !row.cancelled || row.has_open(), || {
            format!("item {item} is cancelled without an open execution, and not settled")
        })?;
        ensure(self.disturbed.contains(&item) == known, || {
            format!("item {item} is misplaced in the set of disturbed items")
        })
    }

    /// Checks that every pending item is queued exactly once.
    fn check_ready_queue(&self) -> Result<(), InvariantViolation> {
        let queued: Vec<ItemId> = self.ready.items().collect();
        ensure(queued.len() == self.ready.len(), || "the ready queue is miscounted".to_owned())?;
        let known: BTreeSet<ItemId> = queued.iter().copied().collect();
        ensure(known.len() == queued.len(), || "an item is queued twice".to_owned())?;
        let pending = |row: &ItemEntry| {
            row.state == ItemStatus::Pending && row.ordinal.is_some() && !row.cancelled
        };
        let mut pending = self.items.iter().filter(|(_, row)| self.dispatching && pending(row));
        pending.try_for_each(|(item, _)| {
            ensure(known.contains(item), || format!("item {item} is pending and not queued"))
        })
    }

    /// Checks that every offered item is watched.
    fn check_offered_items(&self) -> Result<(), InvariantViolation> {
        let Some(remote) = &self.remote else { return Ok(()) };
        ensure(remote.offered.len() == self.in_flight, || {
            format!("{} of {} offers are watched", remote.offered.len(), self.in_flight)
        })?;
        let mut unstarted = BTreeMap::new();
        for (item, flight) in &remote.offered {
            let current = self.items.get(item).map(|row| row.current);
            ensure(current == Some(flight.try_id), || {
                format!("the watched try of item {item} is not the offered one")
            })?;
            if !flight.started {
                *unstarted.entry(flight.class).or_insert(0usize) += 1;
            }
        }
        ensure(unstarted == remote.unstarted, || "unstarted offers are miscounted".to_owned())
    }
}
