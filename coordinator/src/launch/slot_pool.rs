//! A pool of slots that runs, searches and farms of one process share: an execution begins when it has
//! one. Free slots go to the user who holds the fewest; of that user's executions, to those with the
//! highest priority, then by age. No slot is kept free for a user who may come.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use rollout_base::shared_limit::{LimitUser, SharedLimit, SharedPlace};
use rollout_gateway::run_calls::RunCallTable;
use rollout_protocol::record::{EvalRecord, IdeasRecord, TrialRecord};
use rollout_worker::disk::DiskWatch;
use rollout_worker::executor::{ExecutionContext, Finished, Slot, wait_for_stop};
use rollout_worker::service::Runner;
use rollout_worker::work::eval::EvalContext;
use rollout_worker::work::ideas::IdeasContext;
use rollout_worker::work::trial::TrialContext;

/// The part of a run, a search or a farm in a pool.
#[derive(Debug, Clone)]
pub struct SlotShare {
    /// The slots.
    pub slots: Arc<SharedLimit>,
    /// Its user.
    pub user: LimitUser,
    /// Its priority among those of its user.
    pub priority: i32,
}

impl SlotShare {
    /// Waits for a slot.
    async fn acquire(&self) -> SharedPlace {
        self.slots.acquire(&self.user, self.priority, 1).await
    }
}

/// A runner whose executions need a slot of a pool, if there is one.
pub(super) fn pooled(runner: Arc<dyn Runner>, share: Option<SlotShare>) -> Arc<dyn Runner> {
    match share {
        Some(share) => Arc::new(PooledRunner { inner: runner, share }),
        None => runner,
    }
}

/// Runs executions when they have a slot of a pool.
#[derive(Debug)]
struct PooledRunner {
    inner: Arc<dyn Runner>,
    share: SlotShare,
}

impl PooledRunner {
    /// Waits for a slot, unless the execution is stopped: it then ends at once.
    async fn admit(&self, execution: &mut ExecutionContext) {
        let slot = tokio::select! {
            slot = self.share.acquire() => Some(slot),
            () = wait_for_stop(execution.stop.clone()) => None,
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
    held: Mutex<Option<SharedPlace>>,
}

impl PooledSlot {
    fn held(&self) -> MutexGuard<'_, Option<SharedPlace>> {
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
        *self.held() = Some(slot);
    }

    fn must_be_kept(&self) -> bool {
        self.inner.must_be_kept()
    }
}

#[cfg(test)]
mod tests;
