//! A job whose trials run on remote workers.

use std::sync::Arc;

use rollout_protocol::event::RunEvent;
use rollout_protocol::wire::control::StopLevel;
use rollout_worker::queue::traits::{Dispatch, KvStore};
use rollout_worker::store::BlobStore;
use tokio::sync::mpsc;

use crate::config::Job;
use crate::engine::core::RemoteTimeouts;
use crate::engine::journal::RunLayout;
use crate::engine::reconcile::{self, RemoteRun};
use crate::engine::{
    self, DurableStateListener, KvLockOptions, LockOptions, LockWaitPolicy, ReopenSelection,
    RunEntryInfo, RunError, RunOpenOptions, RunState, atomic_file,
};
use crate::launch::embedded::FinishedSession;
use crate::launch::local::explain;
use crate::plan::{JobPlan, PlanDocument};
use crate::workloads::job::{JobPlanner, read_previous_plan};

/// A job to be run by remote workers.
pub struct RemoteJob {
    /// The job.
    pub job: Job,
    /// Its plan; the documents it names are in the store.
    pub plan: JobPlan,
    /// The blob store, shared by coordinator and workers.
    pub store: Arc<dyn BlobStore>,
    /// The queue.
    pub dispatch: Arc<dyn Dispatch>,
    /// KV store that shows other coordinators who owns the run.
    pub kv_store: Arc<dyn KvStore>,
    /// Pool of the workers.
    pub pool: String,
    /// Policy for taking the run from an owner that may be dead.
    pub wait_policy: LockWaitPolicy,
    /// Timeouts.
    pub timeouts: RemoteTimeouts,
    /// Receives the events.
    pub events: mpsc::Sender<Vec<RunEvent>>,
    /// Stops requested by the user.
    pub stops: mpsc::Receiver<StopLevel>,
    /// Settled trials that run again.
    pub reopen: Option<ReopenSelection>,
}

impl RemoteJob {
    /// Runs a session of the job to its end.
    ///
    /// # Errors
    /// [`RunError`].
    pub async fn run(self) -> Result<FinishedSession, RunError> {
        let Self { job, mut plan, store, dispatch, kv_store, pool, wait_policy, .. } = self;
        let Self { timeouts, events, mut stops, reopen, .. } = self;
        let layout = RunLayout::new(job.run_dir());
        let previous_plan = read_previous_plan(&layout)?;
        if let Some(former) = &previous_plan {
            plan.reuse_documents(former);
        }
        let plan = Arc::new(plan);
        let info = RunEntryInfo {
            job: job.name.clone(),
            pool: pool.clone(),
            store: store.identity().to_owned(),
        };
        let options = RunOpenOptions {
            layout: layout.clone(),
            job: job.name.clone(),
            plan: plan.digest(),
            permits: job.n_concurrent_trials as usize,
            retry: job.retry,
            lock: LockOptions {
                wait_policy,
                kv: Some(KvLockOptions { kv_store, info }),
                mirror: None,
            },
            timeouts,
            reopen,
        };
        let planner = JobPlanner::new(Arc::clone(&plan)).with_rate_limit(job.rate_limits());
        let opened = engine::open_run(options, planner, events.clone(), &mut stops).await;
        let (run, lock, planner) =
            opened.map_err(|error| explain(error, previous_plan.as_ref(), &plan))?;
        atomic_file::write_json(&layout.plan(), &PlanDocument::from(&*plan))?;

        let messages = reconcile::message_channel();
        let _monitor = lock.monitor(run.id(), Arc::clone(&dispatch), messages.0.clone());
        let listener = lock
            .durable_state_listener()
            .unwrap_or_else(|| DurableStateListener::Queue(Arc::clone(&dispatch)));
        let lease = timeouts.lease;
        let remote = RemoteRun {
            run,
            planner,
            dispatch,
            store,
            pool,
            lease,
            listener,
            events,
            stops,
            messages,
        };
        let outcome = match reconcile::run(remote).await {
            Ok(ended) => ended,
            Err(error) => {
                // Other coordinators need not wait for this process; the error has the cause.
                let _lost = lock.release(Some(RunState::Stopped)).await;
                return Err(error);
            }
        };
        let state = if outcome.pending == 0 { RunState::Completed } else { RunState::Stopped };
        lock.release(Some(state)).await.map_err(RunError::LockLost)?;
        Ok(FinishedSession { outcome, lock })
    }
}
