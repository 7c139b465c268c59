//! The core of a farm: which groups it holds, which samples are pending, and in which order they
//! ended. Pure: no clock, no IO, no randomness, no tasks; time arrives with the inputs. It is that of
//! the session, which does not follow a wall clock that is set.
//!
//! ```text
//! FarmInput ──handle──▶ FarmRecord ──apply──▶ state, FarmEffect
//!                            ▲
//!                  journal ──┘ (replay: the same apply)
//! ```
//!
//! [`FarmCore::handle`] decides and makes records. [`FarmCore::apply`] is the one transition
//! function. Effects may be carried out only when the records made with them are durable.
//!
//! # Invariants
//! * Every sample of an admitted group ends with exactly one completion, whatever its generation.
//! * Cursors are dense from 1, in the order of the records, and never used again.
//! * A group ends once. A cancelled id is never admitted.
//! * A completion stays until its consumer acknowledges it, and does not come back after that.
//! * The limits of the settings hold after every admission.

mod admit;
mod apply;
mod conclude;
mod deadline;
mod group;
mod handle;
mod input;
mod invariants;
mod outage;
mod queue;
mod snapshot;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use rollout_protocol::Timestamp;
use rollout_protocol::digest::Digest;
use rollout_protocol::farm::{
    Completion, FarmPause, FarmSettings, FarmStatus, FarmTotals, FinishedGroup, GroupEnd, GroupId,
    GroupStatus, SampleKey, SampleSlot,
};
use rollout_protocol::id::ItemId;
use rollout_protocol::wire::model_calls::ModelCallState;

use self::group::GroupEntry;
use self::queue::SampleQueue;
pub use input::{FarmEffect, FarmInput, FarmOutput, FarmReply};
pub use invariants::BrokenFarm;
pub use queue::BegunSample;

/// The state of a farm.
#[derive(Debug, Clone)]
pub struct FarmCore {
    settings: FarmSettings,
    /// Groups that have not ended, or still have something to say.
    groups: BTreeMap<GroupId, GroupEntry>,
    /// Generations that the run may know, by ordinal: present ones that have not ended, and those
    /// whose executions may still run.
    slots: BTreeMap<u64, SlotEntry>,
    /// Their ordinals.
    ordinals: HashMap<ItemId, u64>,
    /// Completions without an acknowledgement.
    completions: BTreeMap<u64, Arc<Completion>>,
    /// Ids that are never admitted.
    cancelled: BTreeSet<GroupId>,
    /// Ended and acknowledged groups, by the digest of their ids.
    finished: HashMap<Digest, FinishedGroup>,
    /// Their order, the oldest first.
    finished_order: VecDeque<Digest>,
    /// Deadlines of groups that have not ended, in active milliseconds.
    deadlines: BTreeSet<(i64, GroupId)>,
    next_cursor: u64,
    next_ordinal: u64,
    policy_version: u64,
    /// The latest time of a record, or in a snapshot.
    latest: Option<Timestamp>,
    paused_since: Option<Timestamp>,
    paused_ms: i64,
    closed: bool,
    open_groups: usize,
    open_samples: usize,
    /// Bytes that the groups above need.
    held_bytes: u64,
    /// Generations of the groups above, ended or not.
    held_generations: u64,
    totals: FarmTotals,
    /// Samples that wait to be begun, and outages. The journal does not say which ones have begun.
    queue: SampleQueue,
    /// Whether policy versions must be compared with changed bounds. Not part of the journal.
    rechecks_versions: bool,
}

/// A generation of a sample that the run may know.
#[derive(Debug, Clone, PartialEq, Eq)]
struct SlotEntry {
    group: GroupId,
    index: u32,
    generation: u32,
    item: ItemId,
}

impl Default for FarmCore {
    fn default() -> Self {
        Self::new()
    }
}

