//! Idle permits: offers that no worker starts are withdrawn when other items could use the permits.

use std::collections::BTreeMap;

use rollout_protocol::id::{ItemId, TryId};
use rollout_protocol::wire::offer::SizeClass;

use super::Core;
use super::handle::CoreOutput;
use super::input::InputTime;
use super::record::WithdrawnTry;
use super::worker_liveness::WorkerLiveness;

/// An offer that no worker started for one lease.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct IdleOffer {
    since: u64,
    item: ItemId,
    try_id: TryId,
    /// Its class; `None` when its lane has no worker.
    class: Option<SizeClass>,
}

impl Core {
    /// Withdraws offers that no worker started for one lease, when all permits are used and items
    /// of other classes could be offered instead.
    pub(super) fn reclaim(&mut self, now: InputTime, out: &mut impl CoreOutput) {
        let Some(remote) = &self.remote else { return };
        if self.stop.is_some() || self.in_flight < self.settings.permits || self.ready.is_empty() {
            return;
        }
        let now_ms = now.monotonic_ms;
        let waiting = self.waiting_for_permits(now_ms, remote);
        let wanted = waiting.values().copied().fold(0, usize::saturating_add);
        let mut idle = self.idle_offers(now_ms, remote, &waiting);
        idle.sort_unstable();
        idle.truncate(wanted);
        if idle.is_empty() {
            return;
        }
        let until = now_ms.saturating_add(remote.timeouts.lease);
        let classes: Vec<_> = idle.iter().filter_map(|offer| offer.class).collect();
        let tries =
            idle.into_iter().map(|IdleOffer { item, try_id, .. }| WithdrawnTry { item, try_id });
        self.withdraw(now, tries.collect(), out);
        if let Some(remote) = &mut self.remote {
            remote.held_back.extend(classes.into_iter().map(|class| (class, until)));
        }
    }

    /// Pending items of each class that has capacity but no permit.
    fn waiting_for_permits(&self, now: u64, remote: &WorkerLiveness) -> BTreeMap<SizeClass, usize> {
        let mut waiting: BTreeMap<SizeClass, usize> = BTreeMap::new();
        for ((class, lane), len) in self.ready.kinds() {
            let held = remote.held_back.get(&class).is_some_and(|until| *until > now);
            if !self.unplaceable_lanes.contains_key(&lane) && !held {
                *waiting.entry(class).or_default() += len;
            }
        }
        waiting.retain(|class, len| {
            // One item of a class that returned permits, to probe for a worker.
            let most = if remote.held_back.contains_key(class) { 1 } else { usize::MAX };
            *len = (*len).min(self.free_capacity(*class)).min(most);
            *len > 0
        });
        waiting
    }

    fn idle_offers(
        &self,
        now: u64,
        remote: &WorkerLiveness,
        waiting: &BTreeMap<SizeClass, usize>,
    ) -> Vec<IdleOffer> {
        let lease = remote.timeouts.lease;
        let idle = remote.offered.iter().filter_map(|(item, flight)| {
            let since = flight.published_at.filter(|_| !flight.started)?;
            if now.saturating_sub(since) < lease {
                return None;
            }
            let row = self.items.get(item).filter(|row| !remote.is_held(now, item, row))?;
            let class = (!self.unplaceable_lanes.contains_key(&row.lane)).then_some(flight.class);
            let instead = class.is_none_or(|class| !waiting.contains_key(&class));
            instead.then_some(IdleOffer { since, item: *item, try_id: flight.try_id, class })
        });
        idle.collect()
    }
}
