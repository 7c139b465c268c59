//! Decides what to record for each input.

use std::cmp::Reverse;

use rollout_protocol::Timestamp;
use rollout_protocol::id::TryId;
use rollout_protocol::record::LostReason;
use rollout_protocol::wire::control::StopLevel;
use rollout_worker::port::Reported;

use super::Core;
use super::effect::Effect;
use super::input::{Input, NewItem, Now};
use super::record::Record;
use super::row::{Row, State};

/// Takes what the core decides: records for the journal, and effects that may be carried out when
/// these records are durable.
pub trait Output {
    /// A record, in the order of decision.
    fn record(&mut self, at: Timestamp, record: &Record);
    /// Effects of the records so far.
    fn effects(&mut self) -> &mut Vec<Effect>;
}

impl Core {
    /// Takes one input.
    pub fn handle(&mut self, now: Now, input: Input, out: &mut impl Output) {
        match input {
            Input::Items(items) => {
                for item in items {
                    self.plan(now, item, out);
                }
            }
            Input::Exhausted => self.exhausted = true,
            Input::FormerExecutorsDead => self.begin_anew(now, out),
            Input::Reported(reported) => {
                let Reported { position, report } = *reported;
                let record = Record::Reported { position, report: Box::new(report) };
                self.commit(now, record, out);
            }
            Input::Claim { id, claim } => self.claim(now, id, claim, out),
            Input::Begin => self.dispatching = true,
            Input::Hellos(_)
            | Input::Reconnected
            | Input::Observed(_)
            | Input::Found { .. }
            | Input::Room(_)
            | Input::Unplaceable(_)
            | Input::Cancel { .. }
            | Input::Checked { .. } => {}
            Input::Unbacked { reported, why } => {
                let Reported { position, report } = *reported;
                let report = Box::new(report);
                self.commit(now, Record::Unbacked { position, report, why }, out);
            }
            Input::Tick => self.wake(now),
            Input::Stop(level) => self.begin_stop(now, level, out),
        }
        self.offer(now, out);
    }

    pub(super) fn commit(&mut self, now: Now, record: Record, out: &mut impl Output) {
        out.record(now.wall, &record);
        let before = out.effects().len();
        self.apply(now.wall, record, out.effects());
        for effect in &mut out.effects()[before..] {
            if let Effect::Retry(retry) = effect {
                let failures = self.rows.get(&retry.item).map_or(1, |row| row.failures);
                let wait = self.settings.retry.delay(failures, now.random).unwrap_or_default();
                retry.wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
                self.waiting.push(Reverse((now.monotonic_ms + retry.wait_ms, retry.item)));
            }
        }
    }

    fn plan(&mut self, now: Now, new: NewItem, out: &mut impl Output) {
        let NewItem { item, ordinal, spec, class, lane } = new;
        let Some(row) = self.rows.get_mut(&item) else {
            let mut row = Row::new(spec, TryId { epoch: 0, n: 0 });
            row.ordinal = Some(ordinal);
            (row.class, row.lane) = (class, lane);
            self.rows.insert(item, row);
            self.ready.push_back(item);
            self.unsettled += 1;
            return;
        };
        (row.class, row.lane) = (class, lane);
        if row.ordinal.replace(ordinal).is_some() {
            return;
        }
        if row.is_settled() {
            self.settled += 1;
            return;
        }
        self.unsettled += 1;
        if row.spec != spec {
            self.commit(now, Record::Respecified { item, spec }, out);
        }
    }

    /// A sitting begins where nothing of former sittings runs any more.
    fn begin_anew(&mut self, now: Now, out: &mut impl Output) {
        let open: Vec<Record> = self
            .rows
            .iter()
            .flat_map(|(item, row)| row.executions.iter().map(move |known| (*item, known)))
            .filter(|(_, known)| known.is_open())
            .map(|(item, known)| Record::Lost {
                item,
                exec: known.exec,
                reason: LostReason::ProcessDied,
            })
            .collect();
        for record in open {
            self.commit(now, record, out);
        }
        self.waiting.clear();
        let fresh = std::mem::take(&mut self.ready);
        let mut owed: Vec<_> = self
            .rows
            .iter_mut()
            .filter(|(_, row)| row.ordinal.is_some() && !row.is_settled() && row.current.n > 0)
            .map(|(item, row)| {
                row.state = State::Owed;
                (row.ordinal, *item)
            })
            .collect();
        owed.sort_unstable();
        self.ready.extend(owed.into_iter().map(|(_, item)| item));
        self.ready.extend(
            fresh
                .into_iter()
                .filter(|item| self.rows.get(item).is_some_and(|row| row.current.n == 0)),
        );
        self.in_flight = 0;
        self.dispatching = true;
    }

    fn wake(&mut self, now: Now) {
        while let Some(Reverse((due, item))) = self.waiting.peek().copied() {
            if due > now.monotonic_ms {
                break;
            }
            self.waiting.pop();
            if let Some(row) = self.rows.get_mut(&item)
                && row.state == State::Waiting
            {
                row.state = State::Owed;
                self.ready.push_back(item);
            }
        }
    }

    /// When the next waiting item is due, on the monotonic clock of [`Now`].
    pub fn next_due_ms(&self) -> Option<u64> {
        self.waiting.peek().map(|Reverse((due, _))| *due)
    }

    fn begin_stop(&mut self, now: Now, level: StopLevel, out: &mut impl Output) {
        if self.stop >= Some(level) {
            return;
        }
        let first = self.stop.is_none();
        self.commit(now, Record::Stopping { level }, out);
        if first {
            let mut offered: Vec<_> = self
                .rows
                .iter()
                .filter(|(_, row)| row.state == State::Offered)
                .map(|(item, row)| (row.ordinal, *item, row.current))
                .collect();
            offered.sort_unstable();
            let withdraw = |(_, item, try_id)| Effect::Withdraw { item, try_id };
            out.effects().extend(offered.into_iter().map(withdraw));
        }
        out.effects().push(Effect::Stop(level));
    }
}
