//! The task of a search session that runs the search, on a thread of its own, beside the engine
//! that runs its requests.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use rollout_base::supervise;
use rollout_engine::core::RemoteTimeouts;
use rollout_engine::journal::RunLayout;
use rollout_engine::{LockOptions, OpenRun, RunError};
use rollout_protocol::digest::Digest;
use rollout_protocol::event::RunEvent;
use rollout_protocol::id::RunId;
use rollout_protocol::retry::RetryPolicy;
use rollout_protocol::spec::budget::RunBudget;
use rollout_store::{BlobStore, StoreUrl};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};

use super::live::LiveBackend;
use super::requests::{RunNotification, WorkRequests};
use super::stops::SearchStops;
use super::{SearchPlan, events};
use crate::config::{TreeFile, tree_document};
use crate::results::files::store::write_reference;
use crate::workloads::search::driver::{
    BackendError, SearchDirectory, SearchError, SearchOpenOptions, SearchOwnership, open,
};
use crate::workloads::search::manifest::SearchManifest;

/// A search before its start.
pub(crate) struct SearchTask {
    pub(crate) options: SearchOpenOptions,
    pub(crate) directory: SearchDirectory,
    pub(crate) plan: SearchPlan,
    pub(crate) store: Arc<dyn BlobStore>,
    /// The store, for `store.json` of the search.
    pub(crate) store_url: Option<StoreUrl>,
    pub(crate) requests: Arc<WorkRequests>,
    pub(crate) notifications: mpsc::UnboundedReceiver<RunNotification>,
    /// Whether evals that the infrastructure could not run count as failed.
    pub(crate) fail_unable: bool,
    pub(crate) stops: SearchStops,
    pub(crate) events: mpsc::Sender<Vec<RunEvent>>,
}

/// A run that this process owns.
pub(crate) struct OwnedRun {
    id: RunId,
    ownership: SearchOwnership,
}

impl OwnedRun {
    /// The ownership of an open run.
    pub(crate) fn from_run(run: &OpenRun) -> Self {
        let former = run.takeover().map(|takeover| takeover.former.clone());
        Self { id: run.id(), ownership: SearchOwnership { fence: run.fence(), former } }
    }
}

/// Options for opening the run of a search.
pub(crate) fn run_open_options(
    tree: &TreeFile,
    lock_options: LockOptions,
    timeouts: RemoteTimeouts,
) -> rollout_engine::RunOpenOptions {
    let settings = tree_document(tree).to_string();
    rollout_engine::RunOpenOptions {
        layout: SearchDirectory::new(tree.run_dir()).layout().clone(),
        job: tree.name.clone(),
        plan: Digest::sha256(settings.as_bytes()),
        permits: tree.search.max_parallel_evals as usize,
        retry: RetryPolicy::default(),
        lock: lock_options,
        timeouts,
        budget: RunBudget::default(),
        reopen: None,
    }
}

impl SearchTask {
    /// Runs the search until it has ended. It starts once its run is open.
    ///
    /// # Errors
    /// [`SearchError`]; everything in the manifest stays.
    pub(crate) async fn run(
        self,
        owned: oneshot::Receiver<OwnedRun>,
    ) -> Result<SearchManifest, SearchError> {
        let asked = Arc::clone(&self.requests);
        let searched = match owned.await {
            Ok(ours) => self.drive(ours).await,
            // The run could not be opened and reports the reason.
            Err(_) => Err(BackendError::Stopped.into()),
        };
        match &searched {
            Ok(_) | Err(SearchError::Backend(BackendError::Stopped)) => asked.close(),
            Err(_) => asked.abandon(),
        }
        searched
    }

    async fn drive(self, owned: OwnedRun) -> Result<SearchManifest, SearchError> {
        let Self { options, directory, plan, store, requests, notifications, .. } = self;
        let Self { stops, events: sender, fail_unable, store_url, .. } = self;
        let layout = directory.layout().clone();
        let mut registration = None;
        if let Some(url) = &store_url {
            // Later sessions find the store by it, and `gc --store` finds the search.
            let started = write_reference(layout.root(), owned.id, &store, url).await?;
            registration = Some(started);
        }
        let backend = LiveBackend {
            handle: Handle::current(),
            fence: owned.ownership.fence.clone(),
            tree: options.tree.clone(),
            plan,
            store,
            repository: None,
            requests,
            notifications,
            tries: HashMap::new(),
            unable: Vec::new(),
            fail_unable,
            settled_evals: VecDeque::new(),
            events: sender.clone(),
        };
        let searched = supervise::blocking(move || {
            let searched = open(directory, &options, owned.ownership, backend, stops.flag)
                .and_then(|mut session| {
                    events::send(&sender, events::started_events(session.manifest()));
                    session.run().map(|_| session.manifest().clone())
                });
            remove_empty_directories(&layout);
            searched
        });
        let searched = searched.await?;
        if let Some(registration) = registration {
            registration.finish().await?;
        }
        Ok(searched)
    }
}

/// Removes empty directories of workers.
fn remove_empty_directories(layout: &RunLayout) {
    for dir in [layout.workers(), layout.sandboxes(), layout.work()] {
        // Others may still use it: the last one removes it.
        let _in_use = std::fs::remove_dir(dir);
    }
}

/// Combines the results of run and search: the first cause is returned.
pub(crate) fn combine_outcomes<T>(
    ran: Result<T, RunError>,
    searched: Result<SearchManifest, SearchError>,
) -> Result<(T, SearchManifest), SearchError> {
    match (ran, searched) {
        (Ok(ran), Ok(manifest)) => Ok((ran, manifest)),
        (Err(error), Ok(_) | Err(SearchError::Backend(BackendError::Stopped))) => Err(error.into()),
        (_, Err(error)) => Err(error),
    }
}
