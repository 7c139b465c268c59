//! The half of a sitting that thinks: the search, on a thread of its own, beside the engine that
//! runs what it asks for.

use std::collections::HashMap;
use std::sync::Arc;

use rollout_protocol::digest::Digest;
use rollout_protocol::id::RunId;
use rollout_protocol::retry::RetryPolicy;
use rollout_worker::host::WorkerDir;
use rollout_worker::secrets::TrialVariables;
use rollout_worker::store::BlobStore;
use rollout_worker::supervise;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};

use super::asked::{Asked, Told};
use super::ideas::Desk;
use super::shop::Shop;
use super::stops::Stops;
use super::{Plan, Progress};
use crate::config::{TreeFile, tree_document};
use crate::engine::concurrency::Tickets;
use crate::engine::core::Bounds;
use crate::engine::journal::Layout;
use crate::engine::{self, OpenRun, RunError, Taking};
use crate::launch::host::HostPaths;
use crate::workloads::search::driver::{Directory, Opening, Owned, TreeError, WorkError, open};
use crate::workloads::search::manifest::Manifest;

/// A search that is about to begin.
pub(super) struct Search {
    pub(super) opening: Opening,
    pub(super) directory: Directory,
    pub(super) plan: Plan,
    pub(super) store: Arc<dyn BlobStore>,
    pub(super) asked: Arc<Asked>,
    pub(super) told: mpsc::UnboundedReceiver<Told>,
    /// Whether evals that the infrastructure could not run count as failed.
    pub(super) fail_unable: bool,
    pub(super) stops: Stops,
    pub(super) host: HostPaths,
    /// Those that commands which run here may see.
    pub(super) variables: TrialVariables,
    /// Without which no command for ideas may run, if there are limits.
    pub(super) tickets: Option<Arc<Tickets>>,
    /// What commands for ideas of dead processes left here is removed first: there is no worker in
    /// this process that would.
    pub(super) clears_up: bool,
    pub(super) progress: mpsc::UnboundedSender<Progress>,
}

/// A run that is this process's.
pub(super) struct Ours {
    run: RunId,
    owned: Owned,
}

impl Ours {
    /// What a run tells of itself.
    pub(super) fn of(run: &OpenRun) -> Self {
        let former = run.takeover().map(|takeover| takeover.former.clone());
        Self { run: run.id(), owned: Owned { fence: run.fence(), former } }
    }
}

/// How the run of a search is opened.
pub(super) fn opening(tree: &TreeFile, taking: Taking, bounds: Bounds) -> engine::Opening {
    let settings = tree_document(tree).to_string();
    engine::Opening {
        layout: Directory::new(tree.run_dir()).layout().clone(),
        job: tree.name.clone(),
        plan: Digest::of(settings.as_bytes()),
        permits: tree.search.max_parallel_evals as usize,
        retry: RetryPolicy::default(),
        taking,
        bounds,
        reopen: None,
    }
}

impl Search {
    /// Goes on with the search until it has ended. It begins when its run is `ours`.
    ///
    /// # Errors
    /// [`TreeError`]; what is written down stays.
    pub(super) async fn run(self, ours: oneshot::Receiver<Ours>) -> Result<Manifest, TreeError> {
        let asked = Arc::clone(&self.asked);
        let searched = match ours.await {
            Ok(ours) => self.think(ours).await,
            // The run could not be opened, and says why.
            Err(_) => Err(WorkError::Stopped.into()),
        };
        match &searched {
            Ok(_) | Err(TreeError::Work(WorkError::Stopped)) => asked.close(),
            Err(_) => asked.abandon(),
        }
        searched
    }

    async fn think(self, ours: Ours) -> Result<Manifest, TreeError> {
        let Self { opening, directory, plan, store, asked, told, .. } = self;
        let Self { stops, host, variables, tickets, clears_up, progress, fail_unable, .. } = self;
        let layout = directory.layout().clone();
        let (at, stop) = (Arc::clone(&store), stops.level());
        let desk = Desk { host, store: at, variables, tickets, clears_up, stop };
        let (ideas, home) = desk.open(&opening.tree, &layout, ours.run).await?;
        let shop = Shop {
            handle: Handle::current(),
            tree: opening.tree.clone(),
            plan,
            store,
            repository: None,
            asked,
            told,
            tries: HashMap::new(),
            unable: Vec::new(),
            fail_unable,
            ideas,
            progress,
        };
        supervise::blocking(move || {
            let searched = open(directory, &opening, ours.owned, shop, stops.flag)
                .and_then(|mut sitting| sitting.run().map(|_| sitting.manifest().clone()));
            leave(home, &layout);
            searched
        })
        .await
    }
}

/// Removes the directory of idea commands, and those that are empty without it.
fn leave(home: WorkerDir, layout: &Layout) {
    let path = home.path().display().to_string();
    if let Err(error) = home.remove() {
        tracing::warn!("cannot remove {path}: {error}");
    }
    for dir in [layout.workers(), layout.sandboxes(), layout.work()] {
        // Others may still use it: whoever comes last removes it.
        let _in_use = std::fs::remove_dir(dir);
    }
}

/// What came of both halves: the first cause counts.
pub(super) fn outcome<T>(
    ran: Result<T, RunError>,
    searched: Result<Manifest, TreeError>,
) -> Result<(T, Manifest), TreeError> {
    match (ran, searched) {
        (Ok(ran), Ok(manifest)) => Ok((ran, manifest)),
        (Err(error), Ok(_) | Err(TreeError::Work(WorkError::Stopped))) => Err(error.into()),
        (_, Err(error)) => Err(error),
    }
}
