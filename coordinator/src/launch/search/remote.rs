//! A search whose evals run on the workers of a server.

use std::sync::Arc;

use rollout_engine::concurrency::{ConcurrencyLimiter, ConcurrencyLimits};
use rollout_engine::core::RemoteTimeouts;
use rollout_engine::reconcile::{self, RemoteRun};
use rollout_engine::{
    DurableStateListener, EngineOutcome, KvLockOptions, LockOptions, LockWaitPolicy, RunEntryInfo,
    RunError, RunLock, RunState,
};
use rollout_protocol::event::RunEvent;
use rollout_protocol::spec::gateway::GatewaySpec;
use rollout_protocol::wire::control::StopLevel;
use rollout_queue::traits::{Dispatch, KvStore};
use rollout_store::{BlobStore, StoreUrl};
use tokio::sync::{mpsc, oneshot};

use crate::launch::nats::lease_to_workers;
use crate::workloads::search::backend::{
    EvalPlanner, OwnedRun, SearchPlan, SearchStops, SearchTask, WorkRequests, combine_outcomes,
    run_open_options,
};
use crate::workloads::search::driver::{SearchDirectory, SearchError, SearchOpenOptions};
use crate::workloads::search::manifest::SearchManifest;

/// A search to be run by remote workers.
pub(super) struct RemoteSearch {
    /// The search.
    pub(super) options: SearchOpenOptions,
    /// The plan of its evals.
    pub(super) plan: SearchPlan,
    /// Policy for taking it from an owner that may be dead.
    pub(super) wait_policy: LockWaitPolicy,
    /// The blob store, shared by coordinator and workers.
    pub(super) store: Arc<dyn BlobStore>,
    /// The directory of the store.
    pub(super) store_url: StoreUrl,
    /// The queue.
    pub(super) dispatch: Arc<dyn Dispatch>,
    /// KV store that shows other coordinators who owns the run.
    pub(super) kv_store: Arc<dyn KvStore>,
    /// Pool of the workers.
    pub(super) pool: String,
    /// Timeouts.
    pub(super) timeouts: RemoteTimeouts,
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
        let tree = self.options.tree.clone();
        let (requests, notifications) = WorkRequests::new();
        let directory = SearchDirectory::new(tree.run_dir());
        let (stops, engine_stops, _forwarding) = SearchStops::fork(self.stops);
        let (send_run, owned_run) = oneshot::channel();
        let info = RunEntryInfo {
            job: tree.name.clone(),
            pool: self.pool.clone(),
            store: self.store.identity().to_owned(),
            hands_over: false,
        };
        let lock_options = LockOptions {
            wait_policy: self.wait_policy,
            kv: Some(KvLockOptions { kv_store: self.kv_store, info }),
            mirror: None,
        };
        let limiter = ConcurrencyLimiter::new(ConcurrencyLimits::from(&tree.limits));
        let engine_session = SearchEngineSession {
            options: run_open_options(&tree, lock_options, self.timeouts),
            planner: EvalPlanner::new(Arc::clone(&requests), self.plan.needs(), directory.clone())
                .with_limiter(limiter)
                .with_max_park(tree.max_park_sec)
                .with_model_leases(self.plan.gateway().is_some_and(GatewaySpec::is_limited)),
            gateway: self.plan.gateway().cloned(),
            dispatch: self.dispatch,
            store: Arc::clone(&self.store),
            pool: self.pool,
            stops: engine_stops,
            requests: Arc::clone(&requests),
            events: self.events.clone(),
        };
        let (run_requests, search_stops) = (Arc::clone(&requests), stops.clone());
        let engine = async move {
            let ran = engine_session.run(|run| {
                // A search that has ended has returned its own error.
                let _gone = send_run.send(OwnedRun::from_run(run));
            });
            let ran = ran.await;
            run_requests.notify_run_ended();
            search_stops.stop_search();
            ran
        };
        let search = SearchTask {
            options: self.options,
            directory,
            plan: self.plan,
            store: self.store,
            store_url: Some(self.store_url),
            requests,
            notifications,
            fail_unable: self.fail_unable,
            stops,
            events: self.events,
        };
        let (ran, searched) = tokio::join!(Box::pin(engine), Box::pin(search.run(owned_run)));
        let (lock, manifest) = combine_outcomes(ran, searched)?;
        drop(lock);
        Ok(manifest)
    }
}

/// The engine of a session, which runs the search's requests.
struct SearchEngineSession {
    options: rollout_engine::RunOpenOptions,
    planner: EvalPlanner,
    gateway: Option<GatewaySpec>,
    dispatch: Arc<dyn Dispatch>,
    store: Arc<dyn BlobStore>,
    pool: String,
    stops: mpsc::Receiver<StopLevel>,
    requests: Arc<WorkRequests>,
    events: mpsc::Sender<Vec<RunEvent>>,
}

impl SearchEngineSession {
    async fn run(
        mut self,
        on_open: impl FnOnce(&rollout_engine::OpenRun),
    ) -> Result<RunLock, RunError> {
        let (events, lease) = (self.events, self.options.timeouts.lease);
        let (run, lock, planner) = rollout_engine::open_run(
            self.options,
            Box::new(self.planner),
            events.clone(),
            &mut self.stops,
        )
        .await?;
        on_open(&run);
        let messages = reconcile::message_channel();
        let id = run.id();
        let _monitor = lock.monitor(id, Arc::clone(&self.dispatch), messages.0.clone());
        let _leases =
            lease_to_workers(id, self.gateway.as_ref(), Arc::clone(&self.dispatch), lease);
        let listener = lock
            .durable_state_listener()
            .unwrap_or_else(|| DurableStateListener::Queue(Arc::clone(&self.dispatch)));
        // The engine withdraws unrequested items when it starts. Items that former sessions started
        // and workers may still run must be requested before.
        self.requests.wait_until_asked().await;
        if self.requests.is_abandoned() {
            lock.release(Some(RunState::Stopped)).await.map_err(RunError::LockLost)?;
            return Ok(lock);
        }
        let remote = RemoteRun {
            run,
            planner,
            dispatch: Arc::clone(&self.dispatch),
            store: self.store,
            pool: self.pool,
            lease,
            listener,
            events,
            stops: self.stops,
            hand_over: false,
            messages,
        };
        let ended = tokio::select! {
            ended = reconcile::run(remote) => ended,
            // As if this process had died: workers continue what they run for the search.
            () = self.requests.wait_until_abandoned() => Ok(EngineOutcome { cancelled: true, pending: 1, is_over_budget: false }),
        };
        match ended {
            Ok(EngineOutcome { cancelled, .. }) => {
                let state = if cancelled { RunState::Stopped } else { RunState::Completed };
                let released = reconcile::release(id, &lock, &*self.dispatch, state).await;
                released.map_err(RunError::LockLost)?;
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
