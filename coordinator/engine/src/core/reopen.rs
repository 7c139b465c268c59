//! Reopening: a settled item runs again under a new floor, from the beginning of a session or within
//! it. Its previous executions stay with it as superseded executions, and count towards no limit.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use rollout_protocol::Timestamp;
use rollout_protocol::id::{ItemId, TryId};
use rollout_protocol::record::{Execution, ExecutionEnd, LostReason, Timestamps};
use rollout_protocol::wire::command::CommandReceipt;
use rollout_protocol::wire::report::ResultBody;

use super::Core;
use super::effect::CoreEffect;
use super::handle::CoreOutput;
use super::input::{InputTime, ItemToReopen};
use super::item::{
    ExecutionLoss, ExecutionState, ItemEntry, ItemStatus, KnownExecution, VoidReason,
};
use super::record::JournalRecord;

/// Items of one record.
const MAX_ITEMS_PER_RECORD: usize = 4096;

impl Core {
    /// A user gives settled items another try within the session. Items that have another settlement
    /// by now, or none, are left alone.
    pub(super) fn reopen(
        &mut self,
        now: InputTime,
        id: u64,
        named: u64,
        items: Vec<ItemToReopen>,
        out: &mut impl CoreOutput,
    ) {
        if self.stop.is_some() {
            let receipt = CommandReceipt::refused("the run is stopping");
            out.effects().push(CoreEffect::Receipt { id, receipt });
            return;
        }
        let items: Vec<_> = items.into_iter().filter(|asked| self.is_unchanged(asked)).collect();
        let reopened = Some(items.len() as u64);
        if let Some(items @ 1..) = reopened {
            self.commit(now, JournalRecord::Retried { items }, out);
        }
        for chosen in items.chunks(MAX_ITEMS_PER_RECORD) {
            let (epoch, items) = (self.settings.epoch, chosen.iter().map(|i| i.new.item).collect());
            self.commit(now, JournalRecord::Reopened { epoch, items }, out);
        }
        if !items.is_empty() {
            // Queues may have entries from before the items were settled.
            let chosen = items.iter().map(|asked| asked.new.item).collect();
            self.ready.remove(&chosen);
            self.waiting.retain(|Reverse((_, item))| !chosen.contains(item));
            // Without a suitable worker, they wait for one as at first.
            let lanes: BTreeSet<u16> = items.iter().map(|asked| asked.new.lane).collect();
            self.renew_unplaceable(now, &lanes);
        }
        for asked in items {
            let item = asked.new.item;
            let former = asked.former.superseded.iter().chain(&asked.former.by);
            let former = former.cloned().collect();
            // One that was never offered is unknown now.
            self.plan(now, asked.new, out);
            self.restore_executions(item, now.wall, former);
            if let Some(row) = self.items.get(&item).filter(|row| row.current.n > 0) {
                self.ready.push_again((row.offered_class(), row.lane), item);
            }
            out.effects().push(CoreEffect::Reopened(asked.former));
        }
        let receipt = CommandReceipt { named, reopened, ..CommandReceipt::default() };
        out.effects().push(CoreEffect::Receipt { id, receipt });
    }

    /// Whether an item has the settlement that the journal showed.
    fn is_unchanged(&self, asked: &ItemToReopen) -> bool {
        let outcome = asked.former.verdict.outcome;
        self.items.get(&asked.new.item).is_some_and(|row| {
            row.state == ItemStatus::Settled(outcome)
                && row.current.n == asked.tries
                && row.ordinal.is_some()
        })
    }

    /// Makes a settled item pending again: no try made before the session of `epoch` settles it.
    /// (In a repaired journal the settlement may be lost; the floor holds all the same.)
    pub(super) fn apply_reopened(&mut self, item: ItemId, epoch: u32) {
        let Some(row) = self.items.get_mut(&item) else { return };
        let was_counted = row.is_settled() && row.ordinal.is_some();
        self.settled -= usize::from(was_counted);
        if row.current.n == 0 {
            // It was never offered: treated as unknown.
            if row.is_settled() {
                self.items.remove(&item);
            }
            return;
        }
        self.unsettled += usize::from(was_counted);
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
        ExecutionEnd::Lost { reason, phase, cost, model_use } => {
            let inferred = ExecutionLoss::inferred(reason);
            ExecutionState::Lost(ExecutionLoss { phase, cost, record, model_use, ..inferred })
        }
        ExecutionEnd::Open => {
            let reason = LostReason::Unreachable;
            ExecutionState::Lost(ExecutionLoss { record, ..ExecutionLoss::inferred(reason) })
        }
    };
    KnownExecution { exec, try_id, order, worker, solo: false, superseded: true, state }
}
