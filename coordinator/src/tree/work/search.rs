//! The half of a sitting that thinks: the search, on a thread of its own, beside the engine that
//! runs what it asks for.

use std::collections::HashMap;
use std::sync::Arc;

use rollout_protocol::digest::Digest;
use rollout_protocol::retry::RetryPolicy;
use rollout_protocol::wire::control::StopLevel;
use rollout_worker::store::BlobStore;
use rollout_worker::supervise;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};

use super::asked::{Asked, Told};
use super::ideas::Ideas;
use super::shop::Shop;
use super::stops::Stops;
use super::{Plan, Progress};
use crate::config::{TreeFile, tree_document};
use crate::core::Bounds;
use crate::run::{self, OpenRun, RunError, Taking};
use crate::tree::manifest::Manifest;
use crate::tree::run::{Directory, Opening, Owned, TreeError, WorkError, open};

/// A search that is about to begin.
pub(super) struct Search {
    pub(super) opening: Opening,
    pub(super) directory: Directory,
    pub(super) plan: Plan,
    pub(super) store: Arc<dyn BlobStore>,
    pub(super) asked: Arc<Asked>,
    pub(super) told: mpsc::UnboundedReceiver<Told>,
    pub(super) stops: Stops,
    pub(super) progress: mpsc::UnboundedSender<Progress>,
}

/// What a run tells of itself when it is this process's.
pub(super) fn owned(run: &OpenRun) -> Owned {
    let former = run.takeover().map(|takeover| takeover.former.clone());
    Owned { fence: run.fence(), former }
}

/// How the run of a search is opened.
pub(super) fn opening(tree: &TreeFile, taking: Taking, bounds: Bounds) -> run::Opening {
    let settings = tree_document(tree).to_string();
    run::Opening {
        layout: Directory::new(tree.run_dir()).layout().clone(),
        job: tree.name.clone(),
        plan: Digest::of(settings.as_bytes()),
        permits: tree.search.max_parallel_evals as usize,
        retry: RetryPolicy::default(),
        taking,
        bounds,
    }
}

impl Search {
    /// Goes on with the search until it has ended. It begins when its run is `owned`.
    ///
    /// # Errors
    /// [`TreeError`]; what is written down stays.
    pub(super) async fn run(
        self,
        owned: oneshot::Receiver<Owned>,
        ideas: Ideas,
    ) -> Result<Manifest, TreeError> {
        let (asked, stops) = (Arc::clone(&self.asked), self.stops.clone());
        let searched = match owned.await {
            Ok(owned) => self.think(owned, ideas).await,
            // The run could not be opened, and says why.
            Err(_) => Err(WorkError::Stopped.into()),
        };
        asked.close();
        if searched.is_err() {
            stops.engine(StopLevel::Kill).await;
        }
        searched
    }

    async fn think(self, owned: Owned, ideas: Ideas) -> Result<Manifest, TreeError> {
        let Self { opening, directory, plan, store, asked, told, stops, progress } = self;
        let shop = Shop {
            handle: Handle::current(),
            tree: opening.tree.clone(),
            plan,
            store,
            repository: None,
            asked,
            told,
            tries: HashMap::new(),
            ideas,
            progress,
        };
        supervise::blocking(move || {
            let mut sitting = open(directory, &opening, owned, shop, stops.flag)?;
            sitting.run()?;
            Ok(sitting.manifest().clone())
        })
        .await
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
