//! Memory for requests: of all executions of a worker, whose users are their runs, and of each one.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rollout_protocol::id::RunId;
use rollout_protocol::limits;
use tokio::time::Instant;

use crate::shared_limit::{LimitShares, LimitUser, SharedLimit, SharedPlace};

/// Memory for the requests of all executions.
#[derive(Debug)]
pub(super) struct RequestMemory(Arc<SharedLimit>);

impl Default for RequestMemory {
    fn default() -> Self {
        Self::new(limits::GATEWAY_BYTES as u64)
    }
}

impl RequestMemory {
    fn new(bytes: u64) -> Self {
        Self(SharedLimit::new(LimitShares::new(bytes)))
    }

    /// The part of an execution. A worker does not know the users of runs: each run is one.
    pub(super) fn of_try(&self, run: RunId) -> TryMemory {
        TryMemory {
            own: SharedLimit::new(LimitShares::whole(limits::GATEWAY_TRY_BYTES as u64)),
            all: Arc::clone(&self.0),
            user: LimitUser { name: run.to_string(), is_admin: false },
            waits: Mutex::default(),
        }
    }

    /// Bytes that are held.
    #[cfg(test)]
    pub(super) fn held(&self) -> u64 {
        self.0.counts().held
    }
}

/// Memory for the requests of an execution.
#[derive(Debug)]
pub(super) struct TryMemory {
    own: Arc<SharedLimit>,
    all: Arc<SharedLimit>,
    user: LimitUser,
    waits: Mutex<MemoryWaits>,
}

/// The time for which an execution waited for memory that others held.
#[derive(Debug, Default)]
struct MemoryWaits {
    waiting: usize,
    since: Option<Instant>,
    /// Total of the former waits.
    past: Duration,
}

/// Memory of one body, held until this is dropped.
#[derive(Debug)]
pub(super) struct BodyMemory {
    own: SharedPlace,
    all: SharedPlace,
}

impl TryMemory {
    /// Waits for memory for a body.
    pub(super) async fn take(&self, bytes: usize) -> BodyMemory {
        let bytes = bytes.clamp(1, limits::GATEWAY_TRY_BYTES) as u64;
        let own = self.own.acquire(&self.user, 0, bytes).await;
        BodyMemory { own, all: self.take_of_all(bytes).await }
    }

    /// Waits until a body has memory for this many bytes. One that holds some and waits for more may
    /// wait for another one that does the same: the caller limits the time.
    pub(super) async fn grow(&self, memory: &mut BodyMemory, bytes: usize) {
        let more = (bytes as u64).saturating_sub(memory.own.amount());
        if more > 0 {
            let own = self.own.acquire(&self.user, 0, more).await;
            let all = self.take_of_all(more).await;
            memory.own.merge(own);
            memory.all.merge(all);
        }
    }

    /// Waits for memory of all executions. Requests of the run's tries that hold less go first.
    async fn take_of_all(&self, bytes: u64) -> SharedPlace {
        let held_mib = i32::try_from(self.own.counts().held >> 20).unwrap_or(i32::MAX);
        let _waiting = MemoryWait::new(self);
        self.all.acquire(&self.user, -held_mib, bytes).await
    }

    fn waits(&self) -> MutexGuard<'_, MemoryWaits> {
        self.waits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it waits for memory that others hold.
    pub(super) fn is_waiting(&self) -> bool {
        self.waits().since.is_some()
    }

    /// Total time for which it waited for memory that others held.
    pub(super) fn waited(&self) -> Duration {
        let waits = self.waits();
        waits.past + waits.since.map(|since| since.elapsed()).unwrap_or_default()
    }
}

impl BodyMemory {
    /// Gives back what is more than this many bytes.
    pub(super) fn shrink_to(&mut self, bytes: usize) {
        let bytes = bytes.max(1) as u64;
        self.own.shrink_to(bytes);
        self.all.shrink_to(bytes);
    }

    /// How many bytes it is for.
    pub(super) fn bytes(&self) -> usize {
        usize::try_from(self.own.amount()).unwrap_or(usize::MAX)
    }
}

/// A request that waits, until this is dropped. Waits at the same time count once.
struct MemoryWait<'a>(&'a TryMemory);

impl<'a> MemoryWait<'a> {
    fn new(memory: &'a TryMemory) -> Self {
        let mut waits = memory.waits();
        waits.waiting += 1;
        waits.since.get_or_insert_with(Instant::now);
        drop(waits);
        Self(memory)
    }
}

impl Drop for MemoryWait<'_> {
    fn drop(&mut self) {
        let mut waits = self.0.waits();
        waits.waiting -= 1;
        if waits.waiting == 0
            && let Some(since) = waits.since.take()
        {
            waits.past += since.elapsed();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    const ONE: RunId = RunId::from_bytes([1; 16]);
    const OTHER: RunId = RunId::from_bytes([2; 16]);

    #[tokio::test]
    async fn tries_of_a_run_share_its_part_and_leave_room_for_other_runs() {
        let memory = RequestMemory::new(800);
        let tries: Vec<_> = (0..8).map(|_| memory.of_try(ONE)).collect();
        let mut held = Vec::new();
        for one in &tries {
            held.extend(one.take(100).now_or_never());
        }
        assert_eq!(held.len(), 4, "the part of one run");
        let other = memory.of_try(OTHER);
        assert!(other.take(100).now_or_never().is_some());
        drop(held);
        assert_eq!(memory.held(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn wait_for_memory_of_others_counts_once_and_that_for_own_does_not() {
        let memory = RequestMemory::new(800);
        let (holder, waiter) = (memory.of_try(OTHER), memory.of_try(ONE));
        let held = holder.take(700).await;
        let release = async {
            tokio::time::sleep(Duration::from_secs(5)).await;
            assert!(waiter.is_waiting() && !holder.is_waiting());
            drop(held);
        };
        let (first, second, ()) = tokio::join!(waiter.take(50), waiter.take(60), release);
        assert_eq!((first.bytes(), second.bytes()), (50, 60));
        assert!(!waiter.is_waiting());
        assert_eq!(waiter.waited(), Duration::from_secs(5));

        let memory = RequestMemory::default();
        let alone = memory.of_try(ONE);
        let all = alone.take(limits::GATEWAY_TRY_BYTES).await;
        let more = tokio::time::timeout(Duration::from_secs(5), alone.take(1)).await;
        assert!(more.is_err() && !alone.is_waiting(), "it holds all that it may");
        assert_eq!(alone.waited(), Duration::ZERO);
        drop(all);
    }

    #[tokio::test]
    async fn body_that_grows_and_shrinks_holds_that_much() {
        let memory = RequestMemory::default();
        let one = memory.of_try(ONE);
        let mut body = one.take(10).await;
        one.grow(&mut body, 30).await;
        one.grow(&mut body, 20).await;
        assert_eq!((body.bytes(), memory.held()), (30, 30));
        body.shrink_to(0);
        assert_eq!((body.bytes(), memory.held()), (1, 1));
        drop(body);
        assert_eq!(memory.held(), 0);
    }
}
