//! A search, assembled from store, repository, workers and outputs, or simulated.

mod local;
#[cfg(feature = "nats")]
mod remote;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rollout_base::supervise;
use rollout_base::traces::Tracer;
use rollout_engine::{LockOptions, LockWaitPolicy};
use rollout_protocol::event::RunEvent;
use rollout_protocol::wire::control::StopLevel;
#[cfg(feature = "nats")]
use rollout_store::BlobStore;
use rollout_store::StoreUrl;
use tokio::sync::mpsc;

use self::local::LocalSearch;
pub(super) use self::local::variables;
#[cfg(feature = "nats")]
use self::remote::RemoteSearch;
use super::LaunchError;
use super::host::{HostPaths, OperatorOptions, environment};
#[cfg(feature = "nats")]
use super::nats::{ConnectedServer, RemoteOptions};
use super::slot_pool::SlotShare;
use super::store::open_for_run;
use crate::events::{SearchReporter, SinkStarter};
#[cfg(feature = "nats")]
use crate::workloads::search::backend::SearchPlan;
use crate::workloads::search::driver::simulated::SimulatedBackend;
use crate::workloads::search::driver::{
    SearchDirectory, SearchError, SearchOpenOptions, check_existing, lock_and_open,
};
use crate::workloads::search::manifest::SearchManifest;
use crate::workloads::search::report::SearchOverview;

/// A search to run.
pub struct SearchRequest {
    /// The search, and how it is opened. With its `dry_run` commands and repository are simulated.
    pub options: SearchOpenOptions,
    /// The blob store; by default one beside the searches.
    pub store: Option<StoreUrl>,
    /// Policy for taking the search from an owner that may be dead.
    pub wait_policy: LockWaitPolicy,
    /// Whether evals that the infrastructure could not run count as failed.
    pub fail_unable: bool,
    /// The server whose workers run the evals; without one they run in this process.
    #[cfg(feature = "nats")]
    pub remote: Option<RemoteOptions>,
    /// Stops requested by the user.
    pub stops: mpsc::Receiver<StopLevel>,
    /// Outputs of its progress.
    pub sinks: Vec<SinkStarter>,
    /// Options of the operator, for evals in this process.
    pub operator: OperatorOptions,
    /// Takes the spans of evals in this process.
    pub tracer: Tracer,
    /// The search's part in a pool of slots, for evals and commands of ideas in this process.
    pub slots: Option<SlotShare>,
}

/// Runs a search until it has ended or is stopped.
///
/// # Errors
/// [`LaunchError`]. Decisions and measurements stay.
pub async fn run(mut request: SearchRequest) -> Result<SearchManifest, LaunchError> {
    request.options = keep_agents(request.options).await;
    let sinks = std::mem::take(&mut request.sinks);
    let (events, reporter) = SearchReporter::start(sinks).map_err(LaunchError::Outputs)?;
    let ran = if request.options.dry_run {
        drop(events);
        let SearchRequest { options, wait_policy, stops, .. } = request;
        Box::pin(simulate(options, wait_policy, stops)).await.map_err(LaunchError::from)
    } else {
        Box::pin(run_live(request, events)).await
    };
    let overview = ran
        .as_ref()
        .ok()
        .map(|manifest| serde_json::to_value(SearchOverview::from_manifest(manifest)));
    let overview = overview.transpose().map_err(|error| LaunchError::Outputs(error.into()))?;
    let reported = reporter.finish(overview).await;
    let manifest = ran?;
    reported?;
    Ok(manifest)
}

/// Keeps the agents that the search began with, if it has begun.
async fn keep_agents(mut options: SearchOpenOptions) -> SearchOpenOptions {
    supervise::blocking(move || {
        let directory = SearchDirectory::new(options.tree.run_dir());
        // A damaged manifest is reported when the search is opened.
        if let Ok(Some(manifest)) = directory.read() {
            options.tree.keep_agents(&manifest.run_config.settings);
        }
        options
    })
    .await
}

