//! The transition function: the only place where rows change.

use rollout_protocol::Timestamp;
use rollout_protocol::id::{ExecId, ItemId, TryId, WorkerId};
use rollout_protocol::limits::TRIES_PER_ITEM;
use rollout_protocol::record::Outcome;
use rollout_protocol::wire::report::{Body, Report, ResultBody};

use super::effect::{Effect, Retry};
use super::merge::{self, settle_exhausted};
use super::record::{OfferedTry, Record};
use super::row::{End, Known, Loss, Row, State};
use super::{Core, Settings};

impl Core {
    /// Applies one record: live right after it was decided, in replay as it is read. `at` is the
    /// time the record was made.
    pub fn apply(&mut self, at: Timestamp, record: Record, effects: &mut Vec<Effect>) {
        match record {
            // A sitting is decided by its own policy, and stopped by nothing but its own stops.
            Record::Opened(opened) => {
                self.settings.retry = opened.retry;
                self.stop = None;
            }
            Record::Closed(_) => {}
            Record::Offered { tries } => {
                for offered in tries {
                    self.apply_offered(offered);
                }
            }
            Record::Reported { position, report } => {
                self.position = Some(position);
                self.apply_report(at, *report, effects);
            }
            Record::Unbacked { position, report, .. } => {
                self.position = Some(position);
                self.apply_report(at, *report, effects);
            }
            Record::Recovered { report } => self.apply_report(at, *report, effects),
            Record::Heard { worker, executions } => {
                for heard in executions {
                    self.hear(heard.item, heard.exec, heard.try_id, worker.clone());
                }
            }
            Record::Withdrawn { .. }
            | Record::Checked { .. }
            | Record::Cancelled { .. }
            | Record::GivenUp { .. } => {}
            Record::Claimed { claim } => {
                self.hear(claim.item, claim.exec, claim.try_id, claim.worker);
            }
            Record::Lost { item, exec, reason } => {
                let loss = Loss { reason, phase: None, cost: 0.0, record: None };
                self.apply_lost(at, item, exec, None, loss, effects);
            }
            Record::Respecified { item, spec } => {
                if let Some(row) = self.rows.get_mut(&item) {
                    row.spec = spec;
                    row.floor = row.current.next(row.current.epoch);
                }
            }
            Record::Stopping { level } => self.stop = self.stop.max(Some(level)),
        }
    }

    fn apply_offered(&mut self, offered: OfferedTry) {
        let OfferedTry { item, try_id, spec } = offered;
        let row = self.rows.entry(item).or_insert_with(|| Row::new(spec, try_id));
        if row.is_settled() {
            return;
        }
        if row.current.n == 0 {
            row.floor = try_id;
        }
        if row.state != State::Offered {
            row.state = State::Offered;
            self.in_flight += 1;
        }
        row.current = try_id;
        row.spec = spec;
    }

    fn apply_report(&mut self, at: Timestamp, report: Report, effects: &mut Vec<Effect>) {
        let Report { item, try_id, exec, spec, worker, body, .. } = report;
        // An item that no record of this journal offered: replay would not know it either.
        if self.rows.get(&item).is_none_or(|row| row.current.n == 0) {
            return;
        }
        match body {
            Body::Started => self.hear(item, exec, try_id, worker),
            Body::Lost { reason, phase, record, cost } => {
                let who = Some((try_id, worker));
                let loss = Loss { reason, phase, cost, record };
                self.apply_lost(at, item, exec, who, loss, effects);
            }
            Body::Result(body) => {
                let heard = Known { exec, try_id, order: 0, worker, end: End::Open };
                self.apply_result(at, item, heard, spec, body, effects);
            }
        }
    }

    /// An execution was first heard of while it runs.
    fn hear(&mut self, item: ItemId, exec: ExecId, try_id: TryId, worker: WorkerId) {
        let Some(row) = self.rows.get_mut(&item) else { return };
        if row.is_settled() || row.find(&exec).is_some() {
            return;
        }
        self.heard += 1;
        row.executions.push(Known { exec, try_id, order: self.heard, worker, end: End::Open });
    }

