//! Ends of samples, and what follows for their groups.

use std::sync::Arc;

use rollout_protocol::Timestamp;
use rollout_protocol::farm::{
    CancelReason, Completion, FarmRecord, GroupEnd, GroupId, LateResult, LostGeneration, OpenSlot,
    PolicyVersions, SampleResult, SampleSlot,
};
use rollout_protocol::id::ItemId;

use super::group::{GroupEntry, GroupTally};
use super::input::FarmOutput;
use super::outage::is_spared;
use super::{FarmCore, SlotEntry};

impl FarmCore {
    /// The run settled an item: its sample ends, is replaced, or had ended before.
    pub(super) fn settle(
        &mut self,
        at: Timestamp,
        item: &ItemId,
        result: SampleResult,
        out: &mut FarmOutput,
    ) {
        let slot = self.ordinals.get(item).and_then(|ordinal| self.slots.get(ordinal));
        let Some(SlotEntry { group: id, index, generation, .. }) = slot.cloned() else { return };
        let Some(group) = self.groups.get(&id) else { return };
        let sample = SampleSlot { group: id.clone(), index, generation };
        let is_open = |slot: &&OpenSlot| slot.generation == generation && !slot.ended;
        let Some(slot) = group.slot(index).filter(is_open) else {
            let late = Box::new(LateResult { sample, result });
            return self.commit(at, FarmRecord::Late(late), out);
        };
        let limit = group.request().refill_limit();
        // An outage would use up the refills of every group in a moment.
        let may_refill = group.refills < limit || (limit > 0 && is_spared(slot, &result));
        if result.end.is_refillable() && may_refill {
            let lost = Box::new(LostGeneration { sample, result });
            return self.commit(at, FarmRecord::Refilled(lost), out);
        }
        self.conclude(at, &id, vec![(index, result)], out);
    }

    /// Cancels the samples of a group that have not ended.
    pub(super) fn cancel_group(
        &mut self,
        at: Timestamp,
        id: &GroupId,
        reason: CancelReason,
        end: Option<GroupEnd>,
        out: &mut FarmOutput,
    ) {
        let Some(group) = self.groups.get(id) else { return };
        let cancelled = cancelled(&group.open_indexes(), reason);
        self.conclude_as(at, id, cancelled, end, out);
    }

    /// Ends samples of a group, then those that its policy does not need any more.
    pub(super) fn conclude(
        &mut self,
        at: Timestamp,
        id: &GroupId,
        ended: Vec<(u32, SampleResult)>,
        out: &mut FarmOutput,
    ) {
        self.conclude_as(at, id, ended, None, out);
    }

    fn conclude_as(
        &mut self,
        at: Timestamp,
        id: &GroupId,
        mut ended: Vec<(u32, SampleResult)>,
        end: Option<GroupEnd>,
        out: &mut FarmOutput,
    ) {
        let Some(group) = self.groups.get(id) else { return };
        let mut tally = tally_after(group, &ended);
        let rest = match () {
            () if tally.is_enough() => Some(CancelReason::EnoughUsable),
            () if tally.is_dropped() => Some(CancelReason::GroupDropped),
            () => None,
        };
        if let Some(reason) = rest {
            let mut open = group.open_indexes();
            open.retain(|index| ended.iter().all(|(of, _)| of != index));
            ended.extend(cancelled(&open, reason));
            tally.open = 0;
        }
        let group_end = (tally.open == 0).then(|| end.unwrap_or_else(|| tally.end()));
        let last = ended.len().saturating_sub(1);
        let make = |(n, (index, result)): (usize, (u32, SampleResult))| {
            let cursor = self.next_cursor + n as u64;
            let group_end = group_end.filter(|_| n == last);
            self.completion(at, group, cursor, (index, result), group_end)
        };
        let completions: Vec<_> = ended.into_iter().enumerate().map(make).collect();
        if !completions.is_empty() {
            self.commit(at, FarmRecord::Completed { completions }, out);
        }
    }

    /// A completion as it is recorded: without metadata, which readers get from its group.
    fn completion(
        &self,
        at: Timestamp,
        group: &GroupEntry,
        cursor: u64,
        (index, result): (u32, SampleResult),
        group_end: Option<GroupEnd>,
    ) -> Completion {
        let request = group.request();
        let generation = group.slot(index).map_or(1, |slot| slot.generation);
        let first = self.settings.consumers.first();
        let consumer = request.consumer.as_ref().or(first).cloned().unwrap_or_default();
        Completion {
            cursor,
            sample: self.key(&request.group, index, generation),
            consumer,
            usable: result.is_usable(),
            result,
            policy: PolicyVersions {
                requested: request.policy_version,
                admitted: group.policy_version,
                ended: self.policy_version,
            },
            at,
            group_end,
            // The record of the group has it.
            metadata: Arc::default(),
        }
    }
}

/// The figures of a group when these samples have ended.
fn tally_after(group: &GroupEntry, ended: &[(u32, SampleResult)]) -> GroupTally {
    let mut tally = GroupTally::new(group);
    for (_, result) in ended {
        tally.open -= 1;
        tally.usable += u32::from(result.is_usable());
        tally.lost += u32::from(result.end.is_loss());
    }
    tally
}

fn cancelled(indexes: &[u32], reason: CancelReason) -> Vec<(u32, SampleResult)> {
    indexes.iter().map(|index| (*index, SampleResult::cancelled(reason))).collect()
}
