//! The transition function: the only place where the durable state changes.

use std::sync::Arc;

use rollout_protocol::Timestamp;
use rollout_protocol::digest::Digest;
use rollout_protocol::farm::{
    AdmittedGroup, CancelReason, Completion, EndingSlot, FarmRecord, FinishedGroup, GroupEnd,
    GroupId, LateResult, LostGeneration, OpenSlot, SampleEnd, SampleSlot, SlotOutage,
};

use super::group::GroupEntry;
use super::input::FarmEffect;
use super::{FarmCore, SlotEntry, outage};

/// Whether the farm decided the end of a sample, so that its execution may still run.
fn is_decided_by_farm(end: &SampleEnd) -> bool {
    matches!(end, SampleEnd::Cancelled { reason } if *reason != CancelReason::ByUser)
}

/// Whether a record is of a compaction, which has the time of whatever record stood before it.
fn is_snapshot_part(record: &FarmRecord) -> bool {
    matches!(
        record,
        FarmRecord::Snapshot(_)
            | FarmRecord::SnapshotGroup(_)
            | FarmRecord::SnapshotCompletions { .. }
            | FarmRecord::SnapshotIds { .. }
    )
}

impl FarmCore {
    /// Applies one record: live as soon as it is decided, in replay as it is read. `at` is the time
    /// when the record was made.
    pub fn apply(&mut self, at: Timestamp, record: &FarmRecord, effects: &mut Vec<FarmEffect>) {
        if !is_snapshot_part(record) {
            self.note_time(at);
        }
        match record {
            FarmRecord::Configured(settings) => {
                self.settings = (**settings).clone();
                self.rechecks_versions = true;
                self.limit_finished();
            }
            FarmRecord::Admitted(admitted) => self.apply_admitted(at, admitted),
            FarmRecord::Tombstoned { group } => {
                self.cancelled.insert(group.clone());
            }
            FarmRecord::Completed { completions } => self.apply_completed(completions, effects),
            FarmRecord::Refilled(lost) => self.apply_refilled(at, lost),
            FarmRecord::Late(late) => self.apply_late(late, effects),
            FarmRecord::Acknowledged { completions } => {
                self.apply_acknowledged(completions, effects);
            }
            FarmRecord::PolicyVersion { version } => self.policy_version = *version,
            FarmRecord::Paused => {
                self.paused_since.get_or_insert(at);
            }
            FarmRecord::Resumed => {
                self.paused_ms = self.paused_until(at);
                self.paused_since = None;
            }
            FarmRecord::Closed => self.closed = true,
            FarmRecord::Snapshot(counters) => self.restore_counters(counters),
            FarmRecord::SnapshotGroup(group) => self.restore_group(group),
            FarmRecord::SnapshotCompletions { completions } => {
                completions.iter().for_each(|one| self.note_time(one.at));
                let restored = completions.iter().map(|one| (one.cursor, self.shared(one)));
                let restored: Vec<_> = restored.collect();
                let shown = restored.iter().map(|(_, one)| Arc::clone(one)).collect();
                effects.push(FarmEffect::Completed(shown));
                self.completions.extend(restored);
            }
            FarmRecord::SnapshotIds { cancelled, finished } => {
                self.cancelled.extend(cancelled.iter().cloned());
                finished.iter().for_each(|group| self.remember(*group));
            }
        }
    }

    fn apply_admitted(&mut self, at: Timestamp, admitted: &AdmittedGroup) {
        let (id, n) = (admitted.request.group.clone(), admitted.request.n);
        let order = self.next_ordinal;
        let open = |ordinal| OpenSlot { generation: 1, ordinal, ended: false, outage: None };
        let samples = (order..order.saturating_add(n.into())).map(open).collect();
        self.next_ordinal = order.saturating_add(n.into());
        let group = GroupEntry {
            admitted: admitted.clone(),
            admitted_at: at,
            held_bytes: admitted.request.held_bytes(),
            paused_ms: self.paused_until(at),
            policy_version: self.policy_version,
            order,
            refills: 0,
            usable: 0,
            lost: 0,
            unacknowledged: 0,
            samples,
            ending: Vec::new(),
            end: None,
        };
        self.totals.groups += 1;
        self.totals.samples += u64::from(n);
        self.insert_group(&id, group);
    }