    fn apply_result(
        &mut self,
        at: Timestamp,
        item: ItemId,
        mut heard: Known,
        spec: rollout_protocol::digest::Digest,
        body: Box<ResultBody>,
        effects: &mut Vec<Effect>,
    ) {
        self.heard += 1;
        heard.order = -self.heard;
        let Some(row) = self.rows.get_mut(&item) else { return };
        if row.is_settled() {
            return;
        }
        if row.find(&heard.exec).is_some_and(|known| matches!(known.end, End::Result { .. })) {
            return;
        }
        let retried = retry_follows(row, heard.try_id, &body, &self.settings);
        if retried && row.state == State::Offered && heard.try_id == row.current {
            row.state = State::Waiting;
            self.in_flight -= 1;
            if let (Some(ordinal), Some(error)) = (row.ordinal, body.verdict.error.clone()) {
                let retry = Retry { item, ordinal, try_id: heard.try_id, error, wait_ms: 0 };
                effects.push(Effect::Retry(Box::new(retry)));
            }
        }
        let end = End::Result { spec, retried, body };
        match row.find(&heard.exec) {
            Some(known) => known.end = end,
            None => row.executions.push(Known { end, ..heard }),
        }
        self.settle_if_decided(at, item, effects);
    }

    fn apply_lost(
        &mut self,
        at: Timestamp,
        item: ItemId,
        exec: ExecId,
        who: Option<(TryId, WorkerId)>,
        loss: Loss,
        effects: &mut Vec<Effect>,
    ) {
        let Some(row) = self.rows.get_mut(&item) else { return };
        if row.is_settled() {
            return;
        }
        let reason = loss.reason;
        match (row.find(&exec), who) {
            (Some(known), _) if known.is_open() => known.end = End::Lost(loss),
            (Some(_), _) | (None, None) => return,
            (None, Some((try_id, worker))) => {
                self.heard += 1;
                let end = End::Lost(loss);
                row.executions.push(Known { exec, try_id, order: -self.heard, worker, end });
            }
        }
        if reason.counts() {
            row.ended += 1;
        }
        let try_id = {
            let current = row.current;
            row.find(&exec).map_or(current, |known| known.try_id)
        };
        if let Some(ordinal) = row.ordinal {
            effects.push(Effect::Lost { item, ordinal, try_id, exec });
        }
        self.settle_if_decided(at, item, effects);
        self.owe_again(at, item, try_id, effects);
    }

    /// After an execution of the current try was lost: unless another one of it is open, the item
    /// is owed again.
    fn owe_again(&mut self, at: Timestamp, item: ItemId, lost: TryId, effects: &mut Vec<Effect>) {
        let Some(row) = self.rows.get_mut(&item) else { return };
        let open = row.executions.iter().any(Known::is_open);
        if row.state != State::Offered || lost != row.current || open {
            return;
        }
        row.state = State::Owed;
        self.in_flight -= 1;
        if row.ended >= TRIES_PER_ITEM {
            let settled = settle_exhausted(item, row, at);
            self.count_settled(item);
            effects.push(Effect::Settled(Box::new(settled)));
        } else {
            self.ready.push_back(item);
        }
    }

    fn settle_if_decided(&mut self, at: Timestamp, item: ItemId, effects: &mut Vec<Effect>) {
        let Some(row) = self.rows.get_mut(&item) else { return };
        let Some(winner) = merge::decided(row) else { return };
        let was_offered = row.state == State::Offered;
        let current = row.current;
        let settled = merge::settle(item, row, winner, at);
        if was_offered {
            self.in_flight -= 1;
            if settled.by.as_ref().is_some_and(|by| by.try_id != current) {
                effects.push(Effect::Withdraw { item, try_id: current });
            }
        }
        self.count_settled(item);
        effects.push(Effect::Settled(Box::new(settled)));
    }

    fn count_settled(&mut self, item: ItemId) {
        if self.rows.get(&item).is_some_and(|row| row.ordinal.is_some()) {
            self.unsettled -= 1;
            self.settled += 1;
        }
    }
}

/// Whether a result is an infrastructure failure after which the item is tried again; counts it.
fn retry_follows(row: &mut Row, try_id: TryId, body: &ResultBody, settings: &Settings) -> bool {
    let verdict = &body.verdict;
    let failed = verdict.outcome == Outcome::Failed;
    if !failed || !verdict.error.as_ref().is_some_and(|error| error.is_retryable()) {
        return false;
    }
    row.ended += 1;
    if try_id != row.current || row.state != State::Offered {
        // A newer try is on its way already.
        return try_id < row.current || row.state != State::Offered;
    }
    row.failures += 1;
    settings.retry.delay(row.failures, 0.0).is_some() && row.ended < TRIES_PER_ITEM
}
