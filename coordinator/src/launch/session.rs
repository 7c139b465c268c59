//! A session of a job, independent of the place where its trials run.

use std::path::PathBuf;
use std::sync::Arc;

use rollout_base::supervise;
use rollout_base::traces::Tracer;
use rollout_engine::core::RemoteTimeouts;
use rollout_engine::journal::{JournalError, RunLayout};
use rollout_engine::{
    KvLockOptions, LockOptions, LockWaitPolicy, OpenRun, ReopenSelection, RunError, RunOpenOptions,
    atomic_file,
};
use rollout_protocol::Timestamp;
use rollout_protocol::digest::Digest;
use rollout_protocol::event::{EventKind, RunEvent};
use rollout_protocol::id::RunId;
use rollout_protocol::wire::control::StopLevel;
use rollout_queue::traits::RunControl;
use rollout_store::BlobStore;
use tokio::sync::mpsc;

use super::on_demand::OnDemandTrials;
use super::parameters::JobParameters;
use super::session_catalog::{SessionCatalog, SessionFiles};
use crate::plan::{self, JobPlan, PlanDocument};
use crate::workloads::job::{AcceptedChanges, JobPlanner};

/// Documents of a session, written when it owns the run and before anything is offered.
#[derive(Debug)]
pub(super) struct SessionDocuments {
    plan: PlanDocument,
    parameters: JobParameters,
    catalog: Option<SessionCatalog>,
}

impl SessionDocuments {
    /// Writes them.
    pub(super) async fn write(
        self,
        run: RunId,
        epoch: u32,
        layout: RunLayout,
    ) -> Result<(), RunError> {
        let Self { plan, parameters, catalog } = self;
        let of = layout.clone();
        supervise::blocking(move || {
            atomic_file::write_dense_json(&of.plan(), &plan)?;
            atomic_file::write_dense_json(&of.resume(), &parameters)
        })
        .await?;
        let Some(catalog) = catalog else { return Ok(()) };
        let stopped = catalog.stopped();
        let stored = catalog.store_files(run, epoch, &layout, SessionFiles::Start, stopped).await;
        Ok(stored.map_err(JournalError::from)?)
    }

    /// Writes those of a run that was opened.
    pub(super) fn write_for(
        self,
        run: &OpenRun,
    ) -> impl Future<Output = Result<(), RunError>> + Send + use<> {
        self.write(run.id(), run.epoch(), run.layout().clone())
    }
}

/// How a plan differs from that of the last session, to be told to the user.
#[derive(Debug)]
pub(super) struct PlanNotice {
    message: Option<String>,
}

impl PlanNotice {
    /// Most differences that are told.
    const MAX_LINES: usize = 10;

    pub(super) fn new(former: Option<&JobPlan>, plan: &JobPlan) -> Self {
        let lines = former.map(|former| {
            let change = plan::compare(former, plan);
            let extent = change.extent_lines().into_iter();
            extent.chain(change.lines()).collect::<Vec<_>>()
        });
        let lines = lines.filter(|lines| !lines.is_empty());
        let message = lines.map(|mut lines| {
            let others = lines.len().saturating_sub(Self::MAX_LINES);
            lines.truncate(Self::MAX_LINES);
            lines.extend((others > 0).then(|| format!("{others} more")));
            format!("the plan has changed since the last session: {}", lines.join(", "))
        });
        Self { message }
    }

    /// Tells it, once the run is opened.
    pub(super) async fn tell(self, events: &mpsc::Sender<Vec<RunEvent>>) {
        let Some(message) = self.message else { return };
        let event = RunEvent { at: Timestamp::now(), kind: EventKind::Warning { message } };
        // A reporter that ended has returned its own error; the run continues.
        let _gone = events.send(vec![event]).await;
    }
}

/// A job with started outputs, ready to run.
pub(super) struct JobSession {
    pub(super) parameters: JobParameters,
    pub(super) run_dir: PathBuf,
    pub(super) plan: Arc<JobPlan>,
    pub(super) store: Arc<dyn BlobStore>,
    pub(super) catalog: Option<SessionCatalog>,
    pub(super) events: mpsc::Sender<Vec<RunEvent>>,
    pub(super) stops: mpsc::Receiver<StopLevel>,
    pub(super) wait_policy: LockWaitPolicy,
    pub(super) reopen: Option<ReopenSelection>,
    pub(super) on_demand: Option<OnDemandTrials>,
    /// Whether the plan may lack trials that have results.
    pub(super) accept_changed: bool,
    /// Takes the spans of a worker in this process.
    pub(super) tracer: Tracer,
}

impl JobSession {
    /// The documents to write for a plan.
    pub(super) fn documents(&self, plan: &JobPlan) -> SessionDocuments {
        SessionDocuments {
            plan: PlanDocument::from(plan),
            parameters: self.parameters.clone(),
            catalog: self.catalog.clone(),
        }
    }

    /// How its run is opened.
    pub(super) fn open_options(
        &self,
        plan: Digest,
        kv: Option<KvLockOptions>,
        timeouts: RemoteTimeouts,
    ) -> RunOpenOptions {
        let mirror = self.catalog.as_ref().map(SessionCatalog::mirror);
        // Workers continue while their coordinator is stopped or hangs; another may take over.
        let hung = kv.is_some() || self.wait_policy.hung;
        let wait_policy = LockWaitPolicy { hung, ..self.wait_policy };
        RunOpenOptions {
            layout: RunLayout::new(&self.run_dir),
            job: self.parameters.job.clone(),
            plan,
            permits: self.parameters.n_concurrent_trials as usize,
            retry: self.parameters.retry,
            lock: LockOptions { wait_policy, kv, mirror },
            timeouts,
            budget: self.parameters.budget,
            reopen: self.reopen.clone(),
        }
    }

    /// The planner of its trials; `former` is the plan of the last session, and `control` is for the
    /// user of trials on demand.
    pub(super) fn planner(
        &mut self,
        plan: &Arc<JobPlan>,
        former: Option<&Arc<JobPlan>>,
        control: Arc<dyn RunControl>,
    ) -> JobPlanner {
        let by_agent = !self.parameters.budget.agent.is_unlimited();
        let changes = AcceptedChanges {
            // The user of trials on demand asks for what it wants.
            removed: self.accept_changed || self.on_demand.is_some(),
            kept: self.reopen.is_some(),
        };
        let planner = JobPlanner::new(Arc::clone(plan), by_agent)
            .with_rate_limit(self.parameters.rate_limits)
            .with_former(former.cloned(), changes);
        match self.on_demand.take() {
            Some(on_demand) => on_demand.attach(planner, plan, Arc::clone(&self.store), control),
            None => planner,
        }
    }
}
