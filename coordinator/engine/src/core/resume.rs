//! The beginning of a session, and the items of its plan.

use rollout_protocol::id::ItemId;
use rollout_protocol::record::LostReason;

use super::Core;
use super::apply::NO_TRY;
use super::effect::CoreEffect;
use super::handle::CoreOutput;
use super::input::{InputTime, NewItem};
use super::item::{ItemEntry, ItemStatus, KnownExecution};
use super::record::{JournalRecord, WithdrawnTry};
use super::worker_liveness::WorkerLiveness;

impl Core {
    /// Takes in an item of the plan.
    pub(super) fn plan(&mut self, now: InputTime, new: NewItem, out: &mut impl CoreOutput) {
        if self.plan_unqueued(now, new, out) {
            self.ready.push_fresh((new.class, new.lane), new.item);
        }
    }

    /// Takes in an item of the plan. Returns whether it is new: then it is in no queue, so that nothing
    /// offers it.
    pub(super) fn plan_unqueued(
        &mut self,
        now: InputTime,
        new: NewItem,
        out: &mut impl CoreOutput,
    ) -> bool {
        let NewItem { item, ordinal, spec, class, lane } = new;
        let Some(row) = self.items.get_mut(&item) else {
            let mut row = ItemEntry::new(spec, NO_TRY);
            row.ordinal = Some(ordinal);
            (row.class, row.lane) = (class, lane);
            self.items.insert(item, row);
            self.unsettled += 1;
            return true;
        };
        if row.ordinal.replace(ordinal).is_some() {
            return false;
        }
        (row.class, row.lane) = (class, lane);
        self.count_planned(&item);
        let Some(row) = self.items.get_mut(&item) else { return false };
        if row.is_settled() {
            self.settled += 1;
            return false;
        }
        self.unsettled += 1;
        let (pending, respecified) = (self.dispatching && row.is_pending(), row.spec != spec);
        if pending && !self.waits_on(now, &item) {
            self.requeue_now(item);
        }
        if respecified {
            self.commit(now, JournalRecord::Respecified { item, spec }, out);
        }
        false
    }

    /// Begins a session when nothing of previous sessions runs any more.
    pub(super) fn resume_local(&mut self, now: InputTime, out: &mut impl CoreOutput) {
        let mut open = Vec::new();
        for item in &self.disturbed {
            let executions = self.items.get(item).map_or(&[][..], |row| &row.executions);
            let executions = executions.iter().filter(|known| known.is_open());
            open.extend(executions.map(|known| (*item, known.exec)));
        }
        for (item, exec) in open {
            let reason = LostReason::ProcessDied;
            self.commit(now, JournalRecord::Lost { item, exec, reason }, out);
        }
        let offered = self.offered(|_| true);
        if !offered.is_empty() {
            self.commit(now, JournalRecord::Withdrawn { tries: offered }, out);
        }
        self.queue_pending(now);
    }

    /// Begins a session while executions of previous sessions may still run.
    pub(super) fn resume_remote(&mut self, now: InputTime, out: &mut impl CoreOutput) {
        let unplanned = self.offered(|row| row.ordinal.is_none());
        if !unplanned.is_empty() {
            self.withdraw(now, unplanned, out);
        }
        let mut remote = WorkerLiveness::new(now.monotonic_ms, &self.settings.timeouts);
        for (item, row) in self.items.iter().filter(|(_, row)| row.state == ItemStatus::Offered) {
            let of_current =
                |known: &KnownExecution| known.try_id == row.current && known.is_open();
            let started = row.executions.iter().any(of_current);
            let class = if row.solo { super::SizeClass::SOLO } else { row.class };
            remote.take_permit(*item, row.current, class, started);
        }
        // One that the previous session journalled and did not send is found missing.
        for flight in remote.offered.values_mut() {
            (flight.inherited, flight.published_at) = (true, Some(now.monotonic_ms));
        }
        self.remote = Some(Box::new(remote));
        self.inherited = self.in_flight;
        self.queue_pending(now);
    }

    /// Every offered item that `kind` accepts, in plan order.
    pub(super) fn offered(&self, kind: impl Fn(&ItemEntry) -> bool) -> Vec<WithdrawnTry> {
        let offered = |row: &&ItemEntry| row.state == ItemStatus::Offered && kind(row);
        let mut tries: Vec<_> = self
            .items
            .iter()
            .filter(|(_, row)| offered(row))
            .map(|(item, row)| (row.ordinal, *item, row.current))
            .collect();
        tries.sort_unstable();
        tries.into_iter().map(|(_, item, try_id)| WithdrawnTry { item, try_id }).collect()
    }

    /// Withdraws offers for good.
    pub(super) fn withdraw(
        &mut self,
        now: InputTime,
        tries: Vec<WithdrawnTry>,
        out: &mut impl CoreOutput,
    ) {
        let withdrawn = tries.clone();
        self.commit(now, JournalRecord::Withdrawn { tries }, out);
        let effects = withdrawn
            .into_iter()
            .map(|WithdrawnTry { item, try_id }| CoreEffect::Withdraw { item, try_id });
        out.effects().extend(effects);
    }

    /// An item that a previous session left may be offered at once.
    fn requeue_now(&mut self, item: ItemId) {
        let Some(row) = self.items.get_mut(&item) else { return };
        row.state = ItemStatus::Pending;
        self.ready.push_again((row.offered_class(), row.lane), item);
    }

    /// Queues what previous sessions left unfinished, in plan order, before everything else.
    fn queue_pending(&mut self, now: InputTime) {
        self.waiting.clear();
        let fresh = self.ready.take_all();
        let mut pending: Vec<_> = self
            .items
            .iter()
            .filter(|(_, row)| row.ordinal.is_some() && row.is_pending() && row.current.n > 0)
            .map(|(item, row)| (row.ordinal, *item))
            .collect();
        pending.sort_unstable();
        for (_, item) in pending {
            if !self.waits_on(now, &item) {
                self.requeue_now(item);
            }
        }
        for item in fresh {
            let Some(row) = self.items.get(&item).filter(|row| row.current.n == 0) else {
                continue;
            };
            self.ready.push_fresh((row.class, row.lane), item);
        }
        self.dispatching = true;
    }
}
