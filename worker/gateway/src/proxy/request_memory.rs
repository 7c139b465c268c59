//! Memory for requests: of all executions of a worker, whose users are their runs, and of each one.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rollout_base::shared_limit::{LimitShares, LimitUser, SharedLimit, SharedPlace};
use rollout_protocol::id::RunId;
use rollout_protocol::limits;
use tokio::time::{Instant, timeout};

/// Longest wait of a body for memory of its execution, and for memory of all: others may wait for what
/// it holds.
const MEMORY_TIMEOUT: Duration = Duration::from_secs(300);

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
    /// Whether a body had no memory in time because of other runs, and no later one was read.
    is_refused: bool,
}

/// A body had no memory in time.
#[derive(Debug)]
pub(super) struct NoMemory;

/// Memory of one body, held until this is dropped.
#[derive(Debug)]
pub(super) struct BodyMemory {
    own: SharedPlace,
    all: SharedPlace,
}

impl TryMemory {
    /// Waits for memory for a body.
    pub(super) async fn take(&self, bytes: usize) -> Result<BodyMemory, NoMemory> {
        let bytes = bytes.clamp(1, limits::GATEWAY_TRY_BYTES) as u64;
        self.acquire(bytes, 0).await
    }

    /// Waits until a body has memory for this many bytes. One that holds some and waits for more may
    /// wait for another one that does the same.
    pub(super) async fn grow(&self, memory: &mut BodyMemory, bytes: usize) -> Result<(), NoMemory> {
        let present = memory.own.amount();
        let more = (bytes as u64).saturating_sub(present);
        if more > 0 {
            let BodyMemory { own, all } = self.acquire(more, present).await?;
            memory.own.merge(own);
            memory.all.merge(all);
        }
        Ok(())
    }

    /// Waits for more memory for a body that has `present` bytes already.
    async fn acquire(&self, more: u64, present: u64) -> Result<BodyMemory, NoMemory> {
        let own = timeout(MEMORY_TIMEOUT, self.own.acquire(&self.user, 0, more)).await;
        let own = own.map_err(|_late| NoMemory)?;
        let all = timeout(MEMORY_TIMEOUT, self.take_of_all(more, present)).await;
        let all = all.map_err(|_late| {
            // Tries of one run could fill its part to have no verdict.
            let is_own = self.all.waits_for_own(&self.user, more.saturating_add(present));
            self.waits().is_refused |= !is_own;
            NoMemory
        })?;
        Ok(BodyMemory { own, all })
    }

    /// Waits for memory of all executions. Requests of the run's tries that hold less go first.
    async fn take_of_all(&self, more: u64, present: u64) -> SharedPlace {
        let held_mib = i32::try_from(self.own.counts().held >> 20).unwrap_or(i32::MAX);
        let _waiting = MemoryWait::new(self);
        self.all.acquire_more(&self.user, -held_mib, more, present).await
    }

    fn waits(&self) -> MutexGuard<'_, MemoryWaits> {
        self.waits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it waits for memory that others hold.
    pub(super) fn is_waiting(&self) -> bool {
        self.waits().since.is_some()
    }

    /// Whether a body had no memory in time because of other runs, and no later one was read.
    pub(super) fn is_refused(&self) -> bool {
        self.waits().is_refused
    }

