//! Resumption of a run from the catalog of its store, on any host, without its job file.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rollout_base::shown_path::shown;
use rollout_base::traces::Tracer;
use rollout_base::{durable, supervise};
use rollout_engine::catalog::Catalog;
use rollout_engine::journal::{RunLayout, SegmentIndex};
use rollout_engine::{LockWaitPolicy, OpenError, ReopenSelection, RunError, RunLock};
use rollout_protocol::id::RunId;
use rollout_protocol::name;
use rollout_queue::nats::{NatsName, NatsOptions};
use rollout_store::{BlobStore, StoreUrl};
use tokio::sync::mpsc;

use super::LaunchError;
use super::nats::{ConnectedServer, RemoteOptions};
use super::parameters::JobParameters;
use super::run::{JobExecutor, PlannedRun, RunOutcome, SessionRequest, StopSource};
use super::store::{StoreCache, open_existing_cached};
use crate::events::{MaterializeMode, SinkStarter};
use crate::workloads::job::read_previous_plan;

/// A run to resume from a catalog.
pub struct ResumeRequest {
    /// The store with the catalog.
    pub store: StoreUrl,
    /// Limit on the local cache of the store, in MiB; 0 for none.
    pub store_cache_mb: u64,
    /// The run: its id, the beginning of its id, or the name of its job; `None` for the only one.
    pub run: Option<String>,
    /// Parent of the run directory, which is named like the job.
    pub jobs_dir: PathBuf,
    /// Which results become files; by default as in the last session.
    pub materialize: Option<MaterializeMode>,
    /// The server whose workers run the trials.
    pub nats: NatsOptions,
    /// The pool of a run whose last session had none.
    pub default_pool: NatsName,
    /// How long items that no worker can run wait before they fail.
    pub unplaceable_timeout: Option<Duration>,
    /// Outputs beside the files of the run directory.
    pub sinks: Vec<SinkStarter>,
    /// Policy for taking the run from an owner that may be dead.
    pub wait_policy: LockWaitPolicy,
    /// Settled trials that run again.
    pub reopen: Option<ReopenSelection>,
    /// Source of stops.
    pub stops: StopSource,
}

/// Why a run in a catalog cannot be resumed.
#[derive(Debug, thiserror::Error)]
pub enum ResumeError {
    /// The directory of the run here has another run.
    #[error("cannot resume run {run} in {}: the directory has the run {found}", shown(path))]
    OtherRun {
        /// The run.
        run: RunId,
        /// The run directory.
        path: PathBuf,
        /// Its run.
        found: RunId,
    },
    /// Its first session ended before anything was offered.
    #[error("cannot resume run {run}: the catalog lacks its {what}; start its job again")]
    Incomplete {
        /// The run.
        run: RunId,
        /// The missing document.
        what: &'static str,
    },
    /// The name of its job is no name of a directory.
    #[error("cannot resume run {run}: its job has the invalid name `{job}`")]
    JobName {
        /// The run.
        run: RunId,
        /// The name.
        job: String,
    },
}

/// Resumes a run until it has ended or is stopped.
///
/// # Errors
/// [`LaunchError`]. Settled trials stay settled.
pub async fn resume(request: ResumeRequest) -> Result<RunOutcome, LaunchError> {
    let ResumeRequest { store: url, run, jobs_dir, nats, default_pool, .. } = request;
    let state = jobs_dir.join(".rollout");
    let cache = StoreCache { directory: state.join("blob-cache"), max_mb: request.store_cache_mb };
    let store = open_existing_cached(&url, &cache).await?;
    let header = Catalog::new(Arc::clone(&store)).find(run.as_deref()).await?;
    let (run, job) = (header.run, header.job);
    if name::check(&job).is_err() {
        return Err(ResumeError::JobName { run, job }.into());
    }
    let run_dir = jobs_dir.join(&job);
    let layout = RunLayout::new(&run_dir);
    copy_run(&store, run, &layout, request.wait_policy).await?;
    let read = layout.clone();
    let (parameters, plan) = supervise::blocking(move || {
        Ok::<_, RunError>((JobParameters::read(&read)?, read_previous_plan(&read)?))
    })
    .await?;
    let lacks = |what| ResumeError::Incomplete { run, what };
    let mut parameters = parameters.ok_or_else(|| lacks("parameters"))?;
    let plan = plan.ok_or_else(|| lacks("plan"))?;
    parameters.materialize = request.materialize.unwrap_or(parameters.materialize);
    let pool = parameters.pool.as_deref().and_then(|pool| pool.parse().ok());
    let pool = pool.unwrap_or(default_pool);
    parameters.pool = Some(pool.to_string());
    let unplaceable_timeout = request.unplaceable_timeout;
    let remote = RemoteOptions { options: nats, pool, unplaceable_timeout, hand_over: false };
    let executor = JobExecutor::Remote { server: ConnectedServer::connect(remote).await?, state };
    let prepared = PlannedRun { parameters, run_dir, plan, url, store, executor };
    let ResumeRequest { sinks, wait_policy, reopen, stops, .. } = request;
    let (invocation, on_demand) = (None, None);
    let session = SessionRequest {
        invocation,
        sinks,
        wait_policy,
        reopen,
        on_demand,
        // The plan is that of the last session.
        accept_changed: false,
        stops,
        // Its trials run on workers of the server.
        tracer: Tracer::default(),
    };
    prepared.run(session).await
}

/// Makes or completes the copy of a run in its directory here.
async fn copy_run(
    store: &Arc<dyn BlobStore>,
    run: RunId,
    layout: &RunLayout,
    wait_policy: LockWaitPolicy,
) -> Result<(), LaunchError> {
    let root = layout.root().to_owned();
    let made = supervise::blocking(move || durable::create_directory(&root)).await;
    made.map_err(|source| {
        RunError::from(OpenError::Directory { path: layout.root().to_owned(), source })
    })?;
    // Its own stops come later.
    let (_stop, mut stops) = mpsc::channel(1);
    let locked = RunLock::acquire_directory_only(layout, wait_policy, &mut stops).await;
    let lock = locked.map_err(|error| RunError::from(OpenError::Lock(error)))?;
    check_directory(run, layout).await?;
    Catalog::new(Arc::clone(store)).download(run, layout).await?;
    drop(lock);
    Ok(())
}

/// Refuses a directory that has another run.
async fn check_directory(run: RunId, layout: &RunLayout) -> Result<(), LaunchError> {
    let of = layout.clone();
    let index = supervise::blocking(move || SegmentIndex::read(&of)).await;
    let index = index.map_err(RunError::from)?;
    let found = index.openings().next().map(|opened| opened.run);
    match found.filter(|found| *found != run) {
        Some(found) => {
            Err(ResumeError::OtherRun { run, path: layout.root().to_owned(), found }.into())
        }
        None => Ok(()),
    }
}
