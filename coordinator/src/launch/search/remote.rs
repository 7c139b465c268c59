//! A search whose evals run on the workers of a server.

use std::path::PathBuf;
use std::sync::Arc;

use rollout_protocol::event::RunEvent;
use rollout_protocol::wire::control::StopLevel;
use rollout_worker::queue::traits::{Dispatch, KvStore};
use rollout_worker::store::BlobStore;
use tokio::sync::{mpsc, oneshot};

use crate::engine::concurrency::{ConcurrencyLimiter, ConcurrencyLimits};
use crate::engine::core::RemoteTimeouts;
use crate::engine::reconcile::{self, RemoteRun};
use crate::engine::{
    self, DurableStateListener, EngineOutcome, KvLockOptions, LockOptions, LockWaitPolicy,
    RunEntryInfo, RunError, RunLock, RunState,
};
use crate::workloads::search::backend::{
    EvalPlanner, OwnedRun, SearchPlan, SearchStops, SearchTask, WorkRequests, combine_outcomes,
    run_open_options,
};
use crate::workloads::search::driver::{SearchDirectory, SearchError, SearchOpenOptions};
use crate::workloads::search::manifest::SearchManifest;

/// A search to be run by remote workers.
pub(super) struct RemoteSearch {
    /// The search.
    pub(super) opening: SearchOpenOptions,
    /// The plan of its evals.
    pub(super) plan: SearchPlan,
    /// Policy for taking it from an owner that may be dead.
    pub(super) patience: LockWaitPolicy,
    /// The blob store, shared by coordinator and workers.
    pub(super) store: Arc<dyn BlobStore>,
    /// The directory of the store.
    pub(super) blobs: Option<PathBuf>,
    /// The queue.
    pub(super) dispatch: Arc<dyn Dispatch>,
    /// KV store that shows other coordinators who owns the run.
    pub(super) board: Arc<dyn KvStore>,
    /// Pool of the workers.
    pub(super) pool: String,
    /// Timeouts.
    pub(super) bounds: RemoteTimeouts,
    /// Whether evals that the infrastructure could not run count as failed.
    pub(super) fail_unable: bool,
    /// Stops requested by the user.
    pub(super) stops: mpsc::Receiver<StopLevel>,
    /// Receives the events.
    pub(super) events: mpsc::Sender<Vec<RunEvent>>,
}

impl RemoteSearch {
    /// Runs the search until it ends.
    ///
    /// # Errors
    /// [`SearchError`]; written results stay.
    pub(super) async fn run(self) -> Result<SearchManifest, SearchError> {
        let tree = self.opening.tree.clone();
        let (asked, told) = WorkRequests::new();
        let directory = SearchDirectory::new(tree.run_dir());
        let (stops, engine_stops, _passing) = SearchStops::fork(self.stops);
        let (give, given) = oneshot::channel();
        let facts = RunEntryInfo {
            job: tree.name.clone(),
            pool: self.pool.clone(),
            store: self.store.identity().to_owned(),
        };
        let taking = LockOptions {
            patience: self.patience,
            shared: Some(KvLockOptions { board: self.board, facts }),
        };
        let tickets = ConcurrencyLimiter::new(ConcurrencyLimits::from_search_limits(&tree.limits));
        let sitting = SearchEngineSession {
            opening: run_open_options(&tree, taking, self.bounds),
            planner: EvalPlanner::new(Arc::clone(&asked), self.plan.needs(), directory.clone())
                .with_limiter(tickets)
                .with_max_park(tree.max_park_sec),
            dispatch: self.dispatch,
            store: Arc::clone(&self.store),
            pool: self.pool,
            stops: engine_stops,
            asked: Arc::clone(&asked),
            events: self.events.clone(),
        };
        let (over, halting) = (Arc::clone(&asked), stops.clone());
        let engine = async move {
            let ran = sitting.run(|run| {
                // A search that has ended has returned its own error.
                let _gone = give.send(OwnedRun::from_run(run));
            });
            let ran = ran.await;
            over.notify_run_ended();
            halting.stop_search();
            ran
        };
        let search = SearchTask {
            opening: self.opening,
            directory,
            plan: self.plan,
            store: self.store,
            blobs: self.blobs,
            asked,
            told,
            fail_unable: self.fail_unable,
            stops,
            events: self.events,
        };
        let (ran, searched) = tokio::join!(Box::pin(engine), Box::pin(search.run(given)));
        let (lock, manifest) = combine_outcomes(ran, searched)?;
        drop(lock);
        Ok(manifest)
    }
}

/// The engine of a session, which runs the search's requests.
struct SearchEngineSession {
    opening: engine::RunOpenOptions,
    planner: EvalPlanner,
    dispatch: Arc<dyn Dispatch>,
    store: Arc<dyn BlobStore>,
    pool: String,
    stops: mpsc::Receiver<StopLevel>,
    asked: Arc<WorkRequests>,
    events: mpsc::Sender<Vec<RunEvent>>,
}

impl SearchEngineSession {
    async fn run(mut self, is_ours: impl FnOnce(&engine::OpenRun)) -> Result<RunLock, RunError> {
        let (events, lease) = (self.events, self.opening.bounds.lease);
        let (run, lock, planner) =
            engine::open_run(self.opening, self.planner, events.clone(), &mut self.stops).await?;
        is_ours(&run);
        let news = reconcile::message_channel();
        let _attending = lock.monitor(run.id(), Arc::clone(&self.dispatch), news.0.clone());
        let keeper = lock
            .durable_state_listener()
            .unwrap_or_else(|| DurableStateListener::Queue(Arc::clone(&self.dispatch)));
        // The engine withdraws unrequested items when it starts. Items that former sessions started
        // and workers may still run must be requested before.
        self.asked.wait_until_asked().await;
        if self.asked.is_abandoned() {
            lock.release(Some(RunState::Stopped)).await.map_err(RunError::LockLost)?;
            return Ok(lock);
        }
        let distributed = RemoteRun {
            run,
            planner,
            dispatch: self.dispatch,
            store: self.store,
            pool: self.pool,
            lease,
            keeper,
            events,
            stops: self.stops,
            news,
        };
        let ended = tokio::select! {
            ended = reconcile::run(distributed) => ended,
            // As if this process had died: workers continue what they run for the search.
            () = self.asked.wait_until_abandoned() => Ok(EngineOutcome { cancelled: true, owed: 1 }),
        };
        match ended {
            Ok(EngineOutcome { owed, .. }) => {
                let state = if owed == 0 { RunState::Completed } else { RunState::Stopped };
                lock.release(Some(state)).await.map_err(RunError::LockLost)?;
                Ok(lock)
            }
            Err(error) => {
                // Other coordinators need not wait for this process; the error has the cause.
                let _lost = lock.release(Some(RunState::Stopped)).await;
                Err(error)
            }
        }
    }
}
