//! A search in this process: coordinator, worker and the search itself.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use rollout_base::secrets::TrialVariables;
use rollout_base::traces::Tracer;
use rollout_engine::concurrency::{ConcurrencyLimiter, ConcurrencyLimits};
use rollout_engine::core::RemoteTimeouts;
use rollout_engine::journal::RunLayout;
use rollout_engine::{LockOptions, RunError, host_name};
use rollout_protocol::event::RunEvent;
use rollout_protocol::spec::environment::ProviderKind;
use rollout_protocol::wire::control::StopLevel;
use rollout_store::{BlobStore, StoreUrl};
use tokio::sync::{mpsc, oneshot};

use crate::config::TreeFile;
use crate::launch::embedded::{self, EmbeddedRun, WorkerEquipment};
use crate::launch::host::{self, HostPaths};
use crate::launch::slot_pool::{SlotShare, pooled};
use crate::workloads::search::backend::{
    EvalPlanner, OwnedRun, SearchPlan, SearchStops, SearchTask, WorkRequests, combine_outcomes,
    run_open_options,
};
use crate::workloads::search::driver::{SearchDirectory, SearchError, SearchOpenOptions};
use crate::workloads::search::manifest::SearchManifest;

/// A search to be run in this process.
pub(super) struct LocalSearch {
    /// The search.
    pub(super) options: SearchOpenOptions,
    /// Options for locking its directory.
    pub(super) lock: LockOptions,
    /// The blob store.
    pub(super) store: Arc<dyn BlobStore>,
    /// The directory of the store.
    pub(super) store_url: StoreUrl,
    /// Paths of the host that outlive the run.
    pub(super) host: HostPaths,
    /// Values of the variables that commands name.
    pub(super) environment: Vec<(String, String)>,
    /// Whether evals that the infrastructure could not run count as failed.
    pub(super) fail_unable: bool,
    /// Stops requested by the user.
    pub(super) stops: mpsc::Receiver<StopLevel>,
    /// Receives the events.
    pub(super) events: mpsc::Sender<Vec<RunEvent>>,
    /// Takes the spans of evals.
    pub(super) tracer: Tracer,
    /// Its part in a pool of slots.
    pub(super) slots: Option<SlotShare>,
}

impl LocalSearch {
    /// Runs the search until it ends.
    ///
    /// # Errors
    /// [`SearchError`]; written results stay.
    pub(super) async fn run(self) -> Result<SearchManifest, SearchError> {
        self.check_services().await?;
        let Self { options, lock: lock_options, store, host, environment, fail_unable, .. } = self;
        let Self { store_url, stops, events, tracer, slots, .. } = self;
        let tree = options.tree.clone();
        let directory = SearchDirectory::new(tree.run_dir());
        let plan = SearchPlan::new(&tree, Arc::clone(&store)).await?;
        let (requests, notifications) = WorkRequests::new();
        let variables = variables(&tree, environment);
        let (stops, engine_stops, _forwarding) = SearchStops::fork(stops);
        let equip = equip(&tree, directory.layout(), host, Arc::clone(&store), variables, slots);
        let (send_run, owned_run) = oneshot::channel();
        let limiter = ConcurrencyLimiter::new(ConcurrencyLimits::from(&tree.limits));
        let planner = EvalPlanner::new(Arc::clone(&requests), plan.needs(), directory.clone())
            .with_limiter(limiter)
            .with_max_park(tree.max_park_sec);
        let engine = embedded::run(EmbeddedRun {
            options: run_open_options(&tree, lock_options, RemoteTimeouts::default()),
            planner: Box::new(planner),
            store: Arc::clone(&store),
            queue: Arc::default(),
            slots: tree.search.max_parallel_evals,
            events: events.clone(),
            stops: engine_stops,
            on_open: Box::new(move |run| {
                // A search that has ended has returned its own error.
                let _gone = send_run.send(OwnedRun::from_run(run));
                Box::pin(async { Ok(()) })
            }),
            takes_commands: false,
            equip: Box::new(equip),
            tracer,
        });
        let engine = end_together(engine, Arc::clone(&requests), stops.clone());
        let search = SearchTask {
            options,
            directory,
            plan,
            store,
            store_url: Some(store_url),
            requests,
            notifications,
            fail_unable,
            stops,
            events,
        };
        let (ran, searched) = tokio::join!(Box::pin(engine), Box::pin(search.run(owned_run)));
        let (session, manifest) = combine_outcomes(ran, searched)?;
        drop(session.lock);
        Ok(manifest)
    }

    /// Fails when the service of an environment does not answer. An ended search needs none.
    async fn check_services(&self) -> Result<(), SearchError> {
        let tree = &self.options.tree;
        let directory = SearchDirectory::new(tree.run_dir());
        let has_ended = directory.read()?.is_some_and(|manifest| manifest.state.stopped);
        if self.options.rerun_evals || !has_ended {
            host::check_services(kinds(tree), &self.host, &directory.layout().sandboxes()).await?;
        }
        Ok(())
    }
}

/// Runs the engine until it or its search ends, then ends the other one.
async fn end_together<T>(
    engine: impl Future<Output = T>,
    requests: Arc<WorkRequests>,
    stops: SearchStops,
) -> T {
    let mut engine = Box::pin(engine);
    let ran = tokio::select! {
        ran = &mut engine => ran,
        () = requests.wait_until_abandoned() => {
            stops.stop_engine(StopLevel::Kill).await;
            engine.await
        }
    };
    requests.notify_run_ended();
    stops.stop_search();
    ran
}

/// The variables that the search names.
pub(in crate::launch) fn variables(
    tree: &TreeFile,
    environment: Vec<(String, String)>,
) -> TrialVariables {
    let names = tree.variable_names();
    TrialVariables::select(names.iter().map(String::as_str), environment)
}

/// The provider kinds of all commands.
fn kinds(tree: &TreeFile) -> BTreeSet<ProviderKind> {
    tree.commands.named().map(|(_, command)| command.environment.provider.kind()).collect()
}

fn equip(
    tree: &TreeFile,
    layout: &RunLayout,
    paths: HostPaths,
    store: Arc<dyn BlobStore>,
    variables: TrialVariables,
    share: Option<SlotShare>,
) -> impl FnOnce(&Path) -> Result<WorkerEquipment, RunError> + Send + use<> {
    // Former sessions may also have left environments of ideas.
    let kinds = kinds(tree);
    let sandboxes = layout.sandboxes();
    move |worker_dir: &Path| {
        let providers = kinds.into_iter().map(|kind| {
            let provider = host::provider(kind, &paths, &sandboxes)?;
            Ok::<_, RunError>((kind, provider))
        });
        let providers = providers.collect::<Result<BTreeMap<_, _>, _>>()?;
        let all = providers.values().cloned().collect();
        let runner = host::runner(providers, worker_dir, store, variables, host_name())?;
        Ok(WorkerEquipment { runner: pooled(Arc::new(runner), share), providers: all })
    }
}
