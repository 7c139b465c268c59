//! Ends by command: of single items for good, and of the sitting.

use rollout_protocol::id::{ExecId, ItemId, TryId};
use rollout_protocol::record::ItemOutcome;
use rollout_protocol::wire::command::CommandReceipt;
use rollout_protocol::wire::control::StopLevel;

use super::Core;
use super::effect::Effect;
use super::handle::Output;
use super::input::{NewItem, Now};
use super::record::{NamedItem, Record, WithdrawnTry};
use super::row::{Row, State};

/// How long an execution may go on to be shown that nobody wants, before its worker is told (again):
/// the last hello of one that is over shows it for a while.
const PATIENCE_MS: u64 = 5000;

/// How urgent the end of an unwanted execution is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unwanted {
    /// A user wants it gone.
    Now(StopLevel),
    /// It only wastes a slot.
    Soon(StopLevel),
}

impl Core {
    /// A user ends items for good.
    pub(super) fn cancel(&mut self, now: Now, id: u64, new: Vec<NewItem>, out: &mut impl Output) {
        let mut receipt = CommandReceipt { named: new.len() as u64, ..CommandReceipt::default() };
        let mut items = Vec::new();
        for new in new {
            let (item, spec) = (new.item, new.spec);
            self.plan(now, new, out);
            match self.rows.get(&item) {
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
            self.commit(now, Record::Cancelled { items }, out);
        }
        for exec in open {
            self.tell(now, exec, Unwanted::Now(StopLevel::Kill), out);
        }
        out.effects().push(Effect::Receipt { id, receipt });
    }

    fn open_executions(&self, item: ItemId) -> Vec<ExecId> {
        let executions = self.rows.get(&item).map_or(&[][..], |row| &row.executions);
        executions.iter().filter(|known| known.may_run()).map(|known| known.exec).collect()
    }

    /// Whether nobody wants an execution, as it was just shown.
    pub(super) fn unwanted(&self, row: &Row, try_id: TryId) -> Option<Unwanted> {
        if row.cancelled || row.state == State::Settled(ItemOutcome::Cancelled) {
            return Some(Unwanted::Now(StopLevel::Kill));
        }
        if let Some(level) = self.stop {
            // Every worker was told already.
            return Some(Unwanted::Soon(level));
        }
        let for_nothing = row.is_settled() || try_id < row.floor;
        for_nothing.then_some(Unwanted::Soon(StopLevel::Kill))
    }

    /// An execution announced itself: it is stopped if nobody wants it.
    pub(super) fn stop_if_unwanted(
        &mut self,
        now: Now,
        item: ItemId,
        exec: ExecId,
        try_id: TryId,
        out: &mut impl Output,
    ) {
        let row = self.rows.get(&item).filter(|row| row.current.n > 0);
        if let Some(unwanted) = row.and_then(|row| self.unwanted(row, try_id)) {
            self.tell(now, exec, unwanted, out);
        }
    }

    /// Tells the worker of an unwanted execution to end it, unless it was told a moment ago.
    pub(super) fn tell(
        &mut self,
        now: Now,
        exec: ExecId,
        unwanted: Unwanted,
        out: &mut impl Output,
    ) {
        let (level, patience) = match unwanted {
            Unwanted::Now(level) => (level, 0),
            Unwanted::Soon(level) => (level, PATIENCE_MS),
        };
        if let Some(elsewhere) = &mut self.elsewhere {
            let now = now.monotonic_ms;
            let due = elsewhere.unwanted.entry(exec).or_insert(now + patience);
            if *due > now {
                return;
            }
            *due = now + PATIENCE_MS;
        }
        out.effects().push(Effect::StopExecution { exec, level });
    }

    /// A user stops the sitting: what nobody started is owed to the next one.
    pub(super) fn begin_stop(&mut self, now: Now, level: StopLevel, out: &mut impl Output) {
        if self.stop >= Some(level) {
            return;
        }
        let first = self.stop.is_none();
        self.commit(now, Record::Stopping { level }, out);
        if first {
            let running = self.offered(Row::has_open);
            let unstarted = self.offered(|row| !row.has_open());
            if !unstarted.is_empty() {
                self.withdraw(now, unstarted, out);
            }
            let withdraw = |WithdrawnTry { item, try_id }| Effect::Withdraw { item, try_id };
            out.effects().extend(running.into_iter().map(withdraw));
            self.answer_questions(now, out);
        }
        out.effects().push(Effect::Stop(level));
    }

    /// Whether nothing that was offered could still run, as far as is known: what is offered was
    /// withdrawn, and no execution is open.
    pub fn is_quiet(&self) -> bool {
        if self.stop.is_none() {
            return self.in_flight == 0;
        }
        let open = |item| self.rows.get(item).is_some_and(Row::has_open);
        !self.disturbed.iter().any(open)
    }
}
