//! A job on this machine: its plan, providers and variables in an embedded run.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use rollout_base::secrets::TrialVariables;
use rollout_engine::core::RemoteTimeouts;
use rollout_engine::journal::RunLayout;
use rollout_engine::{OpenError, RunError, RunManifest, RunState};
use rollout_queue::embedded::EmbeddedQueue;
use rollout_store::BlobStore;

use super::embedded::{self, EmbeddedRun, FinishedSession, WorkerEquipment};
use crate::config::Job;
use crate::launch::host::{self, HostPaths};
use crate::launch::session::{JobSession, PlanNotice};
use crate::launch::slot_pool::{SlotShare, pooled};
use crate::plan::{self, JobPlan};
use crate::workloads::job::read_previous_plan;

/// A job to be run in this process.
pub(super) struct LocalJob {
    /// The job.
    pub(super) job: Job,
    /// Its session; the documents that the plan names are in the store.
    pub(super) session: JobSession,
    /// Paths of the host that outlive the run.
    pub(super) host: HostPaths,
    /// Values of the variables that the job names.
    pub(super) environment: Vec<(String, String)>,
    /// Its part in a pool of slots.
    pub(super) slots: Option<SlotShare>,
}

impl LocalJob {
    /// Runs a session of the job to its end.
    ///
    /// # Errors
    /// [`RunError`].
    pub(super) async fn run(self) -> Result<FinishedSession, RunError> {
        let Self { job, mut session, host, environment, slots } = self;
        let layout = RunLayout::new(&session.run_dir);
        let previous_plan = read_previous_plan(&layout)?.map(Arc::new);
        if let Some(former) = &previous_plan {
            Arc::make_mut(&mut session.plan).reuse_documents(former);
        }
        let plan = Arc::clone(&session.plan);
        if session.reopen.is_some() || !is_finished(&layout, &plan)? {
            let kind = job.settings.environment.provider.kind();
            host::check_services([kind], &host, &layout.sandboxes()).await?;
        }
        let options = session.open_options(plan.digest(), None, RemoteTimeouts::default());
        let documents = session.documents(&plan);
        let queue = Arc::new(EmbeddedQueue::default());
        let planner = session.planner(&plan, previous_plan.as_ref(), queue.clone());
        let change = PlanNotice::new(previous_plan.as_deref(), &plan);
        let JobSession { parameters, store, events, stops, tracer, .. } = session;
        let variables = variables(&job, environment);
        let equip = equip(&job, &layout, host, Arc::clone(&store), variables, slots);
        let told = events.clone();
        let ran = embedded::run(EmbeddedRun {
            options,
            planner: Box::new(planner),
            store,
            queue,
            slots: parameters.n_concurrent_trials,
            events,
            stops,
            on_open: Box::new(move |run| {
                let written = documents.write_for(run);
                Box::pin(async move {
                    change.tell(&told).await;
                    written.await
                })
            }),
            takes_commands: true,
            equip: Box::new(equip),
            tracer,
        })
        .await;
        ran.map_err(|error| explain(error, previous_plan.as_deref(), &plan))
    }
}

/// Whether nothing of this plan is left to run: such a run needs no environment.
fn is_finished(layout: &RunLayout, plan: &JobPlan) -> Result<bool, RunError> {
    let manifest = RunManifest::read(layout)?;
    let over = |m: RunManifest| m.state == RunState::Completed && m.plan == plan.digest();
    Ok(manifest.is_some_and(over))
}

/// Adds the differences to the refusal of another plan.
pub(super) fn explain(
    error: RunError,
    previous_plan: Option<&JobPlan>,
    plan: &JobPlan,
) -> RunError {
    match (error, previous_plan) {
        (RunError::Open(OpenError::Changed { root, count, names, .. }), Some(former)) => {
            let differences = plan::compare(former, plan).lines();
            OpenError::Changed { root, count, names, differences }.into()
        }
        (RunError::Open(OpenError::Removed { root, count, names, .. }), Some(former)) => {
            let differences = plan::compare(former, plan).extent_lines();
            OpenError::Removed { root, count, names, differences }.into()
        }
        (error, _) => error,
    }
}

/// The variables that trials may see: those that the job names. The command line's values win.
pub(super) fn variables(job: &Job, environment: Vec<(String, String)>) -> TrialVariables {
    let names = job.variables();
    TrialVariables::select(names.iter().map(String::as_str), environment).with(&job.inline_secrets)
}

pub(super) fn equip(
    job: &Job,
    layout: &RunLayout,
    paths: HostPaths,
    store: Arc<dyn BlobStore>,
    variables: TrialVariables,
    share: Option<SlotShare>,
) -> impl FnOnce(&Path) -> Result<WorkerEquipment, RunError> + Send + use<> {
    let kind = job.settings.environment.provider.kind();
    let layout = layout.clone();
    move |worker_dir: &Path| {
        let provider = host::provider(kind, &paths, &layout.sandboxes())?;
        let providers = BTreeMap::from([(kind, Arc::clone(&provider))]);
        let runner =
            host::runner(providers, worker_dir, store, variables, rollout_engine::host_name())?;
        let runner = pooled(Arc::new(runner), share);
        Ok(WorkerEquipment { runner, providers: vec![provider] })
    }
}
