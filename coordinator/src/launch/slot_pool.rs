//! A pool of slots that runs of one process share: an execution begins when it has one. Free slots go
//! to runs with the highest priority, then to the user who holds the fewest, then by age.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use rollout_protocol::record::{EvalRecord, IdeasRecord, TrialRecord};
use rollout_worker::disk::DiskWatch;
use rollout_worker::executor::{ExecutionContext, Finished, Slot};
use rollout_worker::gateway::run_calls::RunCallTable;
use rollout_worker::service::Runner;
use rollout_worker::work::eval::EvalContext;
use rollout_worker::work::ideas::IdeasContext;
use rollout_worker::work::trial::TrialContext;
use tokio::sync::oneshot;

/// The slots.
#[derive(Debug)]
pub struct SlotPool(Mutex<PoolState>);

#[derive(Debug, Default)]
struct PoolState {
    free: usize,
    /// Slots that each user holds.
    held: HashMap<String, usize>,
    /// Executions that wait, oldest first.
    waiting: Vec<WaitingExecution>,
}

#[derive(Debug)]
struct WaitingExecution {
    user: String,
    priority: i32,
    granted: oneshot::Sender<PoolSlot>,
}

/// A run's part in a pool.
#[derive(Debug, Clone)]
pub struct SlotShare {
    pool: Arc<SlotPool>,
    user: String,
    priority: i32,
}

/// A slot that is held until this is dropped.
#[derive(Debug)]
pub(super) struct PoolSlot {
    pool: Arc<SlotPool>,
    user: String,
    /// Whether the pool has it back already.
    is_returned: bool,
}

/// Numbers of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotCounts {
    /// Slots that are free.
    pub free: u64,
    /// Slots that executions hold.
    pub held: u64,
    /// Executions that wait for one.
    pub waiting: u64,
}

impl SlotPool {
    /// A pool of free slots.
    pub fn new(slots: usize) -> Arc<Self> {
        Arc::new(Self(Mutex::new(PoolState { free: slots, ..PoolState::default() })))
    }

    /// The part of a run.
    pub fn share(self: &Arc<Self>, user: &str, priority: i32) -> SlotShare {
        SlotShare { pool: Arc::clone(self), user: user.to_owned(), priority }
    }

    /// Its numbers.
    pub fn counts(&self) -> SlotCounts {
        let state = self.state();
        SlotCounts {
            free: state.free as u64,
            held: state.held.values().sum::<usize>() as u64,
            waiting: state.waiting.len() as u64,
        }
    }

    fn state(&self) -> MutexGuard<'_, PoolState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives free slots to executions that wait. One that no longer waits returns its slot.
    fn grant(self: &Arc<Self>) {
        loop {
            let Some(WaitingExecution { user, granted, .. }) = self.state().next_granted() else {
                return;
            };
            let slot = PoolSlot { pool: Arc::clone(self), user, is_returned: false };
            // Not dropped here: that grants slots itself, and many could be returned at once.
            if let Err(mut returned) = granted.send(slot) {
                returned.is_returned = true;
                self.state().release(&returned.user);
            }
        }
    }
}

impl PoolState {
    /// Takes a slot for the execution that has the first claim to one.
    fn next_granted(&mut self) -> Option<WaitingExecution> {
        if self.free == 0 {
            return None;
        }
        let held = |user: &str| self.held.get(user).copied().unwrap_or_default();
        let claim = |(_, waiting): &(usize, &WaitingExecution)| {
            (std::cmp::Reverse(waiting.priority), held(&waiting.user))
        };
        // The first of equal ones, so the oldest.
        let (at, _) = self.waiting.iter().enumerate().min_by_key(claim)?;
        let granted = self.waiting.remove(at);
        self.free -= 1;
        *self.held.entry(granted.user.clone()).or_default() += 1;
        Some(granted)
    }

    fn release(&mut self, user: &str) {
        self.free += 1;
        if let Some(held) = self.held.get_mut(user) {
            *held -= 1;
            if *held == 0 {
                self.held.remove(user);
            }
        }
    }
}

impl Drop for PoolSlot {
    fn drop(&mut self) {
        if !self.is_returned {
            self.pool.state().release(&self.user);
            self.pool.grant();
        }
    }
}

impl SlotShare {
    /// Waits for a slot.
    pub(super) async fn acquire(&self) -> Option<PoolSlot> {
        let (granted, slot) = oneshot::channel();
        let waiting =
            WaitingExecution { user: self.user.clone(), priority: self.priority, granted };
        self.pool.state().waiting.push(waiting);
        self.pool.grant();
        // The pool drops no execution that waits.
        slot.await.ok()
    }
}