    /// Adds a group that has no entries elsewhere.
    pub(super) fn insert_group(&mut self, id: &GroupId, group: GroupEntry) {
        if group.end.is_none() {
            self.open_groups += 1;
            self.deadlines.extend(group.deadline().map(|due| (due, id.clone())));
        }
        let slots: Vec<_> = (0u32..).zip(group.samples.clone()).collect();
        let ending = group.ending.clone();
        self.held_bytes += group.held_bytes;
        self.groups.insert(id.clone(), group);
        for (index, OpenSlot { generation, ordinal, ended, outage }) in slots {
            self.held_generations += u64::from(generation);
            if !ended {
                self.open_samples += 1;
                self.add_slot(id, index, generation, ordinal);
                match outage.filter(|outage| outage.is_parked) {
                    Some(outage) => self.park(ordinal, outage),
                    None => self.enqueue(ordinal),
                }
            }
        }
        for EndingSlot { index, generation, ordinal } in ending {
            self.add_slot(id, index, generation, ordinal);
        }
    }

    fn add_slot(&mut self, group: &GroupId, index: u32, generation: u32, ordinal: u64) {
        let item = self.key(group, index, generation).item();
        let entry = SlotEntry { group: group.clone(), index, generation, item };
        self.slots.insert(ordinal, entry);
        self.ordinals.insert(item, ordinal);
    }

    fn remove_slot(&mut self, ordinal: u64) {
        if let Some(slot) = self.slots.remove(&ordinal) {
            self.ordinals.remove(&slot.item);
        }
    }

    fn enqueue(&mut self, ordinal: u64) {
        if let Some(key) = self.queue_key(ordinal) {
            self.queue.insert(key, ordinal);
        }
    }

    fn dequeue(&mut self, ordinal: u64) {
        if self.is_queued(ordinal)
            && let Some(key) = self.queue_key(ordinal)
        {
            self.queue.remove(&key);
        }
    }

    fn apply_completed(&mut self, completions: &[Completion], effects: &mut Vec<FarmEffect>) {
        let mut withdrawn = Vec::new();
        let mut shown = Vec::with_capacity(completions.len());
        for completion in completions {
            withdrawn.extend(self.apply_completion(completion));
            let completion = self.shared(completion);
            self.completions.insert(completion.cursor, Arc::clone(&completion));
            shown.push(completion);
        }
        effects.push(FarmEffect::Completed(shown));
        if !withdrawn.is_empty() {
            effects.push(FarmEffect::Withdraw(withdrawn));
        }
    }

    /// A completion that shares the metadata of its group: one of a journal has none, or its own if an
    /// earlier version wrote it.
    fn shared(&self, completion: &Completion) -> Arc<Completion> {
        let group = self.groups.get(&completion.sample.group);
        let metadata = group.map_or(&completion.metadata, |group| &group.request().metadata);
        Arc::new(Completion { metadata: Arc::clone(metadata), ..completion.clone() })
    }

    /// The ordinal of the sample, if its execution may still run.
    fn apply_completion(&mut self, completion: &Completion) -> Option<u64> {
        self.next_cursor = completion.cursor + 1;
        let Completion { sample, result, usable, group_end, .. } = completion;
        let (index, generation) = (sample.index, sample.generation);
        let group = self.groups.get_mut(&sample.group)?;
        let slot = group.slot_mut(index)?;
        let ordinal = slot.ordinal;
        slot.ended = true;
        let outage = slot.outage.take();
        group.unacknowledged += 1;
        group.lost += u32::from(result.end.is_loss());
        group.usable += u32::from(*usable);
        let is_ending = is_decided_by_farm(&result.end);
        if is_ending {
            group.ending.push(EndingSlot { index, generation, ordinal });
        }
        if let Some(end) = group_end {
            group.end = Some(*end);
            self.open_groups -= 1;
            let due = group.deadline();
            if let Some(due) = due {
                self.deadlines.remove(&(due, sample.group.clone()));
            }
            if *end == GroupEnd::Cancelled {
                self.cancelled.insert(sample.group.clone());
            }
            self.totals.complete_groups += u64::from(*end == GroupEnd::Complete);
        }
        self.open_samples -= 1;
        self.totals.usable += u64::from(*usable);
        self.totals.add_calls(result);
        self.totals.count(&result.end);
        self.dequeue(ordinal);
        self.note_end(result, outage);
        self.queue.outages.end_probe(ordinal);
        if is_ending {
            return Some(ordinal);
        }
        self.remove_slot(ordinal);
        None
    }

