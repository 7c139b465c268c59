//! The transition function: the only place where item entries change.

use rollout_protocol::Timestamp;
use rollout_protocol::digest::Digest;
use rollout_protocol::error::TrialError;
use rollout_protocol::id::{ExecId, ItemId, TryId, WorkerId};
use rollout_protocol::wire::report::{Report, ReportBody};

use super::Core;
use super::effect::CoreEffect;
use super::item::{ExecutionLoss, ExecutionState, ItemEntry, ItemStatus, KnownExecution};
use super::merge;
use super::record::{JournalRecord, NamedItem, OfferedTry, WithdrawnTry};

/// The try of a known item that was never offered.
pub(super) const NO_TRY: TryId = TryId { epoch: 0, n: 0 };

impl Core {
    /// Applies one record: live as soon as it is decided, in replay as it is read. `at` is the time
    /// when the record was made.
    pub fn apply(&mut self, at: Timestamp, record: JournalRecord, effects: &mut Vec<CoreEffect>) {
        match record {
            // A session uses its own policy, and only its own stops stop it. The items that it
            // reopens get their new floor before anything else happens.
            JournalRecord::Opened(opened) => {
                self.settings.retry = opened.retry;
                self.stop = None;
                self.paused = false;
                for item in opened.reopened {
                    self.apply_reopened(item, opened.epoch);
                }
            }
            JournalRecord::Reopened { epoch, items } => {
                for item in items {
                    self.apply_reopened(item, epoch);
                }
            }
            JournalRecord::Closed(_) | JournalRecord::Retried { .. } | JournalRecord::Farm(_) => {}
            JournalRecord::Offered { tries } => {
                for offered in tries {
                    self.apply_offered(offered);
                }
            }
            JournalRecord::Withdrawn { tries } => {
                for withdrawn in tries {
                    self.apply_withdrawn(withdrawn);
                }
            }
            JournalRecord::Reported { position, report } => {
                self.position = Some(position);
                self.apply_report(at, *report, effects);
            }
            JournalRecord::EventChunk { position, .. } => self.position = Some(position),
            JournalRecord::Recovered { report } => self.apply_report(at, *report, effects),
            JournalRecord::Claimed { claim } => {
                self.add_execution(claim.item, claim.exec, claim.try_id, claim.worker);
            }
            JournalRecord::Heard { worker, executions } => {
                for heard in executions {
                    self.add_execution(heard.item, heard.exec, heard.try_id, worker.clone());
                }
            }
            JournalRecord::Lost { item, exec, reason } => {
                let loss = ExecutionLoss::inferred(reason);
                self.apply_lost(at, item, exec, None, loss, effects);
            }
            JournalRecord::Respecified { item, spec } => {
                self.apply_respecified(item, spec, effects);
            }
            JournalRecord::Cancelled { items } => {
                for cancelled in items {
                    self.apply_cancelled(at, cancelled, effects);
                }
            }
            JournalRecord::GivenUp { items, error } => {
                for given_up in items {
                    self.apply_given_up(at, given_up, &error, effects);
                }
            }
            JournalRecord::Paused { is_paused } => self.paused = is_paused,
            JournalRecord::Stopping { level } => self.stop = self.stop.max(Some(level)),
        }
    }

    fn apply_offered(&mut self, offered: OfferedTry) {
        let OfferedTry { item, try_id, spec } = offered;
        let row = self.items.entry(item).or_insert_with(|| ItemEntry::new(spec, try_id));
        if row.is_settled() {
            return;
        }
        if row.current.n == 0 {
            row.floor = try_id;
        }
        if row.state != ItemStatus::Offered {
            row.state = ItemStatus::Offered;
            self.in_flight += 1;
            self.reserve_try(&item);
        }
        let Some(row) = self.items.get_mut(&item) else { return };
        row.solo = row.is_suspected();
        row.current = try_id;
        row.spec = spec;
        if !self.failed_at.is_empty() {
            self.failed_at.remove(&item);
        }
    }

    fn apply_withdrawn(&mut self, withdrawn: WithdrawnTry) {
        let WithdrawnTry { item, try_id } = withdrawn;
        let Some(row) = self.items.get(&item) else { return };
        if row.state == ItemStatus::Offered && row.current == try_id {
            self.requeue(item);
        }
    }

