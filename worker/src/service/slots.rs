//! The slots of a worker, and the shares of its resource budget.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rollout_protocol::wire::delivery::FreeCapacity;
use rollout_protocol::wire::heartbeat::ResourceBudget;
use rollout_protocol::wire::offer::SizeClass;
use tokio::sync::Notify;

/// Memory of one share, MiB; see [`SizeClass`].
const SHARE_MEMORY_MB: u64 = 2048;

/// The slots and shares of a worker. One pull at a time reserves the free ones, so that open
/// requests never exceed them.
#[derive(Debug)]
pub(super) struct SlotPool {
    slots: usize,
    /// Shares of the budget; absent when the operator set no limit.
    shares: Option<u64>,
    state: Mutex<SlotPoolState>,
    freed: Notify,
}

#[derive(Debug, Default)]
struct SlotPoolState {
    slots: usize,
    shares: u64,
    /// Whether a solo execution runs.
    solo: bool,
    /// Whether a pull holds a reservation.
    reserved: bool,
    /// Number of executions that wait for a slot: they come before new work.
    waiting: usize,
}

/// The slot and shares of one execution with an environment. Freed on drop.
#[derive(Debug)]
pub(super) struct SlotPermit {
    pool: Arc<SlotPool>,
    class: SizeClass,
}

/// The free slots and shares, reserved for one pull. Those not taken are freed on drop.
#[derive(Debug)]
pub(super) struct SlotReservation {
    pool: Arc<SlotPool>,
    capacity: FreeCapacity,
}

/// Counts one execution that waits for a slot.
struct SlotWaiter<'a>(&'a SlotPool);

impl SlotPool {
    pub(super) fn new(slots: u32, budget: &ResourceBudget) -> Self {
        let shares = [budget.cpus.map(u64::from), budget.memory_mb.map(|mb| mb / SHARE_MEMORY_MB)];
        Self {
            slots: slots as usize,
            shares: shares.into_iter().flatten().min(),
            state: Mutex::default(),
            freed: Notify::new(),
        }
    }

    /// Number of free slots that may be used: none while a solo execution runs.
    pub(super) fn free_slots(&self) -> usize {
        self.remaining(&self.state()).slots
    }

    /// Waits for free capacity and reserves it, at most `most` slots.
    pub(super) async fn reserve(self: &Arc<Self>, max_slots: usize) -> SlotReservation {
        loop {
            let mut freed = std::pin::pin!(self.freed.notified());
            freed.as_mut().enable();
            if let Some(mut capacity) = self.try_reserve() {
                capacity.slots = capacity.slots.min(max_slots);
                return SlotReservation { pool: Arc::clone(self), capacity };
            }
            freed.await;
        }
    }

    /// Waits for a slot.
    pub(super) async fn acquire(self: &Arc<Self>, class: SizeClass) -> SlotPermit {
        self.state().waiting += 1;
        let _waiting = SlotWaiter(self);
        loop {
            let mut freed = std::pin::pin!(self.freed.notified());
            freed.as_mut().enable();
            {
                let mut state = self.state();
                if !state.reserved && self.remaining(&state).count_for(class) > 0 {
                    return self.take(&mut state, class);
                }
            }
            freed.await;
        }
    }

    /// Waits until no slot is taken.
    pub(super) async fn wait_until_idle(&self) {
        loop {
            let mut freed = std::pin::pin!(self.freed.notified());
            freed.as_mut().enable();
            if self.state().slots == 0 {
                return;
            }
            freed.await;
        }
    }

    fn try_reserve(&self) -> Option<FreeCapacity> {
        let mut state = self.state();
        let capacity = self.remaining(&state);
        // A slot without shares is not usable.
        let free = capacity.count_for(SizeClass::default()) > 0;
        let granted = free && !state.reserved && state.waiting == 0;
        state.reserved |= granted;
        granted.then_some(capacity)
    }

    fn remaining(&self, state: &SlotPoolState) -> FreeCapacity {
        FreeCapacity {
            slots: if state.solo { 0 } else { self.slots - state.slots },
            shares: self.shares.map(|shares| shares.saturating_sub(state.shares)),
            idle: state.slots == 0,
        }
    }

    fn take(self: &Arc<Self>, state: &mut SlotPoolState, class: SizeClass) -> SlotPermit {
        state.slots += 1;
        if class == SizeClass::SOLO {
            state.solo = true;
        } else {
            state.shares = state.shares.saturating_add(class.shares());
        }
        SlotPermit { pool: Arc::clone(self), class }
    }

