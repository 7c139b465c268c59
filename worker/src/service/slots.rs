//! What a worker has room for: slots, and shares of what its operator lets trials use.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rollout_protocol::wire::delivery::FreeCapacity;
use rollout_protocol::wire::heartbeat::ResourceBudget;
use rollout_protocol::wire::offer::SizeClass;
use tokio::sync::Notify;

/// Memory of one share, MiB; see [`SizeClass`].
const SHARE_MB: u64 = 2048;

/// The room of a worker. What is free is either looked for work for or not: one pull at a time
/// reserves it, so that open requests never exceed what is free.
#[derive(Debug)]
pub(super) struct Rooms {
    slots: usize,
    /// Absent when the operator set no limit.
    shares: Option<u64>,
    state: Mutex<State>,
    freed: Notify,
}

#[derive(Debug, Default)]
struct State {
    slots: usize,
    shares: u64,
    /// Something runs that has to run alone.
    solo: bool,
    /// A pull is under way.
    reserved: bool,
    /// How many were told to run and wait for a seat: they come before new work.
    waiting: usize,
}

/// What one execution with an environment occupies, until it is dropped.
#[derive(Debug)]
pub(super) struct Seat {
    rooms: Arc<Rooms>,
    class: SizeClass,
}

/// The free room while it is looked for work for. Given back when dropped, but for the seats taken.
#[derive(Debug)]
pub(super) struct Reservation {
    rooms: Arc<Rooms>,
    room: FreeCapacity,
}

/// One that waits for a seat.
struct Waiting<'a>(&'a Rooms);

impl Rooms {
    pub(super) fn new(slots: u32, budget: &ResourceBudget) -> Self {
        let shares = [budget.cpus.map(u64::from), budget.memory_mb.map(|mb| mb / SHARE_MB)];
        Self {
            slots: slots as usize,
            shares: shares.into_iter().flatten().min(),
            state: Mutex::default(),
            freed: Notify::new(),
        }
    }

    /// Slots that nothing occupies and that something else may use.
    pub(super) fn free(&self) -> usize {
        self.left(&self.state()).slots
    }

    /// Waits for free room and reserves it, at most so many slots of it.
    pub(super) async fn reserve(self: &Arc<Self>, most: usize) -> Reservation {
        loop {
            let mut freed = std::pin::pin!(self.freed.notified());
            freed.as_mut().enable();
            if let Some(mut room) = self.try_reserve() {
                room.slots = room.slots.min(most);
                return Reservation { rooms: Arc::clone(self), room };
            }
            freed.await;
        }
    }

    /// Waits for a seat.
    pub(super) async fn seat(self: &Arc<Self>, class: SizeClass) -> Seat {
        self.state().waiting += 1;
        let _waiting = Waiting(self);
        loop {
            let mut freed = std::pin::pin!(self.freed.notified());
            freed.as_mut().enable();
            {
                let mut state = self.state();
                if !state.reserved && self.left(&state).count_for(class) > 0 {
                    return self.take(&mut state, class);
                }
            }
            freed.await;
        }
    }

    /// Waits until nothing has a seat.
    pub(super) async fn emptied(&self) {
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
        let room = self.left(&state);
        // Without a share left only the slot is free.
        let free = room.count_for(SizeClass::default()) > 0;
        let may = free && !state.reserved && state.waiting == 0;
        state.reserved |= may;
        may.then_some(room)
    }

    fn left(&self, state: &State) -> FreeCapacity {
        FreeCapacity {
            slots: if state.solo { 0 } else { self.slots - state.slots },
            shares: self.shares.map(|shares| shares.saturating_sub(state.shares)),
            idle: state.slots == 0,
        }
    }

