//! A job whose trials run on remote workers.

use std::sync::Arc;

use rollout_engine::core::RemoteTimeouts;
use rollout_engine::journal::RunLayout;
use rollout_engine::reconcile::{self, RemoteRun};
use rollout_engine::{DurableStateListener, KvLockOptions, RunEntryInfo, RunError, RunState};
use rollout_protocol::spec::gateway::GatewaySpec;
use rollout_queue::traits::{Dispatch, KvStore, RunControl};

use super::model_leases::lease_to_workers;
use crate::launch::control_socket::ControlSocket;
use crate::launch::embedded::FinishedSession;
use crate::launch::local::explain;
use crate::launch::session::{JobSession, PlanNotice};
use crate::workloads::job::read_previous_plan;

/// A job to be run by remote workers.
pub(super) struct RemoteJob {
    /// Its session; the documents that the plan names are in the store, which coordinator and
    /// workers share.
    pub(super) session: JobSession,
    /// The queue.
    pub(super) dispatch: Arc<dyn Dispatch>,
    /// KV store that shows other coordinators who owns the run.
    pub(super) kv_store: Arc<dyn KvStore>,
    /// Commands to the run's coordinator and controls of its trials.
    pub(super) control: Arc<dyn RunControl>,
    /// Pool of the workers.
    pub(super) pool: String,
    /// Timeouts.
    pub(super) timeouts: RemoteTimeouts,
    /// Whether the first stop lets trials on workers continue.
    pub(super) hand_over: bool,
}

impl RemoteJob {
    /// Runs a session of the job to its end.
    ///
    /// # Errors
    /// [`RunError`].
    pub(super) async fn run(self) -> Result<FinishedSession, RunError> {
        let Self { mut session, dispatch, kv_store, control, pool, timeouts, hand_over } = self;
        let layout = RunLayout::new(&session.run_dir);
        let previous_plan = read_previous_plan(&layout)?.map(Arc::new);
        if let Some(former) = &previous_plan {
            Arc::make_mut(&mut session.plan).reuse_documents(former);
        }
        let plan = Arc::clone(&session.plan);
        let info = RunEntryInfo {
            job: session.parameters.job.clone(),
            pool: pool.clone(),
            store: session.store.identity().to_owned(),
            hands_over: hand_over,
        };
        let kv = Some(KvLockOptions { kv_store, info });
        let options = session.open_options(plan.digest(), kv, timeouts);
        let documents = session.documents(&plan);
        let gateway = plan.settings().gateway.clone();
        let is_limited = gateway.as_ref().is_some_and(GatewaySpec::is_limited);
        let planner = session
            .planner(&plan, previous_plan.as_ref(), Arc::clone(&control))
            .with_model_leases(is_limited);
        let JobSession { store, events, mut stops, .. } = session;
        let opened =
            rollout_engine::open_run(options, Box::new(planner), events.clone(), &mut stops).await;
        let (run, lock, planner) =
            opened.map_err(|error| explain(error, previous_plan.as_deref(), &plan))?;
        PlanNotice::new(previous_plan.as_deref(), &plan).tell(&events).await;
        if let Err(error) = documents.write_for(&run).await {
            let _lost = lock.release(Some(RunState::Stopped)).await;
            return Err(error);
        }

        let control = ControlSocket::open(&run, control);
        let messages = reconcile::message_channel();
        let id = run.id();
        let _monitor = lock.monitor(id, Arc::clone(&dispatch), messages.0.clone());
        let listener = lock
            .durable_state_listener()
            .unwrap_or_else(|| DurableStateListener::Queue(Arc::clone(&dispatch)));
        let lease = timeouts.lease;
        let _leases = lease_to_workers(id, gateway.as_ref(), Arc::clone(&dispatch), timeouts.lease);
        let remote = RemoteRun {
            run,
            planner,
            dispatch: Arc::clone(&dispatch),
            store,
            pool,
            lease,
            listener,
            events,
            stops,
            hand_over,
            messages,
        };
        let outcome = reconcile::run(remote).await;
        ControlSocket::close(control).await;
        let outcome = match outcome {
            Ok(ended) => ended,
            Err(error) => {
                // Other coordinators need not wait for this process; the error has the cause.
                let _lost = lock.release(Some(RunState::Stopped)).await;
                return Err(error);
            }
        };
        let state = if outcome.cancelled { RunState::Stopped } else { RunState::Completed };
        reconcile::release(id, &lock, &*dispatch, state).await.map_err(RunError::LockLost)?;
        Ok(FinishedSession { outcome, lock })
    }
}
