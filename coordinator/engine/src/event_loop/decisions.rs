//! Decisions of a workload with records of its own.

use tokio::time::Instant;

use super::Engine;
use crate::core::{CoreInput, JournalRecord};
use crate::{PlannerDecisions, RunError};

impl Engine {
    /// Takes the decisions of the workload: its records go to the journal before those that follow
    /// from them.
    pub(super) fn take_decisions(&mut self) {
        let now = self.clock.now();
        let PlannerDecisions { records, cancelled, forgotten, pause } = self.planner.decide(now);
        for record in records {
            self.run.writer.record(now, &JournalRecord::Farm(Box::new(record)));
        }
        if !cancelled.is_empty() {
            let id = self.next_request_id();
            self.handle(CoreInput::Cancel { id, items: cancelled });
        }
        if let Some(is_paused) = pause {
            let id = self.next_request_id();
            self.handle(CoreInput::Pause { id, is_paused });
        }
        self.run.core.forget(forgotten);
        self.planner.decided(self.run.writer.last());
    }

    /// Carries out the decisions whose records are durable.
    pub(super) fn carry_out_decisions(&mut self) -> Result<(), RunError> {
        let committed = self.run.writer.committed();
        if self.planner.has_effects(committed) {
            // A process that was suspended may have a successor that does not know of these.
            self.run.fence.check_when_due().map_err(RunError::LockLost)?;
            self.planner.on_durable(committed);
        }
        Ok(())
    }

    /// When the workload must decide again.
    pub(super) fn decisions_due(&self) -> Option<Instant> {
        self.planner.next_due().map(|due| self.clock.instant(due))
    }

    /// Forgets the settled items of former sessions that the workload does not need.
    pub(super) fn forget_unplanned(&mut self) {
        if !self.planner.keeps_settlements() {
            let unplanned = self.run.core.unplanned_settled();
            self.run.core.forget(unplanned);
        }
    }
}