    fn take(self: &Arc<Self>, state: &mut State, class: SizeClass) -> Seat {
        state.slots += 1;
        if class == SizeClass::SOLO {
            state.solo = true;
        } else {
            state.shares = state.shares.saturating_add(class.shares());
        }
        Seat { rooms: Arc::clone(self), class }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reservation {
    /// What is left of it.
    pub(super) fn room(&self) -> FreeCapacity {
        self.room
    }

    pub(super) fn fits(&self, class: SizeClass) -> bool {
        self.room.count_for(class) > 0
    }

    /// Takes a seat, which must fit.
    pub(super) fn take(&mut self, class: SizeClass) -> Seat {
        self.room = self.room.without(class, 1);
        self.rooms.take(&mut self.rooms.state(), class)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.rooms.state().reserved = false;
        self.rooms.freed.notify_waiters();
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut state = self.rooms.state();
        state.slots -= 1;
        if self.class == SizeClass::SOLO {
            state.solo = false;
        } else {
            state.shares = state.shares.saturating_sub(self.class.shares());
        }
        drop(state);
        self.rooms.freed.notify_waiters();
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.state().waiting -= 1;
        self.0.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    fn rooms(cpus: Option<u32>, memory_mb: Option<u64>) -> Arc<Rooms> {
        Arc::new(Rooms::new(4, &ResourceBudget { cpus, memory_mb, disk_mb: None }))
    }

    fn reserved(rooms: &Arc<Rooms>) -> Option<Reservation> {
        rooms.reserve(usize::MAX).now_or_never()
    }

    fn room(rooms: &Arc<Rooms>) -> FreeCapacity {
        reserved(rooms).expect("something is free").room()
    }

    #[test]
    fn shares_are_the_scarcer_of_what_is_declared() {
        assert_eq!(room(&rooms(None, None)), FreeCapacity::with_slots(4));
        assert_eq!(room(&rooms(Some(8), None)).shares, Some(8));
        assert_eq!(room(&rooms(Some(8), Some(6 * 1024))).shares, Some(3));
    }

    #[test]
    fn what_runs_uses_slots_and_shares() {
        let rooms = rooms(Some(5), None);
        let mut reservation = reserved(&rooms).expect("all is free");
        assert!(!reservation.fits(SizeClass(2)));
        let big = reservation.take(SizeClass(1));
        assert!(!reservation.fits(SizeClass(1)) && !reservation.fits(SizeClass::SOLO));
        let small = reservation.take(SizeClass(0));
        assert!(!reservation.fits(SizeClass(0)), "no share is left");
        drop(reservation);
        assert!(reserved(&rooms).is_none());
        assert_eq!(rooms.free(), 2);
        drop(big);
        assert_eq!(room(&rooms), FreeCapacity { slots: 3, shares: Some(4), idle: false });
        drop(small);
        assert_eq!(room(&rooms), FreeCapacity { slots: 4, shares: Some(5), idle: true });
    }

    #[test]
    fn what_runs_alone_needs_an_idle_worker_and_keeps_it() {
        let rooms = rooms(None, None);
        let small = reserved(&rooms).expect("all is free").take(SizeClass(0));
        assert!(rooms.seat(SizeClass::SOLO).now_or_never().is_none());
        drop(small);
        let solo = rooms.seat(SizeClass::SOLO).now_or_never().expect("it is idle");
        assert!(reserved(&rooms).is_none());
        assert!(rooms.seat(SizeClass(0)).now_or_never().is_none());
        assert_eq!(rooms.free(), 0);
        drop(solo);
        assert_eq!(rooms.free(), 4);
    }

    #[test]
    fn what_was_told_to_run_comes_before_new_work() {
        let rooms = rooms(None, None);
        let reservation = reserved(&rooms).expect("all is free");
        let mut waiting = Box::pin(rooms.seat(SizeClass(0)));
        assert!(waiting.as_mut().now_or_never().is_none(), "a pull has it all");
        drop(reservation);
        assert!(reserved(&rooms).is_none());
        let seat = waiting.now_or_never().expect("it is free");
        assert!(reserved(&rooms).is_some());
        drop(seat);
    }
}
