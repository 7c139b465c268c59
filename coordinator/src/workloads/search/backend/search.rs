//! The half of a sitting that thinks: the search, on a thread of its own, beside the engine that
//! runs what it asks for.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use rollout_protocol::digest::Digest;
use rollout_protocol::event::RunEvent;
use rollout_protocol::retry::RetryPolicy;
use rollout_worker::store::BlobStore;
use rollout_worker::supervise;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};

use super::asked::{Asked, Told};
use super::shop::Shop;
use super::stops::Stops;
use super::{Plan, events};
use crate::config::{TreeFile, tree_document};
use crate::engine::core::Bounds;
use crate::engine::journal::Layout;
use crate::engine::{self, OpenRun, RunError, Taking};
use crate::workloads::search::driver::{Directory, Opening, Owned, TreeError, WorkError, open};
use crate::workloads::search::manifest::Manifest;

/// A search that is about to begin.
pub(crate) struct Search {
    pub(crate) opening: Opening,
    pub(crate) directory: Directory,
    pub(crate) plan: Plan,
    pub(crate) store: Arc<dyn BlobStore>,
    pub(crate) asked: Arc<Asked>,
    pub(crate) told: mpsc::UnboundedReceiver<Told>,
    /// Whether evals that the infrastructure could not run count as failed.
    pub(crate) fail_unable: bool,
    pub(crate) stops: Stops,
    pub(crate) events: mpsc::Sender<Vec<RunEvent>>,
}

/// A run that is this process's.
pub(crate) struct Owner(Owned);

impl Owner {
    /// What a run tells of itself.
    pub(crate) fn of(run: &OpenRun) -> Self {
        let former = run.takeover().map(|takeover| takeover.former.clone());
        Self(Owned { fence: run.fence(), former })
    }
}

/// How the run of a search is opened.
pub(crate) fn opening(tree: &TreeFile, taking: Taking, bounds: Bounds) -> engine::Opening {
    let settings = tree_document(tree).to_string();
    engine::Opening {
        layout: Directory::new(tree.run_dir()).layout().clone(),
        job: tree.name.clone(),
        plan: Digest::sha256(settings.as_bytes()),
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
    pub(crate) async fn run(self, ours: oneshot::Receiver<Owner>) -> Result<Manifest, TreeError> {
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

    async fn think(self, ours: Owner) -> Result<Manifest, TreeError> {
        let Self { opening, directory, plan, store, asked, told, .. } = self;
        let Self { stops, events: sender, fail_unable, .. } = self;
        let layout = directory.layout().clone();
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
            heard: VecDeque::new(),
            events: sender.clone(),
        };
        supervise::blocking(move || {
            let searched =
                open(directory, &opening, ours.0, shop, stops.flag).and_then(|mut sitting| {
                    events::tell(&sender, events::started(sitting.manifest()));
                    sitting.run().map(|_| sitting.manifest().clone())
                });
            leave(&layout);
            searched
        })
        .await
    }
}

/// Removes directories of workers that are empty.
fn leave(layout: &Layout) {
    for dir in [layout.workers(), layout.sandboxes(), layout.work()] {
        // Others may still use it: whoever comes last removes it.
        let _in_use = std::fs::remove_dir(dir);
    }
}

/// What came of both halves: the first cause counts.
pub(crate) fn outcome<T>(
    ran: Result<T, RunError>,
    searched: Result<Manifest, TreeError>,
) -> Result<(T, Manifest), TreeError> {
    match (ran, searched) {
        (Ok(ran), Ok(manifest)) => Ok((ran, manifest)),
        (Err(error), Ok(_) | Err(TreeError::Work(WorkError::Stopped))) => Err(error.into()),
        (_, Err(error)) => Err(error),
    }
}