/// Runs executions when they have a slot of a pool.
#[derive(Debug)]
pub(super) struct PooledRunner {
    pub(super) inner: Arc<dyn Runner>,
    pub(super) share: SlotShare,
}

impl PooledRunner {
    /// Waits for a slot, unless the execution is stopped: it then ends at once.
    async fn admit(&self, execution: &mut ExecutionContext) {
        let mut stop = execution.stop.clone();
        let slot = tokio::select! {
            slot = self.share.acquire() => slot,
            _ = stop.wait_for(Option::is_some) => None,
        };
        execution.slot = Arc::new(PooledSlot {
            inner: Arc::clone(&execution.slot),
            share: self.share.clone(),
            held: Mutex::new(slot),
        });
    }
}

#[async_trait]
impl Runner for PooledRunner {
    async fn run(&self, mut context: TrialContext) -> Finished<TrialRecord> {
        self.admit(&mut context.execution).await;
        let slot = Arc::clone(&context.execution.slot);
        let finished = self.inner.run(context).await;
        drop(slot);
        finished
    }

    async fn eval(&self, mut context: EvalContext) -> Finished<EvalRecord> {
        self.admit(&mut context.execution).await;
        let slot = Arc::clone(&context.execution.slot);
        let finished = self.inner.eval(context).await;
        drop(slot);
        finished
    }

    async fn ideas(&self, mut context: IdeasContext) -> Finished<IdeasRecord> {
        self.admit(&mut context.execution).await;
        let slot = Arc::clone(&context.execution.slot);
        let finished = self.inner.ideas(context).await;
        drop(slot);
        finished
    }

    fn disks(&self) -> Arc<DiskWatch> {
        self.inner.disks()
    }

    fn model_calls(&self) -> Arc<RunCallTable> {
        self.inner.model_calls()
    }
}

/// The slot of an execution at its worker, together with one of the pool.
#[derive(Debug)]
struct PooledSlot {
    inner: Arc<dyn Slot>,
    share: SlotShare,
    held: Mutex<Option<PoolSlot>>,
}

impl PooledSlot {
    fn held(&self) -> MutexGuard<'_, Option<PoolSlot>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Slot for PooledSlot {
    fn release(&self) {
        self.inner.release();
        let held = self.held().take();
        drop(held);
    }

    async fn reacquire(&self) {
        self.inner.reacquire().await;
        let slot = self.share.acquire().await;
        *self.held() = slot;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Starts to wait for a slot.
    fn waiting(share: &SlotShare) -> impl Future<Output = Option<PoolSlot>> + use<> {
        let share = share.clone();
        let mut acquiring = Box::pin(async move { share.acquire().await });
        // One look puts it into the queue.
        let _pending = futures_util::FutureExt::now_or_never(&mut acquiring);
        acquiring
    }

    #[tokio::test]
    async fn free_slot_goes_to_priority_then_to_the_user_with_the_fewest() {
        let pool = SlotPool::new(2);
        let (ada, bob) = (pool.share("ada", 0), pool.share("bob", 0));
        let first = ada.acquire().await;
        let second = ada.acquire().await;
        assert_eq!(pool.counts(), SlotCounts { free: 0, held: 2, waiting: 0 });
        let of_ada = waiting(&ada);
        let of_bob = waiting(&bob);
        let urgent = waiting(&pool.share("ada", 1));
        drop(first);
        let urgent = urgent.await;
        drop(second);
        let of_bob = of_bob.await;
        assert_eq!(pool.counts(), SlotCounts { free: 0, held: 2, waiting: 1 });
        drop(urgent);
        let of_ada = of_ada.await;
        drop((of_ada, of_bob));
        assert_eq!(pool.counts(), SlotCounts { free: 2, held: 0, waiting: 0 });
    }

    #[tokio::test]
    async fn executions_that_no_longer_wait_lose_no_slot() {
        let pool = SlotPool::new(1);
        let share = pool.share("ada", 0);
        let held = share.acquire().await;
        let gone: Vec<_> = (0..100).map(|_| waiting(&share)).collect();
        drop(gone);
        let last = waiting(&share);
        drop(held);
        assert!(last.await.is_some());
        assert_eq!(pool.counts(), SlotCounts { free: 1, held: 0, waiting: 0 });
    }
}
