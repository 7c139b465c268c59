//! A run of a job, assembled from store, plan, outputs and workers.

use std::path::PathBuf;
use std::sync::Arc;

use rollout_protocol::event::RunEvent;
use rollout_protocol::wire::control::StopLevel;
use rollout_worker::store::{BlobStore, StoreUrl};
use rollout_worker::supervise::Task;
use tokio::sync::mpsc;

use super::embedded::FinishedSession;
use super::facts::dataset_facts;
use super::host::{HostPaths, environment};
use super::local::LocalJob;
#[cfg(feature = "nats")]
use super::nats::{ConnectedServer, RemoteOptions};
use super::store::{StoreCache, open_for_run};
use super::{LaunchError, planning, signals};
use crate::config::{self, Job};
use crate::engine::{LockOptions, LockWaitPolicy, ReopenSelection};
use crate::events::{JobFacts, MaterializeMode, Reporter, RunReport, SinkStarter};
use crate::plan::JobPlan;
use crate::results::metrics::AgentTotal;
use crate::results::report::{DatasetFacts, TaskFactsIndex};
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
    /// Which results become files.
    pub materialize: MaterializeMode,
    /// How the run was started, for `invocation.json`; the file stays as it is when absent.
    pub invocation: Option<serde_json::Value>,
    /// Outputs beside the files of the run directory.
    pub sinks: Vec<SinkStarter>,
    /// Policy for taking the run from an owner that may be dead.
    pub wait_policy: LockWaitPolicy,
    /// Settled trials that run again.
    pub reopen: Option<ReopenSelection>,
    /// The server whose workers run the trials; without one they run in this process.
    #[cfg(feature = "nats")]
    pub remote: Option<RemoteOptions>,
    /// Source of stops.
    pub stops: StopSource,
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
    /// The results.
    pub report: RunReport,
}

/// Runs a job until it has ended or is stopped.
///
/// # Errors
/// [`LaunchError`]. Settled trials stay settled.
pub async fn run(request: RunRequest) -> Result<RunOutcome, LaunchError> {
    let RunRequest { job, datasets, materialize, invocation, sinks, .. } = request;
    let RunRequest { wait_policy, reopen, stops, .. } = request;
    #[cfg(feature = "nats")]
    let remote = match request.remote {
        Some(remote) => Some(ConnectedServer::connect(remote).await?),
        None => None,
    };
    let (run_dir, state) = (job.run_dir(), job.jobs_dir.join(".rollout"));
    let cache = StoreCache { directory: state.join("blob-cache"), max_mb: request.store_cache_mb };
    let default = state.join("blobs");
    let (url, store) = open_for_run(request.store, &run_dir, default, Some(&cache)).await?;
    let read = dataset_facts(&job, &datasets);
    let plan = planning::plan(&job, datasets, Arc::clone(&store), &state).await?;
    let facts = JobFacts { materialize, store: Some(url), invocation, ..facts(&job, &plan, read) };
    let started = Reporter::start(facts, Arc::clone(&store), sinks);
    let (events, reporter) = started.map_err(LaunchError::Outputs)?;
    let (stops, _listening) = stops.listen().map_err(LaunchError::Signals)?;
    let session = JobSession { job, plan, store, events, stops, wait_policy, reopen };
    #[cfg(feature = "nats")]
    let session_result = match remote {
        Some(server) => Box::pin(server.run(session)).await,
        None => session.run_here().await,
    };
    #[cfg(not(feature = "nats"))]
    let session_result = session.run_here().await;
    let report = reporter.finish().await;
    let (FinishedSession { outcome, lock }, report) = (session_result?, report?);
    drop(lock);
    Ok(RunOutcome { run_dir, cancelled: outcome.cancelled, report })
}

/// A job with started outputs, ready to run.
pub(super) struct JobSession {
    pub(super) job: Job,
    pub(super) plan: JobPlan,
    pub(super) store: Arc<dyn BlobStore>,
    pub(super) events: mpsc::Sender<Vec<RunEvent>>,
    pub(super) stops: mpsc::Receiver<StopLevel>,
    pub(super) wait_policy: LockWaitPolicy,
    pub(super) reopen: Option<ReopenSelection>,
}

impl JobSession {
    /// Runs it in this process.
    async fn run_here(self) -> Result<FinishedSession, LaunchError> {
        let Self { job, plan, store, events, stops, wait_policy, reopen } = self;
        let state = job.jobs_dir.join(".rollout");
        let host = HostPaths::for_process(&state).map_err(LaunchError::Program)?;
        let (environment, lock_options) =
            (environment(), LockOptions { wait_policy, ..LockOptions::default() });
        let local = LocalJob {
            job,
            plan,
            store,
            host,
            environment,
            events,
            stops,
            lock: lock_options,
            reopen,
        };
        Ok(local.run().await?)
    }
}

impl StopSource {
    /// The stops, as long as the task lives.
    fn listen(self) -> std::io::Result<(mpsc::Receiver<StopLevel>, Option<Task<()>>)> {
        match self {
            Self::Signals => signals::listen().map(|(stops, task)| (stops, Some(task))),
            Self::Channel(stops) => Ok((stops, None)),
        }
    }
}

/// The facts of a plan; the caller fills in those of the request.
fn facts(job: &Job, plan: &JobPlan, datasets: Vec<DatasetFacts>) -> JobFacts {
    let each = plan.tasks().len() as u64 * u64::from(plan.n_attempts());
    let agents = plan.agents().iter().map(|agent| agent.spec.name.clone());
    JobFacts {
        run_dir: job.run_dir(),
        agents: agents.map(|name| AgentTotal { name, total: each }).collect(),
        metrics: job.metrics.clone(),
        materialize: MaterializeMode::default(),
        config: config::job_document(job),
        store: None,
        datasets,
        tasks: Arc::new(TaskFactsIndex::from_plan(plan)),
        invocation: None,
    }
}
