//! Assembly of a farm's run: store, plan, planner, workers and engine.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rollout_base::supervise::{self, Task};
use rollout_engine::core::RemoteTimeouts;
use rollout_engine::journal::RunLayout;
use rollout_engine::{
    EngineOutcome, KvLockOptions, LockOptions, LockWaitPolicy, RunError, RunOpenOptions,
    atomic_file,
};
use rollout_protocol::event::{EventKind, RunEvent};
use rollout_protocol::farm::FarmSettings;
use rollout_protocol::id::RunId;
use rollout_protocol::retry::RetryPolicy;
use rollout_protocol::spec::budget::RunBudget;
use rollout_protocol::wire::control::StopLevel;
use rollout_queue::embedded::EmbeddedQueue;
use rollout_queue::traits::Dispatch;
use rollout_store::{BlobStore, StoreUrl};
use tokio::sync::{mpsc, oneshot};

use super::model_calls::tell_workers;
use super::request::FarmRequest;
use crate::config::Job;
use crate::launch::embedded::{self, EmbeddedRun, FinishedSession};
use crate::launch::host::{self, HostPaths, environment};
use crate::launch::local::{equip, variables};
#[cfg(feature = "nats")]
use crate::launch::nats::ConnectedServer;
use crate::launch::run::unless_stopped;
use crate::launch::slot_pool::SlotShare;
use crate::launch::store::{StoreCache, open_for_run};
use crate::launch::{LaunchError, planning};
use crate::results::files::Registration;
use crate::results::files::store::write_reference;
use crate::workloads::farm::{FarmDocuments, FarmHandle, FarmPlanner};

/// Batches of events that wait for the log.
const EVENT_CAPACITY: usize = 64;

/// File of the farm's settings in its run directory.
const SETTINGS_FILE: &str = "farm.json";

/// A farm whose run is open.
#[derive(Debug)]
pub(super) struct OpenedFarm {
    pub(super) run: RunId,
    pub(super) run_dir: PathBuf,
    pub(super) handle: FarmHandle,
    pub(super) documents: Arc<FarmDocuments>,
    /// Tells workers the state of model calls.
    pub(super) calls: Option<Task<()>>,
}

/// A farm to run.
pub(super) struct FarmEngine {
    pub(super) request: FarmRequest,
    pub(super) stops: mpsc::Receiver<StopLevel>,
    /// Told when the run is open.
    pub(super) opened: oneshot::Sender<OpenedFarm>,
}

/// A farm whose documents are stored.
pub(super) struct PreparedFarm {
    pub(super) settings: FarmSettings,
    pub(super) job: Job,
    pub(super) layout: RunLayout,
    pub(super) url: StoreUrl,
    pub(super) store: Arc<dyn BlobStore>,
    pub(super) planner: FarmPlanner,
    pub(super) handle: FarmHandle,
    pub(super) documents: Arc<FarmDocuments>,
    pub(super) wait_policy: LockWaitPolicy,
    pub(super) events: mpsc::Sender<Vec<RunEvent>>,
}

impl FarmEngine {
    /// Runs the farm until it is over or stopped.
    pub(super) async fn run(self) -> Result<EngineOutcome, LaunchError> {
        let Self { request, mut stops, opened } = self;
        let FarmRequest { settings, job, datasets, host, operator, .. } = request;
        let FarmRequest { tracer, slots, .. } = request;
        settings.check().map_err(LaunchError::FarmSettings)?;
        if job.agents.len() != 1 {
            return Err(LaunchError::FarmAgents { agents: job.agents.len() });
        }
        let (run_dir, state) = (job.run_dir(), job.jobs_dir.join(".rollout"));
        check_name(&run_dir, &settings)?;
        #[cfg(feature = "nats")]
        let remote = match request.remote {
            Some(remote) => {
                let connecting = ConnectedServer::connect(remote);
                Some(Box::pin(unless_stopped(&mut stops, connecting)).await?)
            }
            None => None,
        };
        let cache =
            StoreCache { directory: state.join("blob-cache"), max_mb: request.store_cache_mb };
        let default = state.join("blobs");
        let (url, store) = open_for_run(request.store, &run_dir, default, Some(&cache)).await?;
        let planning = planning::plan(&job, datasets, Arc::clone(&store), &state);
        let plan = unless_stopped(&mut stops, planning).await?;
        let documents = Arc::new(FarmDocuments::new(Arc::new(plan), Arc::clone(&store)));
        let (planner, handle) = FarmPlanner::new(settings.clone(), documents.needs());
        let planner = planner.with_rate_limit(job.worker_rate_limits);
        let planner = planner.with_gateway(job.settings.gateway.is_some());
        let (events, _logging) = log_warnings();
        let (layout, wait_policy) = (RunLayout::new(&run_dir), request.wait_policy);
        let prepared = PreparedFarm {
            settings,
            job,
            layout,
            url,
            store,
            planner,
            handle,
            documents,
            wait_policy,
            events,
        };
        #[cfg(feature = "nats")]
        if let Some(server) = remote {
            return prepared.run_remotely(server, state, stops, opened).await;
        }
        let of_process = || HostPaths::for_process(&state).map_err(LaunchError::Program);
        let host = host.map_or_else(of_process, Ok)?.with_operator(operator);
        Box::pin(prepared.run_locally((host, slots), tracer, stops, opened)).await
    }
}