async fn run_live(
    mut request: SearchRequest,
    events: mpsc::Sender<Vec<RunEvent>>,
) -> Result<SearchManifest, LaunchError> {
    let options = request.options.clone();
    supervise::blocking(move || check_existing(&options)).await?;
    let state = request.options.tree.runs_root.join(".rollout");
    let (named, run_dir) = (request.store.take(), request.options.tree.run_dir());
    let (url, store) = open_for_run(named, &run_dir, state.join("blobs"), None).await?;
    #[cfg(feature = "nats")]
    if let Some(remote) = request.remote.take() {
        return Box::pin(run_remote(remote, request, store, url, events)).await;
    }
    let host = HostPaths::for_process(&state).map_err(LaunchError::Program)?;
    let host = host.with_operator(request.operator);
    let environment = environment();
    let SearchRequest { options, wait_policy, fail_unable, stops, tracer, slots, .. } = request;
    let lock_options = LockOptions { wait_policy, ..LockOptions::default() };
    let local = LocalSearch {
        options,
        lock: lock_options,
        store,
        store_url: url,
        host,
        environment,
        fail_unable,
        stops,
        events,
        tracer,
        slots,
    };
    Ok(Box::pin(local.run()).await?)
}

#[cfg(feature = "nats")]
async fn run_remote(
    remote: RemoteOptions,
    request: SearchRequest,
    store: Arc<dyn BlobStore>,
    store_url: StoreUrl,
    events: mpsc::Sender<Vec<RunEvent>>,
) -> Result<SearchManifest, LaunchError> {
    let SearchRequest { options, wait_policy, fail_unable, mut stops, .. } = request;
    let server = ConnectedServer::connect(remote).await?;
    let plan =
        SearchPlan::new(&options.tree, Arc::clone(&store)).await.map_err(SearchError::from)?;
    let state = options.tree.runs_root.join(".rollout");
    let layout = SearchDirectory::new(options.tree.run_dir()).layout().clone();
    let classes = plan.needs().map(|needs| needs.class).into();
    let prepared = server.prepare(classes, &store, state, layout, &mut stops).await?;
    let remote_search = RemoteSearch {
        options,
        plan,
        // Workers continue while their coordinator is stopped or hangs; another may take over.
        wait_policy: LockWaitPolicy { hung: true, ..wait_policy },
        store,
        store_url,
        dispatch: Arc::clone(&prepared.dispatch),
        kv_store: Arc::clone(&prepared.kv_store),
        pool: prepared.pool.clone(),
        timeouts: prepared.timeouts,
        fail_unable,
        stops,
        events,
    };
    Ok(remote_search.run().await?)
}

/// Simulates commands and repository of a search. Equal searches leave equal files.
///
/// # Errors
/// [`SearchError`].
async fn simulate(
    options: SearchOpenOptions,
    wait_policy: LockWaitPolicy,
    mut stops: mpsc::Receiver<StopLevel>,
) -> Result<SearchManifest, SearchError> {
    let backend = SimulatedBackend::new(options.tree.run_dir(), &options.tree);
    let stop = Arc::new(AtomicBool::new(false));
    let lock_options = LockOptions { wait_policy, ..LockOptions::default() };
    let opened =
        lock_and_open(options, &lock_options, backend, Arc::clone(&stop), &mut stops).await;
    let (mut session, lock) = opened?;
    let listening = supervise::spawn("stop", async move {
        if stops.recv().await.is_some() {
            stop.store(true, Ordering::Relaxed);
        }
    });
    let ran = supervise::blocking(move || -> Result<SearchManifest, SearchError> {
        session.run()?;
        Ok(session.manifest().clone())
    })
    .await;
    drop(listening);
    // There is no KV lock, so the lock cannot have been lost.
    drop(lock.release(None).await);
    ran
}
