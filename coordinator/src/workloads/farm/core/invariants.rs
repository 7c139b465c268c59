//! Invariants of the state, checked after every step of tests.

use super::FarmCore;

/// An invariant that does not hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the state of the farm is inconsistent: {0}")]
pub struct BrokenFarm(pub String);

impl FarmCore {
    /// Checks that the parts of the state agree with each other.
    ///
    /// # Errors
    /// The first invariant that does not hold.
    pub fn check(&self) -> Result<(), BrokenFarm> {
        let expect = |holds: bool, what: &str| match holds {
            true => Ok(()),
            false => Err(BrokenFarm(what.to_owned())),
        };
        let open = self.groups.values().filter(|group| group.end.is_none()).count();
        expect(open == self.open_groups, "open groups")?;
        let samples: u32 = self.groups.values().map(|group| group.open()).sum();
        expect(samples as usize == self.open_samples, "open samples")?;
        let ending: usize = self.groups.values().map(|group| group.ending.len()).sum();
        expect(self.slots.len() == self.open_samples + ending, "slots of samples")?;
        expect(self.ordinals.len() == self.slots.len(), "ordinals of items")?;
        let generations = self.groups.values().flat_map(|group| &group.samples);
        let generations: u64 = generations.map(|slot| u64::from(slot.generation)).sum();
        expect(generations == self.held_generations, "held generations")?;
        expect(self.queue.len() <= self.open_samples, "queued samples")?;
        let bytes: u64 = self.groups.values().map(|group| group.held_bytes).sum();
        expect(bytes == self.held_bytes, "bytes of groups")?;
        let slots = self.groups.values().flat_map(|group| &group.samples);
        let mut parked = slots.filter_map(|slot| slot.outage).filter(|outage| outage.is_parked);
        expect(parked.all(|slot| self.queue.outages.contains(slot.cause)), "parked refills")?;
        expect(self.finished.len() == self.finished_order.len(), "ended groups")?;
        let unread: u32 = self.groups.values().map(|group| group.unacknowledged).sum();
        expect(unread as usize == self.completions.len(), "completions of groups")?;
        let last = self.completions.keys().next_back();
        expect(last.is_none_or(|last| *last < self.next_cursor), "cursors")?;
        for (id, group) in &self.groups {
            expect((group.open() == 0) == group.end.is_some(), &format!("end of group {id}"))?;
            expect(!group.is_finished(), &format!("group {id} is finished and kept"))?;
            expect(group.refills <= group.request().refill_limit(), &format!("refills of {id}"))?;
        }
        let limits = &self.settings.limits;
        let unacknowledged = self.open_samples + self.completions.len();
        let is_within = self.open_groups <= limits.open_groups as usize
            && self.open_samples <= limits.open_samples as usize
            && unacknowledged <= limits.unacknowledged as usize;
        expect(is_within, "limits")
    }
}
