//! What must hold after every step. Called by tests and in debug builds.

use std::collections::{BTreeMap, BTreeSet};

use rollout_protocol::id::ItemId;

use super::Core;
use super::merge;
use super::row::{Row, State};

/// A broken invariant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("broken invariant: {0}")]
pub struct Broken(String);

fn must(holds: bool, what: impl FnOnce() -> String) -> Result<(), Broken> {
    if holds { Ok(()) } else { Err(Broken(what())) }
}

impl Core {
    /// Checks every invariant that the state alone can show.
    ///
    /// # Errors
    /// The first one that does not hold.
    pub fn check(&self) -> Result<(), Broken> {
        let offered = self.rows.values().filter(|row| row.state == State::Offered).count();
        must(offered == self.in_flight, || {
            format!("{offered} items offered, {} counted", self.in_flight)
        })?;
        let permits = self.settings.permits.max(self.inherited);
        must(!self.dispatching || offered <= permits, || {
            format!("{offered} permits of {permits}")
        })?;
        let planned = self.rows.values().filter(|row| row.ordinal.is_some());
        let (settled, unsettled): (Vec<_>, Vec<_>) = planned.partition(|row| row.is_settled());
        must((settled.len(), unsettled.len()) == (self.settled, self.unsettled), || {
            "settled and unsettled items are miscounted".to_owned()
        })?;
        self.rows.iter().try_for_each(|(item, row)| self.check_row(*item, row))?;
        self.check_line()?;
        self.check_flights()
    }

    fn check_row(&self, item: ItemId, row: &Row) -> Result<(), Broken> {
        let (settled, known) = (row.is_settled(), !row.executions.is_empty());
        must(!settled || !known, || format!("settled item {item} keeps executions"))?;
        must(merge::decided(row).is_none(), || format!("item {item} could be settled and is not"))?;
        must(!merge::is_withheld(row) || row.has_open(), || {
            format!("item {item} withholds a result for nothing")
        })?;
        must(settled || !row.cancelled || row.has_open(), || {
            format!("item {item} is cancelled, and nothing of it is open")
        })?;
        must(self.disturbed.contains(&item) == known, || {
            format!("item {item} is not where its executions are looked for")
        })
    }

    /// What is owed is in line, once.
    fn check_line(&self) -> Result<(), Broken> {
        let line: Vec<ItemId> = self.ready.items().collect();
        must(line.len() == self.ready.len(), || "the line is miscounted".to_owned())?;
        let known: BTreeSet<ItemId> = line.iter().copied().collect();
        must(known.len() == line.len(), || "an item is in line twice".to_owned())?;
        let owed = |row: &Row| row.state == State::Owed && row.ordinal.is_some() && !row.cancelled;
        let mut owed = self.rows.iter().filter(|(_, row)| self.dispatching && owed(row));
        owed.try_for_each(|(item, _)| {
            must(known.contains(item), || format!("item {item} is owed and not in line"))
        })
    }

    /// What is offered is watched.
    fn check_flights(&self) -> Result<(), Broken> {
        let Some(elsewhere) = &self.elsewhere else { return Ok(()) };
        must(elsewhere.flights.len() == self.in_flight, || {
            format!("{} of {} offers are watched", elsewhere.flights.len(), self.in_flight)
        })?;
        let mut unstarted = BTreeMap::new();
        for (item, flight) in &elsewhere.flights {
            let current = self.rows.get(item).map(|row| row.current);
            must(current == Some(flight.try_id), || {
                format!("another try of item {item} is watched than offered")
            })?;
            if !flight.started {
                *unstarted.entry(flight.class).or_insert(0usize) += 1;
            }
        }
        must(unstarted == elsewhere.unstarted, || "unstarted offers are miscounted".to_owned())
    }
}
