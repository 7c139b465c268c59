//! The blobs that runs need: which ones a run names, collection of the others, and verification.
//!
//! * `runs`: the runs that use a store, and whether their directories can be read here
//! * `scan`: digests in text; `marks`: the digests that runs name
//! * `collect`: removal of blobs, of the documents of removed runs, and of a store without content
//! * `forget`: removal of the documents of one run
//! * `verify`: reading of blobs to compare them with their digests

mod collect;
mod event_chunks;
mod forget;
mod marks;
mod runs;
mod scan;
#[cfg(test)]
mod tests;
mod verify;

use std::path::{Path, PathBuf};
use std::time::Duration;

use rollout_base::shown_path::shown;
use rollout_base::supervise::TaskPanic;
use rollout_engine::RunError;
use rollout_engine::catalog::CatalogError;
use rollout_engine::journal::JournalError;
use rollout_protocol::id::RunId;
use rollout_store::StoreError;

pub use self::collect::{BlobCount, CollectionReport, CollectionRequest, collect};
pub use self::forget::forget_run;
pub use self::marks::{MarkedDigests, marks_of_run};
pub use self::runs::{AbsentRun, KeptRun};
pub use self::verify::{BlobProblem, VerificationReport, digest_found, verify_all, verify_digests};

/// Why blobs were not collected or not verified. Blobs that were removed before it stay removed: no
/// run needs them.
#[derive(Debug, thiserror::Error)]
pub enum BlobsError {
    /// The blob store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The catalog of the store cannot be read.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// A file of a run directory cannot be read, so the blobs that the run needs are unknown.
    #[error("cannot {action} {}", shown(path))]
    File {
        /// Attempted action.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// The journal of a run cannot be read.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The plan of a run cannot be read.
    #[error(transparent)]
    Plan(#[from] RunError),
    /// Directories of runs are missing: the runs were removed, or moved.
    #[error("directories of its runs are missing, removed or moved")]
    Missing(Vec<AbsentRun>),
    /// The directories of runs are on other hosts.
    #[error("directories of its runs are on other hosts, so the blobs that they need are unknown")]
    OnOtherHosts(Vec<AbsentRun>),
    /// A run that was named as removed has a directory here, or does not use the store.
    #[error("cannot treat run {run} as removed: {reason}")]
    NotAbsent {
        /// The run.
        run: RunId,
        /// The reason.
        reason: String,
    },
    /// The grace is too short while runs are in progress.
    #[error("a grace below {} is not possible while runs are in progress", minutes(*.least))]
    InProgress {
        /// Their directories.
        runs: Vec<PathBuf>,
        /// The shortest grace.
        least: Duration,
    },
    /// A task ended unexpectedly.
    #[error(transparent)]
    Panic(#[from] TaskPanic),
}

impl BlobsError {
    fn file(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::File { action, path, source }
    }
}

fn minutes(duration: Duration) -> String {
    format!("{} minutes", duration.as_secs() / 60)
}
