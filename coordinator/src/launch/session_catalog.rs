//! The catalog of a session: its journal, and the files that no journal restores.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rollout_base::backoff::OutageLog;
use rollout_base::supervise;
use rollout_engine::Interruption;
use rollout_engine::catalog::{Catalog, CatalogError, CatalogMirror, MirrorOptions, OtherFiles};
use rollout_engine::journal::{JournalMirror, RunLayout};
use rollout_protocol::id::RunId;
use rollout_store::BlobStore;

use crate::results::files::layout;

/// How long files of a run wait for the store of its catalog.
const STORE_RETRY_PERIOD: Duration = Duration::from_secs(120);

/// The catalog of a run, and the copy of its journal in it.
#[derive(Debug, Clone)]
pub(super) struct SessionCatalog {
    catalog: Catalog,
    mirror: Arc<CatalogMirror>,
    interruption: Interruption,
}

impl SessionCatalog {
    /// The catalog of the run in a directory.
    pub(super) fn new(
        store: Arc<dyn BlobStore>,
        layout: RunLayout,
        options: MirrorOptions,
    ) -> Self {
        let (catalog, interruption) = (Catalog::new(store), options.interruption.clone());
        let mirror = Arc::new(CatalogMirror::new(catalog.clone(), layout, options));
        Self { catalog, mirror, interruption }
    }

    /// The second place of the journal.
    pub(super) fn mirror(&self) -> Arc<dyn JournalMirror> {
        Arc::clone(&self.mirror) as Arc<dyn JournalMirror>
    }

    /// Completes when a user stops the session from now on.
    pub(super) fn stopped_again(&self) -> impl Future<Output = ()> + Send + use<> {
        self.interruption.requested_again()
    }

    /// Completes when a user has stopped the session.
    pub(super) async fn stopped(&self) {
        self.interruption.requested().await;
    }

    /// Stores the files of a run directory that its session has written. Waits for the store for a
    /// while, until `stopped` completes.
    pub(super) async fn store_files(
        &self,
        run: RunId,
        epoch: u32,
        layout: &RunLayout,
        files: SessionFiles,
        stopped: impl Future<Output = ()> + Send,
    ) -> Result<(), CatalogError> {
        tokio::select! {
            stored = self.retry_store_files(run, epoch, layout, files) => stored,
            () = stopped => Err(CatalogError::Interrupted),
        }
    }

    async fn retry_store_files(
        &self,
        run: RunId,
        epoch: u32,
        layout: &RunLayout,
        files: SessionFiles,
    ) -> Result<(), CatalogError> {
        let outage = OutageLog::new("writing to the catalog");
        let (mut backoff, started) = (outage.backoff(), Instant::now());
        loop {
            let (paths, others) = match files {
                SessionFiles::Start => {
                    let paths = [layout.plan(), layout.resume()];
                    (paths.map(|path| file_name(&path)).to_vec(), OtherFiles::Keep)
                }
                SessionFiles::End => {
                    let of = layout.clone();
                    (supervise::blocking(move || files_of_end(&of)).await, OtherFiles::Drop)
                }
            };
            match self.catalog.store_files(run, epoch, layout, &paths, others).await {
                Err(error) if error.is_transient() && started.elapsed() < STORE_RETRY_PERIOD => {
                    backoff.wait_after_failure(&error).await;
                }
                stored => {
                    backoff.succeeded();
                    return stored;
                }
            }
        }
    }
}

/// Files of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SessionFiles {
    /// Those that it needs to be resumed.
    Start,
    /// All that are no copies of blobs.
    End,
}

/// Paths of the files of a run directory that are no copies of blobs, below it.
fn files_of_end(layout: &RunLayout) -> Vec<String> {
    let documents =
        [layout.plan(), layout.resume(), layout.manifest(), layout.config(), layout.result()];
    let mut paths: Vec<String> = documents.iter().map(|path| file_name(path)).collect();
    paths.push(layout::INVOCATION.to_owned());
    for directory in [file_name(&layout.records()), layout::TABLES.to_owned()] {
        let entries = std::fs::read_dir(layout.root().join(&directory));
        let names = entries.into_iter().flatten().flatten();
        let names = names.filter_map(|entry| entry.file_name().into_string().ok());
        let complete = names.filter(|name| !name.starts_with('.') && !name.ends_with(".partial"));
        paths.extend(complete.map(|name| format!("{directory}/{name}")));
    }
    paths
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
