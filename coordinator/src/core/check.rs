//! What must hold after every step. Called by tests and in debug builds.

use super::Core;
use super::row::{Known, State};

/// A broken invariant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("broken invariant: {0}")]
pub struct Broken(String);

impl Core {
    /// Checks every invariant that the state alone can show.
    ///
    /// # Errors
    /// The first one that does not hold.
    pub fn check(&self) -> Result<(), Broken> {
        let count =
            |want: fn(&State) -> bool| self.rows.values().filter(|r| want(&r.state)).count();
        let offered = count(|state| *state == State::Offered);
        if offered != self.in_flight {
            return Err(Broken(format!("{offered} items offered, {} counted", self.in_flight)));
        }
        if self.dispatching && offered > self.settings.permits {
            return Err(Broken(format!("{offered} permits of {}", self.settings.permits)));
        }
        let planned = self.rows.values().filter(|row| row.ordinal.is_some());
        let (settled, unsettled): (Vec<_>, Vec<_>) = planned.partition(|row| row.is_settled());
        if (settled.len(), unsettled.len()) != (self.settled, self.unsettled) {
            return Err(Broken("settled and unsettled items are miscounted".to_owned()));
        }
        for (item, row) in &self.rows {
            if row.is_settled() && !row.executions.is_empty() {
                return Err(Broken(format!("settled item {item} keeps executions")));
            }
            if super::merge::decided(row).is_some() {
                return Err(Broken(format!("item {item} could be settled and is not")));
            }
            let nothing_open = !row.executions.iter().any(Known::is_open);
            if super::merge::is_withheld(row) && nothing_open {
                return Err(Broken(format!("item {item} withholds a result for nothing")));
            }
        }
        Ok(())
    }
}
