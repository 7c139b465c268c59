//! Which items are offered next.

use super::Core;
use super::effect::Effect;
use super::handle::Output;
use super::input::Now;
use super::record::{OfferedTry, Record};
use super::row::State;

impl Core {
    /// How many of the plan's next items could be offered now.
    pub fn wants(&self) -> usize {
        if self.stop.is_some() || self.exhausted || !self.dispatching {
            return 0;
        }
        self.settings.permits.saturating_sub(self.in_flight + self.ready.len())
    }

    /// Offers what is owed while there are permits. One record for all of them.
    pub(super) fn offer(&mut self, now: Now, out: &mut impl Output) {
        if self.stop.is_some() || !self.dispatching || self.ready.is_empty() {
            return;
        }
        let mut room = self.settings.permits.saturating_sub(self.in_flight);
        let mut tries = Vec::new();
        let mut effects = Vec::new();
        while room > 0
            && let Some(item) = self.ready.pop_front()
        {
            let Some(row) = self.rows.get(&item).filter(|row| row.state == State::Owed) else {
                continue;
            };
            let Some(ordinal) = row.ordinal else { continue };
            if row.current.n > 0 {
                // Never two tries of an item in the queue.
                effects.push(Effect::Withdraw { item, try_id: row.current });
            }
            let try_id = row.current.next(self.settings.epoch);
            tries.push(OfferedTry { item, try_id, spec: row.spec });
            effects.push(Effect::Offer { item, try_id, ordinal, class: row.class });
            room -= 1;
        }
        if tries.is_empty() {
            return;
        }
        self.commit(now, Record::Offered { tries }, out);
        out.effects().append(&mut effects);
    }
}
