//! Reopening: a settled item runs again under a new floor. Its previous executions stay with it as
//! superseded executions, and count towards no limit.

use rollout_protocol::Timestamp;
use rollout_protocol::id::{ItemId, TryId};
use rollout_protocol::record::{Execution, ExecutionEnd, LostReason, Timestamps};
use rollout_protocol::wire::report::ResultBody;

use super::Core;
use super::item::{
    ExecutionLoss, ExecutionState, ItemEntry, ItemStatus, KnownExecution, VoidReason,
};

impl Core {
    /// Makes a settled item pending again: no try made before the session of `epoch` settles it.
    /// (In a repaired journal the settlement may be lost; the floor holds all the same.)
    pub(super) fn apply_reopened(&mut self, item: ItemId, epoch: u32) {
        let Some(row) = self.items.get_mut(&item) else { return };
        let was_settled = row.is_settled();
        if was_settled && row.ordinal.is_some() {
            self.settled -= 1;
            self.unsettled += 1;
        }
        if row.current.n == 0 {
            // It was never offered: treated as unknown.
            if was_settled {
                self.items.remove(&item);
            }
            return;
        }
        let was_offered = row.state == ItemStatus::Offered;
        row.state = ItemStatus::Pending;
        row.floor = row.current.next(row.current.epoch).max(TryId::first(epoch));
        (row.failures, row.cancelled, row.solo) = (0, false, false);
        if was_offered {
            self.release_permit(&item);
        }
        self.failed_at.remove(&item);
    }

    /// Gives a reopened item the executions of its previous settlement.
    pub fn restore_executions(&mut self, item: ItemId, at: Timestamp, former: Vec<Execution>) {
        let Some(row) = self.items.get_mut(&item) else { return };
        if row.is_settled() || former.is_empty() {
            return;
        }
        let known =
            (0..).zip(former).map(|(order, former)| restored_execution(row, at, order, former));
        let known: Vec<KnownExecution> = known.collect();
        row.executions.extend(known);
        self.disturbed.insert(item);
    }
}

fn restored_execution(
    row: &ItemEntry,
    at: Timestamp,
    order: i64,
    former: Execution,
) -> KnownExecution {
    let Execution { try_id, exec, worker, end, record, durations, timestamps } = former;
    let state = match end {
        ExecutionEnd::Reported { verdict } => ExecutionState::Result {
            spec: row.spec,
            void: Some(VoidReason::Superseded),
            body: Box::new(ResultBody {
                verdict,
                durations: durations.unwrap_or_default(),
                timestamps: timestamps.unwrap_or_else(|| Timestamps::instant(at)),
                record,
            }),
        },
        ExecutionEnd::Lost { reason, phase, cost } => {
            ExecutionState::Lost(ExecutionLoss { reason, phase, cost, record })
        }
        ExecutionEnd::Open => {
            let reason = LostReason::Unreachable;
            ExecutionState::Lost(ExecutionLoss { reason, phase: None, cost: 0.0, record })
        }
    };
    KnownExecution { exec, try_id, order, worker, solo: false, superseded: true, state }
}
