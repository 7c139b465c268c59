//! The beginning of a sitting, and the items of its plan.

use rollout_protocol::id::ItemId;
use rollout_protocol::record::LostReason;

use super::Core;
use super::apply::NO_TRY;
use super::effect::Effect;
use super::elsewhere::Elsewhere;
use super::handle::Output;
use super::input::{NewItem, Now};
use super::record::{Record, WithdrawnTry};
use super::row::{Known, Row, State};

impl Core {
    /// Takes in an item of the plan.
    pub(super) fn plan(&mut self, now: Now, new: NewItem, out: &mut impl Output) {
        let NewItem { item, ordinal, spec, class, lane } = new;
        let Some(row) = self.rows.get_mut(&item) else {
            let mut row = Row::new(spec, NO_TRY);
            row.ordinal = Some(ordinal);
            (row.class, row.lane) = (class, lane);
            self.rows.insert(item, row);
            self.ready.push_fresh((class, lane), item);
            self.unsettled += 1;
            return;
        };
        if row.ordinal.replace(ordinal).is_some() {
            return;
        }
        (row.class, row.lane) = (class, lane);
        if row.is_settled() {
            self.settled += 1;
            return;
        }
        self.unsettled += 1;
        let (owed, respecified) = (self.dispatching && row.is_owed(), row.spec != spec);
        if owed && !self.waits_on(now, &item) {
            self.owe_now(item);
        }
        if respecified {
            self.commit(now, Record::Respecified { item, spec }, out);
        }
    }

    /// A sitting begins where nothing of former sittings runs any more.
    pub(super) fn begin_anew(&mut self, now: Now, out: &mut impl Output) {
        let mut open = Vec::new();
        for item in &self.disturbed {
            let executions = self.rows.get(item).map_or(&[][..], |row| &row.executions);
            let executions = executions.iter().filter(|known| known.is_open());
            open.extend(executions.map(|known| (*item, known.exec)));
        }
        for (item, exec) in open {
            let reason = LostReason::ProcessDied;
            self.commit(now, Record::Lost { item, exec, reason }, out);
        }
        let offered = self.offered(|_| true);
        if !offered.is_empty() {
            self.commit(now, Record::Withdrawn { tries: offered }, out);
        }
        self.dispatch_what_is_owed(now);
    }

    /// A sitting begins while executions of former sittings may still run.
    pub(super) fn begin_elsewhere(&mut self, now: Now, out: &mut impl Output) {
        let unplanned = self.offered(|row| row.ordinal.is_none());
        if !unplanned.is_empty() {
            self.withdraw(now, unplanned, out);
        }
        let mut elsewhere = Elsewhere::new(now.monotonic_ms, &self.settings.bounds);
        for (item, row) in self.rows.iter().filter(|(_, row)| row.state == State::Offered) {
            let of_current = |known: &Known| known.try_id == row.current && known.is_open();
            let started = row.executions.iter().any(of_current);
            let class = if row.solo { super::SizeClass::SOLO } else { row.class };
            elsewhere.take_off(now.monotonic_ms, *item, row.current, class, started);
        }
        elsewhere.flights.values_mut().for_each(|flight| flight.inherited = true);
        self.elsewhere = Some(Box::new(elsewhere));
        self.inherited = self.in_flight;
        self.dispatch_what_is_owed(now);
    }

    /// Every offered item of a kind, in the order of the plan.
    pub(super) fn offered(&self, kind: impl Fn(&Row) -> bool) -> Vec<WithdrawnTry> {
        let offered = |row: &&Row| row.state == State::Offered && kind(row);
        let mut tries: Vec<_> = self
            .rows
            .iter()
            .filter(|(_, row)| offered(row))
            .map(|(item, row)| (row.ordinal, *item, row.current))
            .collect();
        tries.sort_unstable();
        tries.into_iter().map(|(_, item, try_id)| WithdrawnTry { item, try_id }).collect()
    }

    /// Takes offers out of the queue for good.
    pub(super) fn withdraw(&mut self, now: Now, tries: Vec<WithdrawnTry>, out: &mut impl Output) {
        let withdrawn = tries.clone();
        self.commit(now, Record::Withdrawn { tries }, out);
        let effects = withdrawn
            .into_iter()
            .map(|WithdrawnTry { item, try_id }| Effect::Withdraw { item, try_id });
        out.effects().extend(effects);
    }

    /// An item that a former sitting left may be offered at once.
    fn owe_now(&mut self, item: ItemId) {
        let Some(row) = self.rows.get_mut(&item) else { return };
        row.state = State::Owed;
        self.ready.push_again((row.offered_class(), row.lane), item);
    }

    /// What former sittings left unfinished comes first, in the order of the plan.
    fn dispatch_what_is_owed(&mut self, now: Now) {
        self.waiting.clear();
        let fresh = self.ready.take_all();
        let mut owed: Vec<_> = self
            .rows
            .iter()
            .filter(|(_, row)| row.ordinal.is_some() && row.is_owed() && row.current.n > 0)
            .map(|(item, row)| (row.ordinal, *item))
            .collect();
        owed.sort_unstable();
        for (_, item) in owed {
            if !self.waits_on(now, &item) {
                self.owe_now(item);
            }
        }
        for item in fresh {
            let Some(row) = self.rows.get(&item).filter(|row| row.current.n == 0) else { continue };
            self.ready.push_fresh((row.class, row.lane), item);
        }
        self.dispatching = true;
    }
}
