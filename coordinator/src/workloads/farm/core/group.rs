//! State of one group.

use rollout_protocol::Timestamp;
use rollout_protocol::farm::{
    AdmittedGroup, EndingSlot, GroupEnd, GroupPolicy, GroupRequest, OpenSlot,
};

/// A group that the farm holds.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct GroupEntry {
    pub(super) admitted: AdmittedGroup,
    pub(super) admitted_at: Timestamp,
    /// The part of its request in the bytes that the farm holds, counted once: metadata may be long.
    pub(super) held_bytes: u64,
    /// Length of all pauses until then, milliseconds.
    pub(super) paused_ms: i64,
    /// The newest policy version then.
    pub(super) policy_version: u64,
    /// Ordinal of its first sample: the order of groups of one priority.
    pub(super) order: u64,
    pub(super) refills: u32,
    pub(super) usable: u32,
    pub(super) lost: u32,
    pub(super) unacknowledged: u32,
    pub(super) samples: Vec<OpenSlot>,
    /// Generations that ended for the group before their executions had ended.
    pub(super) ending: Vec<EndingSlot>,
    pub(super) end: Option<GroupEnd>,
}

impl GroupEntry {
    pub(super) fn request(&self) -> &GroupRequest {
        &self.admitted.request
    }

    /// Samples that have not ended.
    pub(super) fn open(&self) -> u32 {
        u32::try_from(self.samples.iter().filter(|slot| !slot.ended).count()).unwrap_or(u32::MAX)
    }

    /// Indexes of samples that have not ended.
    pub(super) fn open_indexes(&self) -> Vec<u32> {
        let open = (0u32..).zip(&self.samples).filter(|(_, slot)| !slot.ended);
        open.map(|(index, _)| index).collect()
    }

    pub(super) fn slot(&self, index: u32) -> Option<&OpenSlot> {
        self.samples.get(usize::try_from(index).ok()?)
    }

    pub(super) fn slot_mut(&mut self, index: u32) -> Option<&mut OpenSlot> {
        self.samples.get_mut(usize::try_from(index).ok()?)
    }

    /// Its deadline in active milliseconds.
    pub(super) fn deadline(&self) -> Option<i64> {
        let seconds = i64::try_from(self.request().deadline_sec?).unwrap_or(i64::MAX);
        let begin = self.admitted_at.as_millisecond().saturating_sub(self.paused_ms);
        Some(begin.saturating_add(seconds.saturating_mul(1000)))
    }

    /// Whether nothing more can happen to it.
    pub(super) fn is_finished(&self) -> bool {
        self.end.is_some() && self.unacknowledged == 0 && self.ending.is_empty()
    }
}

/// Figures that decide how a group goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct GroupTally {
    policy: GroupPolicy,
    min_usable: Option<u32>,
    pub(super) usable: u32,
    pub(super) lost: u32,
    pub(super) open: u32,
}

impl GroupTally {
    pub(super) fn new(group: &GroupEntry) -> Self {
        let GroupRequest { group_policy: policy, min_usable, .. } = *group.request();
        let (usable, lost) = (group.usable, group.lost);
        Self { policy, min_usable, usable, lost, open: group.open() }
    }

    /// Whether the samples that have not ended are not needed.
    pub(super) fn is_enough(&self) -> bool {
        self.min_usable.is_some_and(|enough| self.usable >= enough)
    }

    /// Whether the group is dropped without waiting for the samples that have not ended.
    pub(super) fn is_dropped(&self) -> bool {
        let is_short = match self.min_usable {
            Some(wanted) => self.usable.saturating_add(self.open) < wanted,
            None => self.lost > 0,
        };
        self.policy == GroupPolicy::Drop && is_short
    }

    /// How the group ends when every sample has ended.
    pub(super) fn end(&self) -> GroupEnd {
        let is_short = match (self.min_usable, self.policy) {
            (Some(wanted), _) => self.usable < wanted,
            (None, GroupPolicy::Drop) => self.lost > 0,
            (None, GroupPolicy::Refill | GroupPolicy::AsIs) => false,
        };
        if is_short { GroupEnd::Dropped } else { GroupEnd::Complete }
    }
}
