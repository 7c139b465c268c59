//! Deadlines and the age of policy versions. The clock of deadlines stands still during pauses.

use rollout_protocol::Timestamp;
use rollout_protocol::farm::{CancelReason, GroupId, SampleResult};

use super::FarmCore;
use super::input::FarmOutput;

impl FarmCore {
    /// The time at which a session begins when the wall clock shows `wall`. It is not before that of
    /// the last record: a clock that was set back between sessions lengthens no deadline.
    pub fn session_start(&self, wall: Timestamp) -> Timestamp {
        self.latest.map_or(wall, |latest| latest.max(wall))
    }

    /// Notes the time of a record, or one in a snapshot.
    pub(super) fn note_time(&mut self, at: Timestamp) {
        self.latest = self.latest.max(Some(at));
    }

    /// Length of all pauses until `at`, milliseconds.
    pub(super) fn paused_until(&self, at: Timestamp) -> i64 {
        let current = self
            .paused_since
            .map_or(0, |since| at.as_millisecond().saturating_sub(since.as_millisecond()).max(0));
        self.paused_ms.saturating_add(current)
    }

    /// When the next [`FarmInput::Tick`](super::FarmInput::Tick) is due; `None` during a pause, and
    /// without a deadline or an outage.
    pub fn next_due(&self) -> Option<Timestamp> {
        if self.paused_since.is_some() {
            return None;
        }
        let deadline = self.deadlines.first().map(|(due, _)| *due);
        let due = deadline.into_iter().chain(self.queue.outages.probe_due()).min()?;
        Timestamp::from_millisecond(due.saturating_add(self.paused_ms)).ok()
    }

    /// Cancels the samples of groups whose deadline has passed.
    pub(super) fn end_overdue(&mut self, at: Timestamp, out: &mut FarmOutput) {
        if self.paused_since.is_some() {
            return;
        }
        let now = at.as_millisecond().saturating_sub(self.paused_ms);
        while let Some((due, id)) = self.deadlines.first().cloned()
            && due <= now
        {
            self.cancel_group(at, &id, CancelReason::Deadline, None, out);
            // The group has ended; an entry without a group must not be found again.
            self.deadlines.remove(&(due, id));
        }
    }

    /// Cancels samples whose policy version is too old for where they are.
    pub(super) fn end_stale(&mut self, at: Timestamp, out: &mut FarmOutput) {
        let bounds = self.settings.staleness;
        if bounds.queue.is_none() && bounds.in_flight.is_none() {
            return;
        }
        let open = self.groups.iter().filter(|(_, group)| group.end.is_none());
        let stale: Vec<(GroupId, u64)> = open
            .map(|(id, group)| {
                (id.clone(), self.policy_version.saturating_sub(group.request().policy_version))
            })
            .filter(|(_, age)| *age > 0)
            .collect();
        for (id, age) in stale {
            let exceeds = |bound: Option<u64>| bound.is_some_and(|bound| age > bound);
            let Some(group) = self.groups.get(&id) else { continue };
            let is_stale = |index: &u32| {
                let ordinal = group.slot(*index).map(|slot| slot.ordinal);
                let is_queued = ordinal.is_some_and(|ordinal| self.is_queued(ordinal));
                exceeds(if is_queued { bounds.queue } else { bounds.in_flight })
            };
            let ended = group.open_indexes().into_iter().filter(is_stale);
            let result = SampleResult::cancelled(CancelReason::Stale);
            let ended: Vec<_> = ended.map(|index| (index, result.clone())).collect();
            if !ended.is_empty() {
                self.conclude(at, &id, ended, out);
            }
        }
    }
}
