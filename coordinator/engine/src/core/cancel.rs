//! Cancellation of single items, and the stop of a session.

use rollout_protocol::id::{ExecId, ItemId, TryId};
use rollout_protocol::record::ItemOutcome;
use rollout_protocol::wire::command::CommandReceipt;
use rollout_protocol::wire::control::StopLevel;

use super::Core;
use super::effect::CoreEffect;
use super::handle::CoreOutput;
use super::input::{InputTime, NewItem};
use super::item::{ItemEntry, ItemStatus};
use super::record::{JournalRecord, NamedItem, WithdrawnTry};

/// How long an unwanted execution may still be shown before its worker is told to stop it (again):
/// the last heartbeat shows an execution that has ended for a while.
const STOP_RESEND_MS: u64 = 5000;

/// Urgency of stopping an unwanted execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StopUrgency {
    /// A user cancelled it.
    Now(StopLevel),
    /// It only wastes a slot.
    Soon(StopLevel),
}

impl Core {
    /// A user cancels items for good.
    pub(super) fn cancel(
        &mut self,
        now: InputTime,
        id: u64,
        new: Vec<NewItem>,
        out: &mut impl CoreOutput,
    ) {
        let mut receipt = CommandReceipt { named: new.len() as u64, ..CommandReceipt::default() };
        let mut items = Vec::new();
        for new in new {
            let (item, spec) = (new.item, new.spec);
            self.plan_unqueued(now, new, out);
            match self.items.get(&item) {
                // A command that is sent again has the same receipt.
                Some(row) if row.state == ItemStatus::Settled(ItemOutcome::Cancelled) => {
                    receipt.ended += 1;
                }
                Some(row) if row.is_settled() => receipt.settled += 1,
                Some(row) => {
                    receipt.ended += 1;
                    if !row.cancelled {
                        items.push(NamedItem { item, spec });
                    }
                }
                None => {}
            }
        }
        let open: Vec<_> =
            items.iter().flat_map(|named| self.open_executions(named.item)).collect();
        if !items.is_empty() {
            self.commit(now, JournalRecord::Cancelled { items }, out);
        }
        for exec in open {
            self.send_stop(now, exec, StopUrgency::Now(StopLevel::Kill), out);
        }
        out.effects().push(CoreEffect::Receipt { id, receipt });
    }

    /// Positions in the plan of the items that were requested and have no settlement, in its order.
    pub fn begun(&self) -> Vec<u64> {
        let unsettled = self.items.values().filter(|row| !row.is_settled());
        let mut begun: Vec<u64> = unsettled.filter_map(|row| row.ordinal).collect();
        begun.sort_unstable();
        begun
    }

    fn open_executions(&self, item: ItemId) -> Vec<ExecId> {
        let executions = self.items.get(&item).map_or(&[][..], |row| &row.executions);
        executions.iter().filter(|known| known.may_run()).map(|known| known.exec).collect()
    }

    /// How urgently to stop an execution that was just shown; `None` when it is wanted.
    pub(super) fn stop_urgency(&self, row: &ItemEntry, try_id: TryId) -> Option<StopUrgency> {
        if row.cancelled || row.state == ItemStatus::Settled(ItemOutcome::Cancelled) {
            return Some(StopUrgency::Now(StopLevel::Kill));
        }
        if let Some(level) = self.stop {
            // Every worker was told to stop already.
            return Some(StopUrgency::Soon(level));
        }
        let for_nothing = row.is_settled() || try_id < row.floor;
        for_nothing.then_some(StopUrgency::Soon(StopLevel::Kill))
    }

    /// An execution announced itself: stops it if it is unwanted.
    pub(super) fn stop_if_unwanted(
        &mut self,
        now: InputTime,
        item: ItemId,
        exec: ExecId,
        try_id: TryId,
        out: &mut impl CoreOutput,
    ) {
        let row = self.items.get(&item).filter(|row| row.current.n > 0);
        if let Some(unwanted) = row.and_then(|row| self.stop_urgency(row, try_id)) {
            self.send_stop(now, exec, unwanted, out);
        }
    }

    /// Tells the worker of an unwanted execution to stop it, unless it was told a moment ago.
    pub(super) fn send_stop(
        &mut self,
        now: InputTime,
        exec: ExecId,
        unwanted: StopUrgency,
        out: &mut impl CoreOutput,
    ) {
        let (level, wait_policy) = match unwanted {
            StopUrgency::Now(level) => (level, 0),
            StopUrgency::Soon(level) => (level, STOP_RESEND_MS),
        };
        if let Some(remote) = &mut self.remote {
            let now = now.monotonic_ms;
            let due = remote.unwanted.entry(exec).or_insert(now + wait_policy);
            if *due > now {
                return;
            }
            *due = now + STOP_RESEND_MS;
        }
        out.effects().push(CoreEffect::StopExecution { exec, level });
    }

    /// A user stops the session: items that no worker started stay pending for the next session.
    pub(super) fn begin_stop(
        &mut self,
        now: InputTime,
        level: StopLevel,
        out: &mut impl CoreOutput,
    ) {
        if self.stop >= Some(level) {
            return;
        }
        let first = self.stop.is_none();
        self.commit(now, JournalRecord::Stopping { level }, out);
        if first {
            let running = self.offered(ItemEntry::has_open);
            let unstarted = self.offered(|row| !row.has_open());
            if !unstarted.is_empty() {
                self.withdraw(now, unstarted, out);
            }
            let withdraw = |WithdrawnTry { item, try_id }| CoreEffect::Withdraw { item, try_id };
            out.effects().extend(running.into_iter().map(withdraw));
            self.answer_deferred_claims(now, out);
        }
        out.effects().push(CoreEffect::Stop(level));
    }

    /// Whether nothing that was offered can still run, as far as is known: offers were withdrawn,
    /// and no execution is open.
    pub fn is_quiet(&self) -> bool {
        if self.stop.is_none() {
            return self.in_flight == 0;
        }
        let open = |item| self.items.get(item).is_some_and(ItemEntry::has_open);
        !self.disturbed.iter().any(open)
    }
}
