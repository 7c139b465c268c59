//! A run of a job, assembled from store, plan, outputs and workers.

use std::path::PathBuf;
use std::sync::Arc;

use futures_util::FutureExt as _;
use rollout_base::supervise::Task;
use rollout_base::traces::Tracer;
use rollout_engine::catalog::{CatalogError, MirrorOptions};
use rollout_engine::journal::RunLayout;
use rollout_engine::{
    EngineOutcome, Interruption, LockWaitPolicy, ReopenSelection, RunError, RunManifest,
};
use rollout_protocol::wire::control::StopLevel;
use rollout_store::{BlobStore, StoreUrl};
use tokio::sync::mpsc;

use super::embedded::FinishedSession;
use super::facts::dataset_facts;
use super::host::{HostPaths, OperatorOptions, environment};
use super::local::LocalJob;
#[cfg(feature = "nats")]
use super::nats::{ConnectedServer, RemoteOptions};
use super::on_demand::OnDemandTrials;
use super::parameters::{JobParameters, RunSink};
use super::session::JobSession;
use super::session_catalog::{SessionCatalog, SessionFiles};
use super::slot_pool::SlotShare;
use super::store::{StoreCache, open_for_run};
use super::{LaunchError, planning, signals};
use crate::config::Job;
use crate::events::{JobFacts, MaterializeMode, Reporter, RunReport, SinkStarter, StopAtOnce};
use crate::plan::JobPlan;
use crate::results::metrics::AgentTotal;
use crate::results::report::TaskFactsIndex;
use crate::sources::datasets::Dataset;

/// A job to run.
pub struct RunRequest {
    /// The job.
    pub job: Job,
    /// Its datasets, in its order.
    pub datasets: Vec<Dataset>,
    /// The blob store; by default that of the run's first session, or one beside the runs.
    pub store: Option<StoreUrl>,
    /// Limit on the local cache of a store in a service, in MiB; 0 for none.
    pub store_cache_mb: u64,
    /// Which results become files; by default as the run's sink says.
    pub materialize: Option<MaterializeMode>,
    /// Where the run is kept; by default as in the run's last session, or in its directory.
    pub sink: Option<RunSink>,
    /// How the run was started, for `invocation.json`; the file stays as it is when absent.
    pub invocation: Option<serde_json::Value>,
    /// Outputs beside the files of the run directory.
    pub sinks: Vec<SinkStarter>,
    /// Policy for taking the run from an owner that may be dead.
    pub wait_policy: LockWaitPolicy,
    /// Settled trials that run again.
    pub reopen: Option<ReopenSelection>,
    /// Whether the plan may lack trials that have results. They are kept and no longer count.
    pub accept_changed: bool,
    /// The server whose workers run the trials; without one they run in this process.
    #[cfg(feature = "nats")]
    pub remote: Option<RemoteOptions>,
    /// Source of stops.
    pub stops: StopSource,
    /// Trials that are requested one by one, in place of all trials of the plan.
    pub on_demand: Option<OnDemandTrials>,
    /// Paths of the host for trials in this process. By default those of this process, which then
    /// must be the program `rollout`: it starts itself as the supervisor of sandboxes.
    pub host: Option<HostPaths>,
    /// Options of the operator, in place of those of the host.
    pub operator: OperatorOptions,
    /// Takes the spans of trials in this process.
    pub tracer: Tracer,
    /// The run's part in a pool of slots, for trials in this process.
    pub slots: Option<SlotShare>,
}

/// Source of a run's stops.
#[derive(Debug)]
pub enum StopSource {
    /// Signals to this process, once the run starts.
    Signals,
    /// A channel.
    Channel(mpsc::Receiver<StopLevel>),
}

/// A run that ended, or was stopped in order.
#[derive(Debug)]
pub struct RunOutcome {
    /// The run's directory.
    pub run_dir: PathBuf,
    /// Whether it was stopped.
    pub cancelled: bool,
    /// Whether it was stopped because its budgets did not cover the rest of its trials.
    pub is_over_budget: bool,
    /// The results.
    pub report: RunReport,
    /// Why the catalog lacks files of the end of the run, if it does. Its journal has all results.
    pub incomplete_catalog: Option<CatalogError>,
}