impl PreparedFarm {
    async fn run_locally(
        self,
        (host, slots): (HostPaths, Option<SlotShare>),
        tracer: rollout_base::traces::Tracer,
        stops: mpsc::Receiver<StopLevel>,
        opened: oneshot::Sender<OpenedFarm>,
    ) -> Result<EngineOutcome, LaunchError> {
        let kind = self.job.settings.environment.provider.kind();
        host::check_services([kind], &host, &self.layout.sandboxes()).await?;
        let options = self.open_options(None, RemoteTimeouts::default());
        let queue = Arc::<EmbeddedQueue>::default();
        let start = self.start(Arc::clone(&queue) as Arc<dyn Dispatch>, opened);
        let Self { job, layout, store, planner, events, .. } = self;
        let (registered, registration) = oneshot::channel();
        let variables = variables(&job, environment());
        let equip = equip(&job, &layout, host, Arc::clone(&store), variables, slots);
        let ran = embedded::run(EmbeddedRun {
            options,
            planner: Box::new(planner),
            store,
            queue,
            slots: job.n_concurrent_trials,
            events,
            stops,
            on_open: Box::new(move |run| {
                let run = run.id();
                Box::pin(async move {
                    // The session waits for it at its end.
                    let _ended = registered.send(start.open(run).await?);
                    Ok(())
                })
            }),
            takes_commands: false,
            equip: Box::new(equip),
            tracer,
        })
        .await;
        let FinishedSession { outcome, lock } = ran?;
        finish(registration).await?;
        drop(lock);
        Ok(outcome)
    }

    /// How the run is opened.
    pub(super) fn open_options(
        &self,
        kv: Option<KvLockOptions>,
        timeouts: RemoteTimeouts,
    ) -> RunOpenOptions {
        let hung = kv.is_some() || self.wait_policy.hung;
        let wait_policy = LockWaitPolicy { hung, ..self.wait_policy };
        RunOpenOptions {
            layout: self.layout.clone(),
            job: self.settings.name.clone(),
            plan: self.documents.plan().digest(),
            permits: self.job.n_concurrent_trials as usize,
            // A lost sample is replaced as its group says.
            retry: RetryPolicy { max_attempts: 1, ..self.job.retry },
            lock: LockOptions { wait_policy, kv, mirror: None },
            timeouts,
            budget: RunBudget::default(),
            reopen: None,
        }
    }

    /// The steps to take when the run is open.
    pub(super) fn start(
        &self,
        dispatch: Arc<dyn Dispatch>,
        opened: oneshot::Sender<OpenedFarm>,
    ) -> FarmStart {
        FarmStart {
            dispatch: self.job.settings.gateway.is_some().then_some(dispatch),
            settings: self.settings.clone(),
            layout: self.layout.clone(),
            url: self.url.clone(),
            store: Arc::clone(&self.store),
            handle: self.handle.clone(),
            documents: Arc::clone(&self.documents),
            opened,
        }
    }
}

/// The beginning of a session that owns the run.
pub(super) struct FarmStart {
    /// The queue, if workers must be told of model calls.
    dispatch: Option<Arc<dyn Dispatch>>,
    settings: FarmSettings,
    layout: RunLayout,
    url: StoreUrl,
    store: Arc<dyn BlobStore>,
    handle: FarmHandle,
    documents: Arc<FarmDocuments>,
    opened: oneshot::Sender<OpenedFarm>,
}

impl FarmStart {
    /// Writes the settings, registers the run in its store, and tells the session.
    pub(super) async fn open(self, run: RunId) -> Result<Registration, RunError> {
        let Self { dispatch, settings, layout, url, store, handle, documents, opened } = self;
        let run_dir = layout.root().to_owned();
        let path = run_dir.join(SETTINGS_FILE);
        supervise::blocking(move || atomic_file::write_json(&path, &settings)).await?;
        let registered = write_reference(&run_dir, run, &store, &url).await;
        let registration = registered.map_err(|error| RunError::Damaged {
            path: run_dir.clone(),
            reason: rollout_base::backoff::error_chain(&error),
        })?;
        let calls = dispatch.map(|queue| tell_workers(run, queue, handle.model_calls()));
        // A user that has gone has stopped the run.
        let _gone = opened.send(OpenedFarm { run, run_dir, handle, documents, calls });
        Ok(registration)
    }
}

/// Waits until the store knows the run.
pub(super) async fn finish(
    registration: oneshot::Receiver<Registration>,
) -> Result<(), LaunchError> {
    match registration.await {
        Ok(registration) => Ok(registration.finish().await?),
        Err(_) => Ok(()),
    }
}

/// Refuses a run directory of another farm: the keys of its samples would be others.
fn check_name(run_dir: &Path, settings: &FarmSettings) -> Result<(), LaunchError> {
    let path = run_dir.join(SETTINGS_FILE);
    let Ok(text) = std::fs::read(&path) else { return Ok(()) };
    match serde_json::from_slice::<FarmSettings>(&text) {
        Ok(known) if known.name == settings.name => Ok(()),
        Ok(known) => Err(LaunchError::OtherFarm { path, name: known.name }),
        Err(error) => Err(RunError::Damaged { path, reason: error.to_string() }.into()),
    }
}

/// Takes the events of a run, and logs its warnings.
pub(super) fn log_warnings() -> (mpsc::Sender<Vec<RunEvent>>, Task<()>) {
    let (events, mut batches) = mpsc::channel::<Vec<RunEvent>>(EVENT_CAPACITY);
    let task = supervise::spawn("farm events", async move {
        while let Some(batch) = batches.recv().await {
            for event in batch {
                if let EventKind::Warning { message } = event.kind {
                    tracing::warn!("{message}");
                }
            }
        }
    });
    (events, task)
}