    /// Notes that a body was read and is sent: its call says whether there is an answer.
    pub(super) fn mark_read(&self) {
        self.waits().is_refused = false;
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
    use rollout_base::shared_limit::HOLD_BACK;

    use super::*;

    const ONE: RunId = RunId::from_bytes([1; 16]);
    const OTHER: RunId = RunId::from_bytes([2; 16]);

    #[tokio::test]
    async fn tries_of_a_run_share_its_part_and_leave_room_for_other_runs() {
        let memory = RequestMemory::new(800);
        let tries: Vec<_> = (0..8).map(|_| memory.of_try(ONE)).collect();
        let mut held = Vec::new();
        for one in &tries {
            held.extend(one.take(100).now_or_never().transpose().expect("in time"));
        }
        assert_eq!(held.len(), 4, "the part of one run");
        let other = memory.of_try(OTHER);
        assert!(other.take(100).now_or_never().is_some_and(|taken| taken.is_ok()));
        drop(held);
        assert_eq!(memory.held(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn wait_for_memory_of_others_counts_once_and_that_for_own_does_not() {
        let memory = RequestMemory::new(800);
        let (holder, waiter) = (memory.of_try(OTHER), memory.of_try(ONE));
        let held = holder.take(700).await.expect("in time");
        let release = async {
            tokio::time::sleep(Duration::from_secs(5)).await;
            assert!(waiter.is_waiting() && !holder.is_waiting());
            drop(held);
        };
        let (first, second, ()) = tokio::join!(waiter.take(50), waiter.take(60), release);
        let bytes = |taken: Result<BodyMemory, _>| taken.map(|taken| taken.bytes()).ok();
        assert_eq!((bytes(first), bytes(second)), (Some(50), Some(60)));
        assert!(!waiter.is_waiting());
        assert_eq!(waiter.waited(), Duration::from_secs(5));

        let memory = RequestMemory::default();
        let alone = memory.of_try(ONE);
        let all = alone.take(limits::GATEWAY_TRY_BYTES).await.expect("in time");
        let more = tokio::time::timeout(Duration::from_secs(5), alone.take(1)).await;
        assert!(more.is_err() && !alone.is_waiting(), "it holds all that it may");
        assert_eq!(alone.waited(), Duration::ZERO);
        drop(all);
    }

    #[tokio::test]
    async fn body_that_grows_and_shrinks_holds_that_much() {
        let memory = RequestMemory::default();
        let one = memory.of_try(ONE);
        let mut body = one.take(10).await.expect("in time");
        one.grow(&mut body, 30).await.expect("in time");
        one.grow(&mut body, 20).await.expect("in time");
        assert_eq!((body.bytes(), memory.held()), (30, 30));
        body.shrink_to(0);
        assert_eq!((body.bytes(), memory.held()), (1, 1));
        drop(body);
        assert_eq!(memory.held(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn large_requests_of_many_runs_leave_memory_for_a_small_one_in_bounded_time() {
        const LARGE: usize = limits::GATEWAY_REQUEST_BYTES;
        let memory = RequestMemory::default();
        let runs = [1, 2, 3, 4, 5, 6].map(|run| memory.of_try(RunId::from_bytes([run; 16])));
        let mut held = Vec::new();
        for (run, bodies) in runs.iter().zip([4, 4, 1, 1]) {
            for _ in 0..bodies {
                held.push(run.take(LARGE).now_or_never().expect("room").expect("in time"));
            }
        }
        let mut large = Box::pin(runs[4].take(LARGE));
        assert!(large.as_mut().now_or_never().is_none(), "half of it is left");
        let mut small = Box::pin(runs[5].take(1024));
        assert!(small.as_mut().now_or_never().is_none(), "it is behind the large one");
        let small = timeout(HOLD_BACK * 2, small).await.expect("in bounded time");
        assert!(small.is_ok_and(|small| small.bytes() == 1024));
        assert!(large.await.is_err(), "nor does the large one wait without end");
        assert!(runs[4].is_refused() && !runs[5].is_refused());

        drop(held);
        let _repeated = runs[4].take(LARGE).await.expect("in time");
        assert!(runs[4].is_refused(), "it is not read yet");
        runs[4].mark_read();
        assert!(!runs[4].is_refused());
    }

    #[tokio::test(start_paused = true)]
    async fn memory_that_tries_of_the_same_run_hold_is_no_outage() {
        const MIB: usize = 1 << 20;
        let memory = RequestMemory::default();
        let tries = [1, 2, 3].map(|_| memory.of_try(ONE));
        let _first = tries[0].take(256 * MIB).await.expect("in time");
        let _second = tries[1].take(192 * MIB).await.expect("in time");
        assert!(tries[2].take(64 * MIB).await.is_err(), "it is the part of the run");
        assert!(!tries[2].is_refused());
        let other = memory.of_try(OTHER).take(64 * MIB).await;
        assert!(other.is_ok(), "other runs have memory");
    }

    #[tokio::test]
    async fn large_body_has_what_other_runs_leave_also_after_its_first_bytes() {
        const MIB: usize = 1 << 20;
        let memory = RequestMemory::default();
        let [one, two, three] = [ONE, ONE, OTHER].map(|run| memory.of_try(run));
        let _first = one.take(256 * MIB).await.expect("in time");
        let _second = two.take(192 * MIB).await.expect("in time");
        let _third = three.take(149 * MIB).await.expect("in time");
        let large = memory.of_try(RunId::from_bytes([3; 16]));
        let mut body = large.take(MIB).await.expect("in time");
        let grown = large.grow(&mut body, 64 * MIB).now_or_never().expect("there is room");
        assert!(grown.is_ok() && body.bytes() == 64 * MIB);
    }
}
