//! Items that no registered worker could ever run.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rollout_protocol::error::{ErrorClass, ErrorCode, ErrorType, RetryClass, TrialError};
use rollout_protocol::id::ItemId;

use super::Core;
use super::handle::CoreOutput;
use super::input::InputTime;
use super::item::ItemEntry;
use super::record::{JournalRecord, NamedItem};

/// Items that one input gives up, and items of one record.
const MAX_ITEMS_PER_RECORD: usize = 4096;

/// A lane that no worker can run.
#[derive(Debug)]
pub(super) struct UnplaceableLane {
    reason: String,
    /// When its items are given up; `None` while a worker may still be started for them.
    until: Option<u64>,
    /// Whether its items were given up.
    is_over: bool,
}

impl Core {
    /// Lanes that no registered worker could ever run, why, and how many items wait in each.
    pub fn unplaceable(&self) -> impl Iterator<Item = (u16, &str, usize)> {
        self.unplaceable_lanes.iter().map(|(lane, closed)| {
            let of_lane = |((_, of), len): ((_, u16), usize)| if of == *lane { len } else { 0 };
            let waiting = self.ready.kinds().map(of_lane).sum();
            (*lane, closed.reason.as_str(), waiting)
        })
    }

    /// How long items without a suitable worker wait for one; `None` if the pool is elastic.
    pub fn unplaceable_timeout(&self) -> Option<Duration> {
        self.settings.timeouts.unplaceable_timeout
    }

    pub(super) fn unplaceable_lanes(&mut self, now: InputTime, lanes: BTreeMap<u16, String>) {
        let until = self.unplaceable_until(now);
        let mut previous = std::mem::take(&mut self.unplaceable_lanes);
        for (lane, reason) in lanes {
            // A lane whose reason changed keeps waiting.
            let closed = previous.remove(&lane).map_or_else(
                || UnplaceableLane { reason: reason.clone(), until, is_over: false },
                |closed| UnplaceableLane { reason: reason.clone(), ..closed },
            );
            self.unplaceable_lanes.insert(lane, closed);
        }
    }

    /// Lanes that were not given up before a pause wait for a worker from now on.
    pub(super) fn restart_unplaceable(&mut self, now: InputTime) {
        let until = self.unplaceable_until(now);
        for lane in self.unplaceable_lanes.values_mut().filter(|lane| !lane.is_over) {
            lane.until = until;
        }
    }

    /// These lanes wait for a worker from now on, even if they were given up.
    pub(super) fn renew_unplaceable(&mut self, now: InputTime, lanes: &BTreeSet<u16>) {
        let until = self.unplaceable_until(now);
        for (_, lane) in self.unplaceable_lanes.iter_mut().filter(|(of, _)| lanes.contains(of)) {
            (lane.until, lane.is_over) = (until, false);
        }
    }

    /// When a lane is given up that waits from now on.
    fn unplaceable_until(&self, now: InputTime) -> Option<u64> {
        let timeout = u64::try_from(self.unplaceable_timeout()?.as_millis()).ok()?;
        now.monotonic_ms.checked_add(timeout)
    }

    /// When the next lane is given up, or the rest of one.
    pub(super) fn next_give_up_due(&self) -> Option<u64> {
        if self.paused {
            return None;
        }
        let waits = |(lane, closed): &(&u16, &UnplaceableLane)| {
            !closed.is_over || self.ready.has_lane(**lane)
        };
        let waiting = self.unplaceable_lanes.iter().filter(waits);
        waiting.filter_map(|(_, closed)| closed.until).min()
    }

    /// Gives up items that waited too long for a suitable worker: a portion of each lane. The next
    /// input gives up the next portion.
    pub(super) fn give_up_unplaceable(&mut self, now: InputTime, out: &mut impl CoreOutput) {
        if self.unplaceable_lanes.is_empty() || self.paused {
            return;
        }
        let due =
            |closed: &UnplaceableLane| closed.until.is_some_and(|until| until <= now.monotonic_ms);
        let lanes: Vec<u16> = self
            .unplaceable_lanes
            .iter()
            .filter(|(_, closed)| due(closed))
            .map(|(lane, _)| *lane)
            .collect();
        for lane in lanes {
            let first = self
                .unplaceable_lanes
                .get_mut(&lane)
                .is_some_and(|closed| !std::mem::replace(&mut closed.is_over, true));
            let mut items = self.ready.take_lane(lane, MAX_ITEMS_PER_RECORD);
            if first {
                items.extend(self.unstarted_of_lane(now, lane));
            }
            self.give_up_lane(now, lane, items, out);
        }
    }

    /// Offers of a lane that no worker has taken.
    fn unstarted_of_lane(&self, now: InputTime, lane: u16) -> Vec<ItemId> {
        let Some(remote) = &self.remote else { return Vec::new() };
        let of_lane = |item: &&ItemId| {
            self.items
                .get(*item)
                .is_some_and(|row| row.lane == lane && !remote.is_held(now.monotonic_ms, item, row))
        };
        remote.offered.keys().filter(of_lane).copied().collect()
    }

    fn give_up_lane(
        &mut self,
        now: InputTime,
        lane: u16,
        items: Vec<ItemId>,
        out: &mut impl CoreOutput,
    ) {
        let Some(closed) = self.unplaceable_lanes.get(&lane) else { return };
        let message = format!("no registered worker can run it: {}", closed.reason);
        let kind = ErrorType::EnvironmentResourceAllocationFailed;
        let (class, retry) = (ErrorClass::Infrastructure, RetryClass::Permanent);
        let error = Box::new(TrialError::new(kind, ErrorCode::UNPLACEABLE, class, retry, message));
        let is_over = |row: &ItemEntry| row.is_settled() || row.has_open() || row.ordinal.is_none();
        let named: Vec<NamedItem> = items
            .into_iter()
            .filter_map(|item| {
                let row = self.items.get(&item).filter(|row| !is_over(row))?;
                Some(NamedItem { item, spec: row.spec })
            })
            .collect();
        for items in named.chunks(MAX_ITEMS_PER_RECORD) {
            let record = JournalRecord::GivenUp { items: items.to_vec(), error: error.clone() };
            self.commit(now, record, out);
        }
    }
}
