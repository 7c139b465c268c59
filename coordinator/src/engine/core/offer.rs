//! Which items are offered next.

use std::collections::BTreeMap;

use rollout_protocol::id::ItemId;
use rollout_protocol::limits::READY_AHEAD;
use rollout_protocol::wire::offer::SizeClass;

use super::Core;
use super::effect::Effect;
use super::handle::Output;
use super::input::Now;
use super::ready::Kind;
use super::record::{OfferedTry, Record};
use super::row::{Row, State};

impl Core {
    /// How many of the plan's next items could be offered now.
    pub fn wants(&self) -> usize {
        if self.stop.is_some() || self.exhausted || !self.dispatching {
            return 0;
        }
        let free = self.settings.permits.saturating_sub(self.in_flight);
        let (offerable, waiting) = self.in_line();
        free.saturating_sub(offerable).min(READY_AHEAD.saturating_sub(waiting))
    }

    /// Owed items for which there is room now, if there were permits, and others that wait for room
    /// of their class. Those for which there is no worker at all are neither.
    fn in_line(&self) -> (usize, usize) {
        if self.rooms.is_empty() && self.closed.is_empty() {
            return (self.ready.len(), 0);
        }
        let mut of_class: BTreeMap<SizeClass, usize> = BTreeMap::new();
        for ((class, lane), len) in self.ready.kinds() {
            if !self.closed.contains_key(&lane) {
                *of_class.entry(class).or_default() += len;
            }
        }
        let (mut offerable, mut waiting) = (0, 0);
        for (class, len) in of_class {
            let now = len.min(self.room(class));
            offerable += now;
            waiting += len - now;
        }
        (offerable, waiting)
    }

    /// How many more of a class the queue shall hold unstarted.
    pub(super) fn room(&self, class: SizeClass) -> usize {
        let Some(bound) = self.rooms.get(&class) else { return usize::MAX };
        bound.saturating_sub(self.unstarted_of(class))
    }

    fn unstarted_of(&self, class: SizeClass) -> usize {
        let unstarted = self.elsewhere.as_ref().and_then(|e| e.unstarted.get(&class));
        unstarted.copied().unwrap_or(0)
    }

    /// Offers of each size class that nobody is known to have started.
    pub fn unstarted(&self) -> BTreeMap<SizeClass, usize> {
        self.elsewhere.as_ref().map(|elsewhere| elsewhere.unstarted.clone()).unwrap_or_default()
    }

    /// Offers what is owed while there are permits. One record for all of them.
    pub(super) fn offer(&mut self, now: Now, out: &mut impl Output) {
        if self.stop.is_some() || !self.dispatching || self.ready.is_empty() {
            return;
        }
        let mut permits = self.settings.permits.saturating_sub(self.in_flight);
        let mut batch = Batch::default();
        while permits > 0
            && let Some((kind, item)) = self.next_ready(now, &batch.taken)
        {
            if self.prepare(kind, item, &mut batch) {
                permits -= 1;
            }
        }
        let Batch { tries, mut effects, taken: _ } = batch;
        if tries.is_empty() {
            return;
        }
        let offered = tries.clone();
        self.commit(now, Record::Offered { tries }, out);
        self.take_off(now, &offered);
        out.effects().append(&mut effects);
    }

    /// Makes the offer of an item whose turn it is, if it is still owed.
    fn prepare(&mut self, kind: Kind, item: ItemId, batch: &mut Batch) -> bool {
        let owed = |row: &&Row| row.state == State::Owed && !row.cancelled;
        let Some(row) = self.rows.get(&item).filter(owed) else { return false };
        let Some(ordinal) = row.ordinal else { return false };
        let class = row.offered_class();
        if (class, row.lane) != kind {
            self.ready.push_again((class, row.lane), item);
            return false;
        }
        if row.current.n > 0 {
            // Never two tries of an item in the queue.
            batch.effects.push(Effect::Withdraw { item, try_id: row.current });
        }
        let try_id = row.current.next(self.settings.epoch);
        batch.tries.push(OfferedTry { item, try_id, spec: row.spec });
        batch.effects.push(Effect::Offer { item, try_id, ordinal, class });
        if !self.rooms.is_empty() || self.elsewhere.is_some() {
            *batch.taken.entry(class).or_default() += 1;
        }
        true
    }

    /// The first item in line of a class that has room. A class that gave permits back unused comes
    /// when nothing else is in line, or alone to see whether there is somebody for it now.
    fn next_ready(
        &mut self,
        now: Now,
        taken: &BTreeMap<SizeClass, usize>,
    ) -> Option<(Kind, ItemId)> {
        let mut ready = std::mem::take(&mut self.ready);
        let of = |class: SizeClass| taken.get(&class).copied().unwrap_or(0);
        let has_room =
            |(class, lane): Kind| !self.closed.contains_key(&lane) && self.room(class) > of(class);
        let in_turn = |kind: Kind| {
            let class = kind.0;
            let held = self.elsewhere.as_ref().and_then(|e| e.held_back.get(&class));
            let may = held.is_none_or(|until| {
                *until <= now.monotonic_ms && self.unstarted_of(class) + of(class) == 0
            });
            may && has_room(kind)
        };
        let next = ready.pop(in_turn).or_else(|| ready.pop(has_room));
        self.ready = ready;
        next
    }

    /// Keeps watch over new offers.
    fn take_off(&mut self, now: Now, offered: &[OfferedTry]) {
        let Some(elsewhere) = &mut self.elsewhere else { return };
        for OfferedTry { item, try_id, .. } in offered {
            let Some(row) = self.rows.get(item) else { continue };
            let class = if row.solo { SizeClass::SOLO } else { row.class };
            elsewhere.take_off(now.monotonic_ms, *item, *try_id, class, false);
        }
    }
}

/// Offers that are made together.
#[derive(Default)]
struct Batch {
    tries: Vec<OfferedTry>,
    effects: Vec<Effect>,
    /// Offers of each class among them.
    taken: BTreeMap<SizeClass, usize>,
}
