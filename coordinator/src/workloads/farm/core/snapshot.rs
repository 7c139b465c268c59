//! The state as records, and back.

use std::sync::Arc;

use rollout_protocol::farm::{
    Completion, FarmCounters, FarmRecord, FinishedGroup, GroupId, GroupSnapshot,
};

use super::FarmCore;
use super::group::GroupEntry;
use super::queue::SampleQueue;

/// Completions or ids in one record: bounds the memory of a reader.
const ENTRIES_PER_RECORD: usize = 4096;

/// Completions with metadata of their own in one record: each may have as much as the largest request.
const LARGE_COMPLETIONS_PER_RECORD: usize = 64;

/// Bytes that the id of a former group takes in a snapshot, about.
const ID_BYTES: u64 = 128;

impl FarmCore {
    /// Bytes of a snapshot, about.
    pub fn snapshot_bytes(&self) -> u64 {
        let ids = (self.cancelled.len() + self.finished.len()) as u64;
        self.held_bytes.saturating_add(ids * ID_BYTES)
    }

    /// Records that give this state to a farm, whatever it was before.
    pub fn snapshot(&self) -> Vec<FarmRecord> {
        let counters = FarmCounters {
            settings: self.settings.clone(),
            next_cursor: self.next_cursor,
            next_ordinal: self.next_ordinal,
            policy_version: self.policy_version,
            paused_since: self.paused_since,
            paused_ms: self.paused_ms,
            closed: self.closed,
            totals: self.totals,
            outages: self.queue.outages.to_snapshot(),
        };
        let mut records = vec![FarmRecord::Snapshot(Box::new(counters))];
        let groups = self.groups.values().map(GroupEntry::to_snapshot);
        records.extend(groups.map(|group| FarmRecord::SnapshotGroup(Box::new(group))));
        records.extend(self.snapshot_completions());
        let cancelled: Vec<GroupId> = self.cancelled.iter().cloned().collect();
        records.extend(cancelled.chunks(ENTRIES_PER_RECORD).map(|chunk| FarmRecord::SnapshotIds {
            cancelled: chunk.to_vec(),
            finished: Vec::new(),
        }));
        let finished = self.finished_order.iter().filter_map(|id| self.finished.get(id).copied());
        let finished: Vec<FinishedGroup> = finished.collect();
        records.extend(finished.chunks(ENTRIES_PER_RECORD).map(|chunk| FarmRecord::SnapshotIds {
            cancelled: Vec::new(),
            finished: chunk.to_vec(),
        }));
        records
    }

    /// The completions in records that are bounded by their number.
    fn snapshot_completions(&self) -> Vec<FarmRecord> {
        let completions: Vec<_> = self.completions.values().map(|one| self.unshared(one)).collect();
        let is_small = |one: &Completion| one.metadata.is_empty();
        let alike = completions.chunk_by(|one, next| is_small(one) == is_small(next));
        let records = alike.flat_map(|run| match run.first().is_some_and(is_small) {
            true => run.chunks(ENTRIES_PER_RECORD),
            false => run.chunks(LARGE_COMPLETIONS_PER_RECORD),
        });
        records.map(|part| FarmRecord::SnapshotCompletions { completions: part.to_vec() }).collect()
    }

    /// A completion without the metadata that the record of its group has. It keeps that of a group
    /// which a repaired journal has lost.
    fn unshared(&self, completion: &Completion) -> Completion {
        let mut recorded = completion.clone();
        if self.groups.contains_key(&recorded.sample.group) {
            recorded.metadata = Arc::default();
        }
        recorded
    }

    /// Begins again with the counters of a snapshot.
    pub(super) fn restore_counters(&mut self, counters: &FarmCounters) {
        *self = Self {
            settings: counters.settings.clone(),
            next_cursor: counters.next_cursor,
            next_ordinal: counters.next_ordinal,
            policy_version: counters.policy_version,
            latest: counters.paused_since,
            paused_since: counters.paused_since,
            paused_ms: counters.paused_ms,
            closed: counters.closed,
            totals: counters.totals,
            queue: SampleQueue {
                outages: counters.outages.as_slice().into(),
                ..SampleQueue::default()
            },
            ..Self::new()
        };
    }

    /// Adds a group of a snapshot.
    pub(super) fn restore_group(&mut self, snapshot: &GroupSnapshot) {
        let id = snapshot.admitted.request.group.clone();
        self.note_time(snapshot.admitted_at);
        self.insert_group(&id, GroupEntry::from(snapshot));
    }
}

impl GroupEntry {
    fn to_snapshot(&self) -> GroupSnapshot {
        let Self { admitted_at, paused_ms, policy_version, order, refills, .. } = *self;
        let Self { usable, lost, unacknowledged, end, .. } = *self;
        GroupSnapshot {
            admitted: self.admitted.clone(),
            admitted_at,
            paused_ms,
            policy_version,
            order,
            refills,
            usable,
            lost,
            unacknowledged,
            samples: self.samples.clone(),
            ending: self.ending.clone(),
            end,
        }
    }
}

impl From<&GroupSnapshot> for GroupEntry {
    fn from(snapshot: &GroupSnapshot) -> Self {
        let GroupSnapshot { admitted_at, paused_ms, policy_version, order, .. } = *snapshot;
        let GroupSnapshot { refills, usable, lost, unacknowledged, end, .. } = *snapshot;
        Self {
            admitted: snapshot.admitted.clone(),
            admitted_at,
            held_bytes: snapshot.admitted.request.held_bytes(),
            paused_ms,
            policy_version,
            order,
            refills,
            usable,
            lost,
            unacknowledged,
            samples: snapshot.samples.clone(),
            ending: snapshot.ending.clone(),
            end,
        }
    }
}
