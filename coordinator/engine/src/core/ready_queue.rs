//! Queue of items that may be offered, in order.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use rollout_protocol::id::ItemId;
use rollout_protocol::wire::offer::SizeClass;

/// Key that decides whether an item can be offered now: its size class and its lane.
pub(super) type ReadyKey = (SizeClass, u16);

/// Pending items by kind. Of several kinds the earliest entry goes first. Items that were tried
/// before come before new ones, so that few items are half done.
///
/// An entry is a hint: whether the item is still pending is checked when its turn comes.
#[derive(Debug, Default)]
pub(super) struct ReadyQueue {
    buckets: BTreeMap<ReadyKey, ReadyBucket>,
    len: usize,
    next: u64,
}

#[derive(Debug, Default)]
struct ReadyBucket {
    again: VecDeque<(u64, ItemId)>,
    fresh: VecDeque<(u64, ItemId)>,
}

impl ReadyBucket {
    fn len(&self) -> usize {
        self.again.len() + self.fresh.len()
    }

    /// The turn of its first entry; smaller comes first.
    fn turn(&self) -> Option<(bool, u64)> {
        let again = self.again.front().map(|(turn, _)| (false, *turn));
        again.or_else(|| self.fresh.front().map(|(turn, _)| (true, *turn)))
    }
}

impl ReadyQueue {
    /// Appends an item that was never offered.
    pub(super) fn push_fresh(&mut self, kind: ReadyKey, item: ItemId) {
        let turn = self.turn();
        self.buckets.entry(kind).or_default().fresh.push_back((turn, item));
    }

    /// Appends an item that was offered before.
    pub(super) fn push_again(&mut self, kind: ReadyKey, item: ItemId) {
        let turn = self.turn();
        self.buckets.entry(kind).or_default().again.push_back((turn, item));
    }

    fn turn(&mut self) -> u64 {
        self.len += 1;
        self.next += 1;
        self.next
    }

    /// The next item of an allowed kind.
    pub(super) fn pop(&mut self, allowed: impl Fn(ReadyKey) -> bool) -> Option<(ReadyKey, ItemId)> {
        let lines = self.buckets.iter().filter(|(kind, _)| allowed(**kind));
        let (_, kind) = lines.filter_map(|(kind, bucket)| Some((bucket.turn()?, *kind))).min()?;
        let line = self.buckets.get_mut(&kind)?;
        let (_, item) = line.again.pop_front().or_else(|| line.fresh.pop_front())?;
        if line.len() == 0 {
            self.buckets.remove(&kind);
        }
        self.len -= 1;
        Some((kind, item))
    }

    /// Number of entries of each kind.
    pub(super) fn kinds(&self) -> impl Iterator<Item = (ReadyKey, usize)> + '_ {
        self.buckets.iter().map(|(kind, line)| (*kind, line.len()))
    }

    /// Every entry, in no order.
    pub(super) fn items(&self) -> impl Iterator<Item = ItemId> + '_ {
        let lines = self.buckets.values().flat_map(|line| line.again.iter().chain(&line.fresh));
        lines.map(|(_, item)| *item)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Removes the entries of these items.
    pub(super) fn remove(&mut self, items: &BTreeSet<ItemId>) {
        for bucket in self.buckets.values_mut() {
            bucket.again.retain(|(_, item)| !items.contains(item));
            bucket.fresh.retain(|(_, item)| !items.contains(item));
        }
        self.buckets.retain(|_, bucket| bucket.len() > 0);
        self.len = self.buckets.values().map(ReadyBucket::len).sum();
    }

    /// Whether a lane has an entry.
    pub(super) fn has_lane(&self, lane: u16) -> bool {
        self.buckets.keys().any(|(_, of)| *of == lane)
    }

    /// Removes the first entries of a lane, at most `most`; of several classes one after the other.
    pub(super) fn take_lane(&mut self, lane: u16, most: usize) -> Vec<ItemId> {
        let mut taken = Vec::new();
        for (_, line) in self.buckets.iter_mut().filter(|((_, of), _)| *of == lane) {
            let again = line.again.len().min(most - taken.len());
            taken.extend(line.again.drain(..again).map(|(_, item)| item));
            let fresh = line.fresh.len().min(most - taken.len());
            taken.extend(line.fresh.drain(..fresh).map(|(_, item)| item));
        }
        self.len -= taken.len();
        self.buckets.retain(|_, line| line.len() > 0);
        taken
    }

    /// Removes every entry, items tried before first.
    pub(super) fn take_all(&mut self) -> Vec<ItemId> {
        let mut taken = Vec::with_capacity(self.len);
        self.len = 0;
        for line in std::mem::take(&mut self.buckets).into_values() {
            taken.extend(line.again.into_iter().map(|(turn, item)| (false, turn, item)));
            taken.extend(line.fresh.into_iter().map(|(turn, item)| (true, turn, item)));
        }
        taken.sort_unstable();
        taken.into_iter().map(|(_, _, item)| item).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lane_is_taken_in_portions_items_tried_before_first() {
        let item = |n: u8| ItemId::from_bytes([n; 16]);
        let mut queue = ReadyQueue::default();
        for n in 0..6 {
            queue.push_fresh((SizeClass(0), u16::from(n % 2)), item(n));
        }
        queue.push_again((SizeClass(0), 0), item(6));
        assert_eq!(queue.take_lane(0, 3), [6, 0, 2].map(item));
        assert!(queue.has_lane(0) && queue.len() == 4);
        assert_eq!(queue.take_lane(0, 3), [4].map(item));
        assert!(!queue.has_lane(0) && queue.has_lane(1));
        assert_eq!((queue.take_lane(0, 3), queue.len()), (Vec::new(), 3));
    }
}