/// Runs a job until it has ended or is stopped.
///
/// # Errors
/// [`LaunchError`]. Settled trials stay settled.
pub async fn run(request: RunRequest) -> Result<RunOutcome, LaunchError> {
    let RunRequest { job, datasets, invocation, sinks, wait_policy, reopen, mut stops, .. } =
        request;
    let RunRequest { on_demand, accept_changed, host, operator, tracer, slots, .. } = request;
    #[cfg(feature = "nats")]
    let (pool, remote) = match request.remote {
        Some(remote) => {
            let pool = remote.pool.to_string();
            let connecting = Box::pin(stops.unless_stopped(ConnectedServer::connect(remote)));
            (Some(pool), Some(connecting.await?))
        }
        None => (None, None),
    };
    #[cfg(not(feature = "nats"))]
    let pool = None;
    let (run_dir, state) = (job.run_dir(), job.jobs_dir.join(".rollout"));
    let cache = StoreCache { directory: state.join("blob-cache"), max_mb: request.store_cache_mb };
    let default = state.join("blobs");
    let (url, store) = open_for_run(request.store, &run_dir, default, Some(&cache)).await?;
    let previous = JobParameters::read(&RunLayout::new(&run_dir))?;
    let sink = choose_sink(request.sink, previous.as_ref().map(|parameters| parameters.sink))?;
    let materialize = request.materialize.unwrap_or(sink.default_materialize());
    let former = previous.map(|parameters| parameters.datasets).unwrap_or_default();
    let read = dataset_facts(&job, &datasets, &former);
    let parameters = JobParameters::new(&job, read, sink, materialize, pool);
    let planning = planning::plan(&job, datasets, Arc::clone(&store), &state);
    let plan = stops.unless_stopped(planning).await?;
    let local = || {
        let of_process = || HostPaths::for_process(&state).map_err(LaunchError::Program);
        let host = host.map_or_else(of_process, Ok)?.with_operator(operator);
        Ok::<_, LaunchError>(JobExecutor::Local { job: Box::new(job), host, slots })
    };
    #[cfg(feature = "nats")]
    let executor = match remote {
        Some(server) => JobExecutor::Remote { server, state },
        None => local()?,
    };
    #[cfg(not(feature = "nats"))]
    let executor = local()?;
    let prepared = PlannedRun { parameters, run_dir, plan, url, store, executor };
    let session = SessionRequest {
        invocation,
        sinks,
        wait_policy,
        reopen,
        on_demand,
        accept_changed,
        stops,
        tracer,
    };
    prepared.run(session).await
}

/// Prepares a session, of which nothing runs yet, unless a stop comes first.
///
/// # Errors
/// [`LaunchError::Interrupted`] then.
pub(super) async fn unless_stopped<T>(
    stops: &mut mpsc::Receiver<StopLevel>,
    preparing: impl Future<Output = Result<T, LaunchError>>,
) -> Result<T, LaunchError> {
    tokio::select! {
        prepared = preparing => prepared,
        Some(_level) = stops.recv() => Err(LaunchError::Interrupted),
    }
}

/// The sink of a session, given that of the last one. A run does not leave its catalog, which would
/// then be an outdated copy that other hosts believe in.
fn choose_sink(named: Option<RunSink>, last: Option<RunSink>) -> Result<RunSink, LaunchError> {
    match (named, last) {
        (Some(RunSink::Local), Some(last)) if last.has_catalog() => Err(LaunchError::LeavesCatalog),
        (named, last) => Ok(named.or(last).unwrap_or_default()),
    }
}

/// A run whose plan is known.
pub(super) struct PlannedRun {
    pub(super) parameters: JobParameters,
    pub(super) run_dir: PathBuf,
    pub(super) plan: JobPlan,
    pub(super) url: StoreUrl,
    pub(super) store: Arc<dyn BlobStore>,
    pub(super) executor: JobExecutor,
}

/// The place where trials run.
pub(super) enum JobExecutor {
    /// This process.
    Local {
        /// The job, with the settings of its environment.
        job: Box<Job>,
        /// Paths of the host.
        host: HostPaths,
        /// Its part in a pool of slots.
        slots: Option<SlotShare>,
    },
    /// Workers of a server.
    #[cfg(feature = "nats")]
    Remote {
        /// Their server.
        server: ConnectedServer,
        /// Directory for recovered work, if the user has no home directory.
        state: PathBuf,
    },
}

/// A session as the user asked for it.
pub(super) struct SessionRequest {
    pub(super) invocation: Option<serde_json::Value>,
    pub(super) sinks: Vec<SinkStarter>,
    pub(super) wait_policy: LockWaitPolicy,
    pub(super) reopen: Option<ReopenSelection>,
    pub(super) on_demand: Option<OnDemandTrials>,
    pub(super) accept_changed: bool,
    pub(super) stops: StopSource,
    pub(super) tracer: Tracer,
}