    fn state(&self) -> MutexGuard<'_, SlotPoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SlotReservation {
    /// The remaining capacity.
    pub(super) fn capacity(&self) -> FreeCapacity {
        self.capacity
    }

    pub(super) fn fits(&self, class: SizeClass) -> bool {
        self.capacity.count_for(class) > 0
    }

    /// Takes a slot; `class` must fit.
    pub(super) fn take(&mut self, class: SizeClass) -> SlotPermit {
        self.capacity = self.capacity.without(class, 1);
        self.pool.take(&mut self.pool.state(), class)
    }
}

impl Drop for SlotReservation {
    fn drop(&mut self) {
        self.pool.state().reserved = false;
        self.pool.freed.notify_waiters();
    }
}

impl Drop for SlotPermit {
    fn drop(&mut self) {
        let mut state = self.pool.state();
        state.slots -= 1;
        if self.class == SizeClass::SOLO {
            state.solo = false;
        } else {
            state.shares = state.shares.saturating_sub(self.class.shares());
        }
        drop(state);
        self.pool.freed.notify_waiters();
    }
}

impl Drop for SlotWaiter<'_> {
    fn drop(&mut self) {
        self.0.state().waiting -= 1;
        self.0.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    fn slot_pool(cpus: Option<u32>, memory_mb: Option<u64>) -> Arc<SlotPool> {
        Arc::new(SlotPool::new(4, &ResourceBudget { cpus, memory_mb }))
    }

    fn try_reservation(pool: &Arc<SlotPool>) -> Option<SlotReservation> {
        pool.reserve(usize::MAX).now_or_never()
    }

    fn reserved_capacity(pool: &Arc<SlotPool>) -> FreeCapacity {
        try_reservation(pool).expect("something is free").capacity()
    }

    #[test]
    fn slot_shares_are_minimum_of_cpus_and_memory() {
        assert_eq!(reserved_capacity(&slot_pool(None, None)), FreeCapacity::with_slots(4));
        assert_eq!(reserved_capacity(&slot_pool(Some(8), None)).shares, Some(8));
        assert_eq!(reserved_capacity(&slot_pool(Some(8), Some(6 * 1024))).shares, Some(3));
    }

    #[test]
    fn slot_taken_reduces_slots_and_shares_until_dropped() {
        let pool = slot_pool(Some(5), None);
        let mut reservation = try_reservation(&pool).expect("all is free");
        assert!(!reservation.fits(SizeClass(2)));
        let big = reservation.take(SizeClass(1));
        assert!(!reservation.fits(SizeClass(1)) && !reservation.fits(SizeClass::SOLO));
        let small = reservation.take(SizeClass(0));
        assert!(!reservation.fits(SizeClass(0)), "no share is left");
        drop(reservation);
        assert!(try_reservation(&pool).is_none());
        assert_eq!(pool.free_slots(), 2);
        drop(big);
        assert_eq!(
            reserved_capacity(&pool),
            FreeCapacity { slots: 3, shares: Some(4), idle: false }
        );
        drop(small);
        assert_eq!(
            reserved_capacity(&pool),
            FreeCapacity { slots: 4, shares: Some(5), idle: true }
        );
    }

    #[test]
    fn solo_slot_needs_idle_worker_and_blocks_others() {
        let pool = slot_pool(None, None);
        let small = try_reservation(&pool).expect("all is free").take(SizeClass(0));
        assert!(pool.acquire(SizeClass::SOLO).now_or_never().is_none());
        drop(small);
        let solo = pool.acquire(SizeClass::SOLO).now_or_never().expect("it is idle");
        assert!(try_reservation(&pool).is_none());
        assert!(pool.acquire(SizeClass(0)).now_or_never().is_none());
        assert_eq!(pool.free_slots(), 0);
        drop(solo);
        assert_eq!(pool.free_slots(), 4);
    }

    #[test]
    fn slot_for_claimed_work_precedes_new_pull() {
        let pool = slot_pool(None, None);
        let reservation = try_reservation(&pool).expect("all is free");
        let mut waiting = Box::pin(pool.acquire(SizeClass(0)));
        assert!(waiting.as_mut().now_or_never().is_none(), "a pull has reserved everything");
        drop(reservation);
        assert!(try_reservation(&pool).is_none());
        let slot = waiting.now_or_never().expect("it is free");
        assert!(try_reservation(&pool).is_some());
        drop(slot);
    }
}
