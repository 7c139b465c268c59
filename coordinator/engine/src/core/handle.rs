//! Input handling: decides which records each input causes.

use std::cmp::Reverse;

use rollout_protocol::Timestamp;
use rollout_protocol::wire::position::{PositionedReport, ReportPosition};
use rollout_protocol::wire::report::{Report, ReportBody};

use super::Core;
use super::effect::CoreEffect;
use super::event_chunk::AnnouncedChunk;
use super::input::{CoreInput, InputTime};
use super::item::ItemStatus;
use super::record::JournalRecord;

/// Receives the core's decisions: records for the journal, and effects that may be carried out once
/// these records are durable.
pub trait CoreOutput {
    /// A record, in the order of decision.
    fn record(&mut self, at: Timestamp, record: &JournalRecord);
    /// Effects of the records so far.
    fn effects(&mut self) -> &mut Vec<CoreEffect>;
}

impl Core {
    /// Handles one input.
    pub fn handle(&mut self, now: InputTime, input: CoreInput, out: &mut impl CoreOutput) {
        match input {
            CoreInput::Items(items) => {
                for item in items {
                    self.plan(now, item, out);
                }
            }
            CoreInput::PlanComplete => self.exhausted = true,
            CoreInput::PreviousExecutorsDead => self.resume_local(now, out),
            CoreInput::ResumeRemote => self.resume_remote(now, out),
            CoreInput::Reported(reported) => {
                let PositionedReport { position, report } = *reported;
                self.on_report(now, position, report, out);
            }
            CoreInput::Claim { id, claim } => self.claim(now, id, claim, out),
            CoreInput::HeartbeatsKept(kept) => {
                if let Some(remote) = &mut self.remote {
                    remote.set_kept_since(now.monotonic_ms, kept);
                }
            }
            CoreInput::Heartbeats(heartbeats) => self.on_heartbeats(now, heartbeats, out),
            CoreInput::Reconnected => {
                if let Some(remote) = &mut self.remote {
                    remote.restart_watch(now.monotonic_ms);
                }
            }
            CoreInput::Observed(listed) => self.on_observation(now, listed, out),
            CoreInput::Found { item, reports } => self.on_results_found(now, item, reports, out),
            CoreInput::Published(tries) => {
                if let Some(remote) = &mut self.remote {
                    remote.mark_published(now.monotonic_ms, &tries);
                }
            }
            CoreInput::OfferLimits(rooms) => self.offer_limits = rooms,
            CoreInput::Unplaceable(lanes) => self.unplaceable_lanes(now, lanes),
            CoreInput::Cancel { id, items } => self.cancel(now, id, items, out),
            CoreInput::Reopen { id, named, items } => self.reopen(now, id, named, items, out),
            CoreInput::Pause { id, is_paused } => self.pause(now, id, is_paused, out),
            CoreInput::Tick => {
                self.wake(now);
                self.answer_deferred_claims(now, out);
                self.reclaim(now, out);
            }
            CoreInput::Stop(level) => self.begin_stop(now, level, out),
        }
        self.give_up_unplaceable(now, out);
        self.offer(now, out);
    }

    pub(super) fn commit(
        &mut self,
        now: InputTime,
        record: JournalRecord,
        out: &mut impl CoreOutput,
    ) {
        out.record(now.wall, &record);
        let before = out.effects().len();
        self.apply(now.wall, record, out.effects());
        for effect in &mut out.effects()[before..] {
            if let CoreEffect::Retry(retry) = effect {
                retry.wait_ms = self.wait_ms(&retry.item);
                let due = now.monotonic_ms.saturating_add(retry.wait_ms);
                self.waiting.push(Reverse((due, retry.item)));
            }
        }
    }

    fn on_report(
        &mut self,
        now: InputTime,
        position: ReportPosition,
        report: Report,
        out: &mut impl CoreOutput,
    ) {
        if let ReportBody::Events(chunk) = &report.body {
            let chunk = Box::new(AnnouncedChunk::new(&report, chunk));
            let record = JournalRecord::EventChunk { position, chunk: chunk.clone() };
            self.commit(now, record, out);
            return out.effects().push(CoreEffect::EventChunk(chunk));
        }
        let began = matches!(report.body, ReportBody::Started);
        let (item, exec, try_id) = (report.item, report.exec, report.try_id);
        self.commit(now, JournalRecord::Reported { position, report: Box::new(report) }, out);
        if began {
            if let Some(remote) = &mut self.remote {
                remote.record_seen(now.monotonic_ms, exec);
            }
            self.stop_if_unwanted(now, item, exec, try_id, out);
        }
    }

    fn wake(&mut self, now: InputTime) {
        while let Some(Reverse((due, item))) = self.waiting.peek().copied() {
            if due > now.monotonic_ms {
                break;
            }
            self.waiting.pop();
            if let Some(row) = self.items.get_mut(&item)
                && row.state == ItemStatus::Waiting
            {
                row.state = ItemStatus::Pending;
                self.ready.push_again((row.offered_class(), row.lane), item);
            }
        }
    }

    /// Latest time of the next [`CoreInput::Tick`], on the monotonic clock of [`InputTime`].
    pub fn next_due_ms(&self) -> Option<u64> {
        let retry = self.waiting.peek().map(|Reverse((due, _))| *due);
        let question = self.remote.as_ref().and_then(|remote| remote.next_claim_due());
        [retry, question, self.next_give_up_due()].into_iter().flatten().min()
    }
}