impl FarmCore {
    /// A farm without any record.
    pub fn new() -> Self {
        Self {
            settings: FarmSettings::new(""),
            groups: BTreeMap::new(),
            slots: BTreeMap::new(),
            ordinals: HashMap::new(),
            completions: BTreeMap::new(),
            cancelled: BTreeSet::new(),
            finished: HashMap::new(),
            finished_order: VecDeque::new(),
            deadlines: BTreeSet::new(),
            next_cursor: 1,
            next_ordinal: 0,
            policy_version: 0,
            latest: None,
            paused_since: None,
            paused_ms: 0,
            closed: false,
            open_groups: 0,
            open_samples: 0,
            held_bytes: 0,
            held_generations: 0,
            totals: FarmTotals::default(),
            queue: SampleQueue::default(),
            rechecks_versions: false,
        }
    }

    /// The settings of the last [`FarmInput::Configure`]; without a name before the first.
    pub fn settings(&self) -> &FarmSettings {
        &self.settings
    }

    /// Whether the farm admits no more groups.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// Whether it is closed and has nothing to do: every sample ended and every completion is
    /// acknowledged.
    pub fn is_over(&self) -> bool {
        self.closed && self.groups.is_empty()
    }

    /// Completions without an acknowledgement, in the order of their cursors.
    pub fn completions(&self) -> impl DoubleEndedIterator<Item = &Arc<Completion>> {
        self.completions.values()
    }

    /// Number of generations of the groups that the farm holds.
    pub fn held_generations(&self) -> u64 {
        self.held_generations
    }

    /// Bytes that the groups need which the farm holds, about.
    pub fn held_bytes(&self) -> u64 {
        self.held_bytes
    }

    /// The key of the generation with an ordinal.
    pub fn sample(&self, ordinal: u64) -> Option<SampleKey> {
        let SlotEntry { group, index, generation, .. } = self.slots.get(&ordinal)?.clone();
        Some(SampleKey { farm: self.settings.name.clone(), group, index, generation })
    }

    /// The state of a group that the farm holds.
    pub fn group_status(&self, id: &GroupId) -> Option<GroupStatus> {
        let group = self.groups.get(id)?;
        Some(GroupStatus {
            group: id.clone(),
            n: group.request().n,
            open: group.open(),
            usable: group.usable,
            refills: group.refills,
            end: group.end,
        })
    }

    /// How a group ended that the farm remembers and no longer holds.
    pub fn former_group(&self, id: &GroupId) -> Option<GroupEnd> {
        if self.cancelled.contains(id) {
            return Some(GroupEnd::Cancelled);
        }
        let finished = self.finished.get(&Digest::sha256(id.as_str().as_bytes()));
        finished.map(|group| group.end)
    }

    /// Groups that have not ended.
    pub fn open_groups(&self) -> Vec<GroupId> {
        let open = self.groups.iter().filter(|(_, group)| group.end.is_none());
        open.map(|(id, _)| id.clone()).collect()
    }

    /// The state of the farm.
    pub fn status(&self) -> FarmStatus {
        let queued = self.queue.len();
        FarmStatus {
            name: self.settings.name.clone(),
            policy_version: self.policy_version,
            pause: self.paused_since.map(|since| FarmPause { since }),
            closed: self.closed,
            last_cursor: self.next_cursor - 1,
            open_groups: self.open_groups as u64,
            queued_samples: queued as u64,
            begun_samples: (self.open_samples - queued) as u64,
            unacknowledged: self.completions.len() as u64,
            totals: self.totals,
            model_calls: None,
        }
    }

    /// The state of its samples' model calls.
    pub fn model_calls(&self) -> ModelCallState {
        let paused = self.paused_since.is_some();
        ModelCallState { paused, policy_version: self.policy_version }
    }

    /// The item of a generation.
    pub fn item(&self, sample: &SampleSlot) -> ItemId {
        self.key(&sample.group, sample.index, sample.generation).item()
    }

    fn key(&self, group: &GroupId, index: u32, generation: u32) -> SampleKey {
        SampleKey { farm: self.settings.name.clone(), group: group.clone(), index, generation }
    }
}
