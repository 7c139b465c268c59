//! A farm whose samples run on the workers of a server.

use std::path::PathBuf;
use std::sync::Arc;

use rollout_engine::reconcile::{self, RemoteRun};
use rollout_engine::{DurableStateListener, EngineOutcome, KvLockOptions, RunEntryInfo, RunState};
use rollout_protocol::spec::gateway::GatewaySpec;
use rollout_protocol::wire::control::StopLevel;
use tokio::sync::{mpsc, oneshot};

use super::engine::{OpenedFarm, PreparedFarm};
use crate::launch::LaunchError;
use crate::launch::nats::{ConnectedServer, lease_to_workers};

impl PreparedFarm {
    /// Runs the farm on a server until it is over or stopped. `state` is for recovered work, if the
    /// user has no home directory.
    pub(super) async fn run_remotely(
        self,
        server: ConnectedServer,
        state: PathBuf,
        mut stops: mpsc::Receiver<StopLevel>,
        opened: oneshot::Sender<OpenedFarm>,
    ) -> Result<EngineOutcome, LaunchError> {
        let classes = self.documents.needs().iter().map(|needs| needs.class).collect();
        let layout = self.layout.clone();
        let server = server.prepare(classes, &self.store, state, layout, &mut stops).await?;
        let info = RunEntryInfo {
            job: self.settings.name.clone(),
            pool: server.pool.clone(),
            store: self.store.identity().to_owned(),
            hands_over: server.hand_over,
        };
        let kv = Some(KvLockOptions { kv_store: Arc::clone(&server.kv_store), info });
        let options = self.open_options(kv, server.timeouts);
        let start = self.start(Arc::clone(&server.dispatch), opened);
        let gateway = self.job.settings.gateway.clone();
        let Self { store, planner, events, .. } = self;
        let is_limited = gateway.as_ref().is_some_and(GatewaySpec::is_limited);
        let planner = planner.with_model_leases(is_limited);
        let (run, lock, planner) =
            rollout_engine::open_run(options, Box::new(planner), events.clone(), &mut stops)
                .await?;
        let registration = match start.open(run.id()).await {
            Ok(registration) => registration,
            Err(error) => {
                // The error of the start is the first cause.
                let _lost = lock.release(Some(RunState::Stopped)).await;
                return Err(error.into());
            }
        };
        let dispatch = Arc::clone(&server.dispatch);
        let messages = reconcile::message_channel();
        let id = run.id();
        let _monitor = lock.monitor(id, Arc::clone(&dispatch), messages.0.clone());
        let listener = lock
            .durable_state_listener()
            .unwrap_or_else(|| DurableStateListener::Queue(Arc::clone(&dispatch)));
        let lease = server.timeouts.lease;
        let _leases = lease_to_workers(id, gateway.as_ref(), Arc::clone(&dispatch), lease);
        let remote = RemoteRun {
            run,
            planner,
            dispatch: Arc::clone(&dispatch),
            store,
            pool: server.pool.clone(),
            lease,
            listener,
            events,
            stops,
            hand_over: server.hand_over,
            messages,
        };
        let outcome = match reconcile::run(remote).await {
            Ok(outcome) => outcome,
            Err(error) => {
                // Other coordinators need not wait for this process; the error has the cause.
                let _lost = lock.release(Some(RunState::Stopped)).await;
                return Err(error.into());
            }
        };
        let state = if outcome.cancelled { RunState::Stopped } else { RunState::Completed };
        let released = reconcile::release(id, &lock, &*dispatch, state).await;
        released.map_err(rollout_engine::RunError::LockLost)?;
        registration.finish().await?;
        Ok(outcome)
    }
}
