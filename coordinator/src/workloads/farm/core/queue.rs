//! Samples that wait to be begun, in their order: by priority, then by admission of their groups.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use rollout_protocol::id::ItemId;
use rollout_protocol::spec::trial::TrialRef;
use rollout_protocol::wire::offer::SizeClass;

use super::outage::OpenOutages;
use super::{FarmCore, SlotEntry};

/// Priority, order of the group, and position in the group.
pub(super) type QueueKey = (Reverse<i32>, u64, u32);

/// The queue. Derived from the groups: a replay puts every sample that has not ended into it, or parks
/// it.
#[derive(Debug, Clone, Default)]
pub(super) struct SampleQueue {
    /// Ordinals in their order.
    pub(super) waiting: BTreeMap<QueueKey, u64>,
    /// Outages, with the refills that wait for their ends.
    pub(super) outages: OpenOutages,
}

impl SampleQueue {
    pub(super) fn len(&self) -> usize {
        self.waiting.len() + self.outages.parked()
    }

    pub(super) fn insert(&mut self, key: QueueKey, ordinal: u64) {
        self.waiting.insert(key, ordinal);
    }

    pub(super) fn remove(&mut self, key: &QueueKey) {
        self.waiting.remove(key);
        self.outages.remove(key);
    }

    fn get(&self, key: &QueueKey) -> Option<u64> {
        self.waiting.get(key).copied().or_else(|| self.outages.get(key))
    }
}

/// A sample for the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BegunSample {
    /// Its item.
    pub item: ItemId,
    /// Its ordinal.
    pub ordinal: u64,
    /// Its documents.
    pub trial_ref: TrialRef,
    /// Its size class.
    pub class: SizeClass,
    /// Its lane.
    pub lane: u16,
}

impl FarmCore {
    /// Takes the next samples to begin, at most `max`; none during a pause, and no parked refill. Not
    /// part of the journal: after a replay, every sample that has not ended waits again, until
    /// [`find_begun`](Self::find_begun) says that the run has it.
    pub fn begin_next(&mut self, max: usize) -> Vec<BegunSample> {
        if self.paused_since.is_some() {
            return Vec::new();
        }
        let mut begun = Vec::new();
        while begun.len() < max
            && let Some((_, ordinal)) = self.queue.waiting.pop_first()
        {
            begun.extend(self.begun(ordinal));
        }
        begun
    }

    /// The generation with this item, if the run may need it. It does not wait any more.
    pub fn find_begun(&mut self, item: &ItemId) -> Option<BegunSample> {
        let ordinal = *self.ordinals.get(item)?;
        if let Some(key) = self.queue_key(ordinal) {
            self.queue.remove(&key);
        }
        self.begun(ordinal)
    }

    /// The generation with this item, if the run may need it.
    pub fn find(&self, item: &ItemId) -> Option<BegunSample> {
        self.begun(*self.ordinals.get(item)?)
    }

    /// The generation with this ordinal, if the run may need it.
    pub fn begun(&self, ordinal: u64) -> Option<BegunSample> {
        let SlotEntry { group, index, item, .. } = self.slots.get(&ordinal)?;
        let spec = &self.groups.get(group)?.admitted.spec;
        let (trial_ref, class, lane) = (spec.trial_ref(*index), spec.class, spec.lane);
        Some(BegunSample { item: *item, ordinal, trial_ref, class, lane })
    }

    /// Ordinals of generations that ended for their groups before their executions had ended.
    pub fn ending(&self) -> Vec<u64> {
        let ending = self.groups.values().flat_map(|group| &group.ending);
        ending.map(|slot| slot.ordinal).collect()
    }

    pub(super) fn queue_key(&self, ordinal: u64) -> Option<QueueKey> {
        let slot = self.slots.get(&ordinal)?;
        let group = self.groups.get(&slot.group)?;
        Some((Reverse(group.request().priority), group.order, slot.index))
    }

    /// Whether the sample with this ordinal waits to be begun.
    pub(super) fn is_queued(&self, ordinal: u64) -> bool {
        self.queue_key(ordinal).is_some_and(|key| self.queue.get(&key) == Some(ordinal))
    }
}
