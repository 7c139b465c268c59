//! Decides what to record for each input.

use std::cmp::Reverse;

use rollout_protocol::Timestamp;
use rollout_protocol::wire::position::PositionedReport;
use rollout_protocol::wire::report::{ReportBody, Report};

use super::Core;
use super::effect::Effect;
use super::input::{Input, Now};
use super::record::Record;
use super::row::State;

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
            Input::Begin => self.begin_elsewhere(now, out),
            Input::Reported(reported) => {
                let PositionedReport { position, report } = *reported;
                self.reported(now, report, |report| Record::Reported { position, report }, out);
            }
            Input::Unbacked { reported, why } => {
                let PositionedReport { position, report } = *reported;
                let record = |report| Record::Unbacked { position, report, why };
                self.reported(now, report, record, out);
            }
            Input::Checked { item, exec, found } => {
                if self.unchecked.contains_key(&exec) {
                    self.commit(now, Record::Checked { item, exec, found }, out);
                }
            }
            Input::Claim { id, claim } => self.claim(now, id, claim, out),
            Input::HellosKept(kept) => {
                if let Some(elsewhere) = &mut self.elsewhere {
                    elsewhere.kept(now.monotonic_ms, kept);
                }
            }
            Input::Hellos(hellos) => self.hellos(now, hellos, out),
            Input::Reconnected => {
                if let Some(elsewhere) = &mut self.elsewhere {
                    elsewhere.watch_anew(now.monotonic_ms);
                }
            }
            Input::Observed(listed) => self.observed(now, listed, out),
            Input::Found { item, reports } => self.found(now, item, reports, out),
            Input::Room(rooms) => self.rooms = rooms,
            Input::Unplaceable(lanes) => self.unplaceable_lanes(now, lanes),
            Input::Cancel { id, items } => self.cancel(now, id, items, out),
            Input::Tick => {
                self.wake(now);
                self.answer_questions(now, out);
                self.reclaim(now, out);
            }
            Input::Stop(level) => self.begin_stop(now, level, out),
        }
        self.give_up_unplaceable(now, out);
        self.offer(now, out);
    }

    pub(super) fn commit(&mut self, now: Now, record: Record, out: &mut impl Output) {
        out.record(now.wall, &record);
        let before = out.effects().len();
        self.apply(now.wall, record, out.effects());
        for effect in &mut out.effects()[before..] {
            if let Effect::Retry(retry) = effect {
                retry.wait_ms = self.wait_ms(&retry.item);
                let due = now.monotonic_ms.saturating_add(retry.wait_ms);
                self.waiting.push(Reverse((due, retry.item)));
            }
        }
    }

    fn reported(
        &mut self,
        now: Now,
        report: Report,
        record: impl FnOnce(Box<Report>) -> Record,
        out: &mut impl Output,
    ) {
        let began = matches!(report.body, ReportBody::Started);
        let (item, exec, try_id) = (report.item, report.exec, report.try_id);
        self.commit(now, record(Box::new(report)), out);
        if began {
            if let Some(elsewhere) = &mut self.elsewhere {
                elsewhere.heard(now.monotonic_ms, exec);
            }
            self.stop_if_unwanted(now, item, exec, try_id, out);
        }
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
                self.ready.push_again((row.offered_class(), row.lane), item);
            }
        }
    }

    /// When a [`Input::Tick`] is due at the latest, on the monotonic clock of [`Now`].
    pub fn next_due_ms(&self) -> Option<u64> {
        let retry = self.waiting.peek().map(|Reverse((due, _))| *due);
        let question = self.elsewhere.as_ref().and_then(|elsewhere| elsewhere.next_question());
        [retry, question, self.next_giving_up()].into_iter().flatten().min()
    }
}