    fn apply_refilled(&mut self, at: Timestamp, lost: &LostGeneration) {
        let SampleSlot { group: id, index, generation } = &lost.sample;
        let (next, generation) = (self.next_ordinal, generation + 1);
        let Some(group) = self.groups.get_mut(id) else { return };
        let Some(slot) = group.slot_mut(*index) else { return };
        let is_spared = outage::is_spared(slot, &lost.result);
        let outage = outage::outage_after(slot, &lost.result);
        let refill = OpenSlot { generation, ordinal: next, ended: false, outage };
        let former = std::mem::replace(slot, refill);
        group.refills += u32::from(!is_spared);
        self.next_ordinal += 1;
        self.held_generations += 1;
        self.totals.refills += 1;
        self.totals.add_calls(&lost.result);
        self.dequeue(former.ordinal);
        self.remove_slot(former.ordinal);
        self.add_slot(id, *index, generation, next);
        match outage.filter(|outage| outage.is_parked) {
            Some(outage) => {
                let is_same = |of: SlotOutage| of.is_parked && of.cause == outage.cause;
                let was_probe = former.outage.is_some_and(is_same);
                self.park_after_loss(at, next, outage, was_probe);
            }
            None => self.enqueue(next),
        }
        self.queue.outages.end_probe(former.ordinal);
    }

    fn apply_late(&mut self, late: &LateResult, effects: &mut Vec<FarmEffect>) {
        let SampleSlot { group: id, index, generation } = &late.sample;
        let Some(group) = self.groups.get_mut(id) else { return };
        let of = |slot: &EndingSlot| (slot.index, slot.generation) == (*index, *generation);
        let Some(at) = group.ending.iter().position(of) else { return };
        let ending = group.ending.remove(at);
        self.remove_slot(ending.ordinal);
        // An execution that was cancelled in time is no late result.
        let is_result = !matches!(late.result.end, SampleEnd::Cancelled { .. });
        self.totals.late += u64::from(is_result);
        self.totals.add_calls(&late.result);
        self.forget_if_finished(id, effects);
    }

    fn apply_acknowledged(&mut self, cursors: &[u64], effects: &mut Vec<FarmEffect>) {
        for cursor in cursors {
            let Some(completion) = self.completions.remove(cursor) else { continue };
            let id = &completion.sample.group;
            if let Some(group) = self.groups.get_mut(id) {
                group.unacknowledged -= 1;
                self.forget_if_finished(id, effects);
            }
        }
        effects.push(FarmEffect::Acknowledged(cursors.to_vec()));
    }

    /// Keeps only the id of a group to which nothing more can happen.
    fn forget_if_finished(&mut self, id: &GroupId, effects: &mut Vec<FarmEffect>) {
        let Some(group) = self.groups.get(id).filter(|group| group.is_finished()) else { return };
        let Some(end) = group.end else { return };
        let mut items = Vec::new();
        for (index, slot) in (0u32..).zip(&group.samples) {
            let keys = (1..=slot.generation).map(|generation| self.key(id, index, generation));
            items.extend(keys.map(|key| key.item()));
        }
        self.held_generations -= items.len() as u64;
        self.held_bytes -= group.held_bytes;
        let content = group.admitted.content;
        self.groups.remove(id);
        if end != GroupEnd::Cancelled {
            let id = Digest::sha256(id.as_str().as_bytes());
            self.remember(FinishedGroup { id, content, end });
        }
        effects.push(FarmEffect::Forget(items));
    }

    fn remember(&mut self, group: FinishedGroup) {
        if self.finished.insert(group.id, group).is_none() {
            self.finished_order.push_back(group.id);
        }
        self.limit_finished();
    }

    fn limit_finished(&mut self) {
        let most = self.settings.limits.remembered_groups as usize;
        while self.finished_order.len() > most
            && let Some(oldest) = self.finished_order.pop_front()
        {
            self.finished.remove(&oldest);
        }
    }
}