    /// An offered item releases its permit and waits for its next try.
    pub(super) fn requeue(&mut self, item: ItemId) {
        let Some(row) = self.items.get_mut(&item) else { return };
        row.state = ItemStatus::Pending;
        // An item that no plan names is not pending. In replay, no plan names any item.
        if row.ordinal.is_some() {
            self.ready.push_again((row.offered_class(), row.lane), item);
        }
        self.release_permit(&item);
    }

    /// An item releases its permit.
    pub(super) fn release_permit(&mut self, item: &ItemId) {
        self.in_flight -= 1;
        self.release_try(item);
        if let Some(remote) = &mut self.remote {
            remote.release_permit(item);
        }
    }

    fn apply_report(&mut self, at: Timestamp, report: Report, effects: &mut Vec<CoreEffect>) {
        let Report { item, try_id, exec, spec, worker, body, .. } = report;
        // No record of this journal offered the item: replay would not know it either.
        if self.items.get(&item).is_none_or(|row| row.current.n == 0) {
            return;
        }
        match body {
            ReportBody::Started => self.add_execution(item, exec, try_id, worker),
            ReportBody::Lost { reason, phase, record, cost, model_use } => {
                let who = Some((try_id, worker));
                let loss = ExecutionLoss { reason, phase, cost, model_use, record };
                self.apply_lost(at, item, exec, who, loss, effects);
            }
            ReportBody::Result(body) => {
                let state = ExecutionState::Open;
                let heard = KnownExecution {
                    exec,
                    try_id,
                    order: 0,
                    worker,
                    solo: false,
                    superseded: false,
                    state,
                };
                self.apply_result(at, item, heard, spec, body, effects);
            }
            // It has a record of its own.
            ReportBody::Events(_) => {}
        }
    }

    /// An execution was first heard of while it runs.
    fn add_execution(&mut self, item: ItemId, exec: ExecId, try_id: TryId, worker: WorkerId) {
        let Some(row) = self.items.get_mut(&item) else { return };
        if row.is_settled() || row.current.n == 0 || row.find(&exec).is_some() {
            return;
        }
        self.next_hearing += 1;
        let solo = row.solo && try_id == row.current;
        let (order, state) = (self.next_hearing, ExecutionState::Open);
        row.executions.push(KnownExecution {
            exec,
            try_id,
            order,
            worker,
            solo,
            superseded: false,
            state,
        });
        self.disturbed.insert(item);
        self.mark_started(&item, try_id);
    }

    /// A worker is known to have started a try.
    pub(super) fn mark_started(&mut self, item: &ItemId, try_id: TryId) {
        if let Some(remote) = &mut self.remote {
            remote.mark_started(item, try_id);
        }
    }

    fn apply_respecified(&mut self, item: ItemId, spec: Digest, effects: &mut Vec<CoreEffect>) {
        let Some(row) = self.items.get_mut(&item) else { return };
        row.spec = spec;
        row.floor = row.current.next(row.current.epoch);
        if row.state == ItemStatus::Offered {
            effects.push(CoreEffect::Withdraw { item, try_id: row.current });
            self.requeue(item);
        }
    }

    fn apply_cancelled(&mut self, at: Timestamp, named: NamedItem, effects: &mut Vec<CoreEffect>) {
        let NamedItem { item, spec } = named;
        let row = self.items.entry(item).or_insert_with(|| ItemEntry::new(spec, NO_TRY));
        if row.is_settled() || row.cancelled {
            return;
        }
        row.cancelled = true;
        let withdrawn = (row.state == ItemStatus::Offered && row.has_open()).then_some(row.current);
        self.conclude(at, item, effects);
        effects.extend(withdrawn.map(|try_id| CoreEffect::Withdraw { item, try_id }));
    }

    fn apply_given_up(
        &mut self,
        at: Timestamp,
        named: NamedItem,
        error: &TrialError,
        effects: &mut Vec<CoreEffect>,
    ) {
        let NamedItem { item, spec } = named;
        let row = self.items.entry(item).or_insert_with(|| ItemEntry::new(spec, NO_TRY));
        if !row.is_settled() {
            self.settle(item, effects, |row| merge::fail(item, row, error.clone(), at));
        }
    }
}