impl PlannedRun {
    /// Runs a session until it has ended or is stopped.
    pub(super) async fn run(self, request: SessionRequest) -> Result<RunOutcome, LaunchError> {
        let Self { parameters, run_dir, plan, url, store, executor } = self;
        let SessionRequest { invocation, sinks, wait_policy, reopen, on_demand, .. } = request;
        let SessionRequest { accept_changed, stops, tracer, .. } = request;
        let (stops, _listening) = stops.listen().map_err(LaunchError::Signals)?;
        let (interruption, stops, _observing) = Interruption::observe(stops);
        let stopped = interruption.requested_at_once().boxed().shared();
        let facts = facts(&parameters, &plan, run_dir.clone(), (url, invocation), stopped);
        let started = Reporter::start(facts, Arc::clone(&store), sinks);
        let (events, reporter) = started.map_err(LaunchError::Outputs)?;
        let layout = RunLayout::new(&run_dir);
        let catalog = parameters.sink.has_catalog().then(|| {
            let is_only_lock = matches!(executor, JobExecutor::Local { .. });
            let options = MirrorOptions { job: parameters.job.clone(), is_only_lock, interruption };
            SessionCatalog::new(Arc::clone(&store), layout.clone(), options)
        });
        let session = JobSession {
            parameters,
            run_dir: run_dir.clone(),
            plan: Arc::new(plan),
            store,
            catalog: catalog.clone(),
            events,
            stops,
            wait_policy,
            reopen,
            on_demand,
            accept_changed,
            tracer,
        };
        let session_result = Box::pin(executor.run(session)).await;
        let stopped_again = catalog.as_ref().map(SessionCatalog::stopped_again);
        let report = reporter.finish().await;
        let (FinishedSession { outcome, lock }, report) = (session_result?, report?);
        let mut incomplete_catalog = None;
        if let (Some(catalog), Some(stopped)) = (catalog, stopped_again)
            && let Some(manifest) = RunManifest::read(&layout)?
        {
            let RunManifest { run, epoch, .. } = manifest;
            lock.fence().check().map_err(RunError::LockLost)?;
            let stored = catalog.store_files(run, epoch, &layout, SessionFiles::End, stopped).await;
            incomplete_catalog = stored.err();
        }
        drop(lock);
        let EngineOutcome { cancelled, is_over_budget, .. } = outcome;
        Ok(RunOutcome { run_dir, cancelled, is_over_budget, report, incomplete_catalog })
    }
}

impl JobExecutor {
    async fn run(self, session: JobSession) -> Result<FinishedSession, LaunchError> {
        match self {
            Self::Local { job, host, slots } => {
                let environment = environment();
                let job = LocalJob { job: *job, session, host, environment, slots };
                Ok(Box::pin(job.run()).await?)
            }
            #[cfg(feature = "nats")]
            Self::Remote { server, state } => server.run(session, state).await,
        }
    }
}

impl StopSource {
    /// Prepares a session unless a stop of a channel comes first. Signals still end the process.
    async fn unless_stopped<T>(
        &mut self,
        preparing: impl Future<Output = Result<T, LaunchError>>,
    ) -> Result<T, LaunchError> {
        match self {
            Self::Signals => preparing.await,
            Self::Channel(stops) => unless_stopped(stops, preparing).await,
        }
    }

    /// The stops, as long as the task lives.
    fn listen(self) -> std::io::Result<(mpsc::Receiver<StopLevel>, Option<Task<()>>)> {
        match self {
            Self::Signals => signals::listen().map(|(stops, task)| (stops, Some(task))),
            Self::Channel(stops) => Ok((stops, None)),
        }
    }
}

/// The facts of a run.
fn facts(
    parameters: &JobParameters,
    plan: &JobPlan,
    run_dir: PathBuf,
    (store, invocation): (StoreUrl, Option<serde_json::Value>),
    stopped_at_once: StopAtOnce,
) -> JobFacts {
    let each = plan.tasks().len() as u64 * u64::from(plan.n_attempts());
    let agents = plan.agents().iter().map(|agent| agent.spec.name.clone());
    JobFacts {
        run_dir,
        agents: agents.map(|name| AgentTotal { name, total: each }).collect(),
        metrics: parameters.metrics.clone(),
        guardrails: plan.guardrails().to_vec(),
        materialize: parameters.materialize,
        config: parameters.config.clone(),
        store: Some(store),
        datasets: parameters.datasets.clone(),
        tasks: Arc::new(TaskFactsIndex::from_plan(plan)),
        invocation,
        stopped_at_once,
    }
}
