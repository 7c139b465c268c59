//! Selection of the items to offer next.

use std::collections::BTreeMap;

use rollout_protocol::id::ItemId;
use rollout_protocol::wire::offer::SizeClass;

use super::Core;
use super::effect::CoreEffect;
use super::handle::CoreOutput;
use super::input::InputTime;
use super::item::{ItemEntry, ItemStatus};
use super::ready_queue::ReadyKey;
use super::record::{JournalRecord, OfferedTry};

impl Core {
    /// How many of the plan's next items could be offered now, if at most `ahead` items may wait for
    /// capacity of their size class.
    pub fn wanted_items(&self, ahead: usize) -> usize {
        if self.stop.is_some() || self.exhausted || !self.dispatching {
            return 0;
        }
        if self.paused {
            // Whether the plan has an item left: a run without one is complete.
            return usize::from(self.unsettled == 0);
        }
        // Nothing more is offered before something is left of the budget of the run.
        if !self.ledger.covers_run(0) {
            return 0;
        }
        let free = self.settings.permits.saturating_sub(self.in_flight);
        let (offerable, waiting) = self.ready_counts();
        free.saturating_sub(offerable).min(ahead.saturating_sub(waiting))
    }

    /// Pending items that could be offered now if there were permits, and pending items that wait
    /// for capacity of their class. Items without any suitable worker are in neither.
    fn ready_counts(&self) -> (usize, usize) {
        if self.offer_limits.is_empty()
            && self.unplaceable_lanes.is_empty()
            && self.ledger.is_unlimited()
        {
            return (self.ready.len(), 0);
        }
        let mut of_class: BTreeMap<SizeClass, usize> = BTreeMap::new();
        for ((class, lane), len) in self.ready.kinds() {
            if !self.unplaceable_lanes.contains_key(&lane) && self.ledger.covers(lane, 0, 0) {
                *of_class.entry(class).or_default() += len;
            }
        }
        let (mut offerable, mut waiting) = (0, 0);
        for (class, len) in of_class {
            let now = len.min(self.free_capacity(class));
            offerable += now;
            waiting += len - now;
        }
        (offerable, waiting)
    }

    /// How many more unstarted offers of a class the queue may hold.
    pub(super) fn free_capacity(&self, class: SizeClass) -> usize {
        let Some(bound) = self.offer_limits.get(&class) else { return usize::MAX };
        bound.saturating_sub(self.unstarted_of_class(class))
    }

    fn unstarted_of_class(&self, class: SizeClass) -> usize {
        let unstarted = self.remote.as_ref().and_then(|e| e.unstarted.get(&class));
        unstarted.copied().unwrap_or(0)
    }

    /// Unstarted offers of each size class.
    pub fn unstarted(&self) -> BTreeMap<SizeClass, usize> {
        self.remote.as_ref().map(|remote| remote.unstarted.clone()).unwrap_or_default()
    }

    /// Offers pending items while there are permits. One record for all of them.
    pub(super) fn offer(&mut self, now: InputTime, out: &mut impl CoreOutput) {
        if self.stop.is_some() || self.paused || !self.dispatching || self.ready.is_empty() {
            return;
        }
        let mut permits = self.settings.permits.saturating_sub(self.in_flight);
        let mut batch = OfferBatch::default();
        while permits > 0
            && let Some((kind, item)) = self.next_ready(now, &batch)
        {
            if self.prepare_offer(kind, item, &mut batch) {
                permits -= 1;
            }
        }
        let OfferBatch { tries, mut effects, .. } = batch;
        if tries.is_empty() {
            return;
        }
        let offered = tries.clone();
        self.commit(now, JournalRecord::Offered { tries }, out);
        self.watch_offers(now, &offered);
        out.effects().append(&mut effects);
    }

    /// Adds the offer of an item to the batch if the item is still pending.
    fn prepare_offer(&mut self, kind: ReadyKey, item: ItemId, batch: &mut OfferBatch) -> bool {
        let pending = |row: &&ItemEntry| row.state == ItemStatus::Pending && !row.cancelled;
        let Some(row) = self.items.get(&item).filter(pending) else { return false };
        let Some(ordinal) = row.ordinal else { return false };
        let class = row.offered_class();
        if (class, row.lane) != kind {
            self.ready.push_again((class, row.lane), item);
            return false;
        }
        if row.current.n > 0 {
            // The queue never holds two tries of an item.
            batch.effects.push(CoreEffect::Withdraw { item, try_id: row.current });
        }
        let try_id = row.current.next(self.settings.epoch);
        *batch.of_agent.entry(self.ledger.agent(kind.1)).or_default() += 1;
        batch.tries.push(OfferedTry { item, try_id, spec: row.spec });
        batch.effects.push(CoreEffect::Offer { item, try_id, ordinal, class });
        if !self.offer_limits.is_empty() || self.remote.is_some() {
            *batch.taken.entry(class).or_default() += 1;
        }
        true
    }

    /// The first queued item of a class that has capacity. A class that returned permits unused
    /// comes when nothing else is queued, or with a single offer that probes for a worker.
    fn next_ready(&mut self, now: InputTime, batch: &OfferBatch) -> Option<(ReadyKey, ItemId)> {
        let mut ready = std::mem::take(&mut self.ready);
        let of = |class: SizeClass| batch.taken.get(&class).copied().unwrap_or(0);
        let is_covered = |lane: u16| {
            let of_agent = batch.of_agent.get(&self.ledger.agent(lane)).copied().unwrap_or(0);
            self.ledger.covers(lane, batch.tries.len() as u64, of_agent)
        };
        let has_room = |(class, lane): ReadyKey| {
            let is_placeable = !self.unplaceable_lanes.contains_key(&lane);
            is_placeable && self.free_capacity(class) > of(class) && is_covered(lane)
        };
        let in_turn = |kind: ReadyKey| {
            let class = kind.0;
            let held = self.remote.as_ref().and_then(|e| e.held_back.get(&class));
            let may = held.is_none_or(|until| {
                *until <= now.monotonic_ms && self.unstarted_of_class(class) + of(class) == 0
            });
            may && has_room(kind)
        };
        let next = ready.pop(in_turn).or_else(|| ready.pop(has_room));
        self.ready = ready;
        next
    }

    /// Starts to watch new offers.
    fn watch_offers(&mut self, now: InputTime, offered: &[OfferedTry]) {
        let Some(remote) = &mut self.remote else { return };
        for OfferedTry { item, try_id, .. } in offered {
            let Some(row) = self.items.get(item) else { continue };
            let class = if row.solo { SizeClass::SOLO } else { row.class };
            remote.take_permit(*item, *try_id, class, false);
            remote.mark_offered(now.monotonic_ms, item);
        }
    }
}

/// Offers that are made together.
#[derive(Default)]
struct OfferBatch {
    tries: Vec<OfferedTry>,
    effects: Vec<CoreEffect>,
    /// Number of offers of each class in the batch.
    taken: BTreeMap<SizeClass, usize>,
    /// Number of offers of each agent in the batch.
    of_agent: BTreeMap<u16, u64>,
}
