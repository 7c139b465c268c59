//! The catalog: runs in a blob store, so that any host can list, read and continue them with the
//! store alone.
//!
//! # Documents of the store
//! ```text
//! catalog/<run>/header                             id, job and start of the run; created once
//! catalog/<run>/journal/<epoch>/opening            the first bytes of a segment; created once
//! catalog/<run>/journal/<epoch>/successor          the epoch of the next segment
//! catalog/<run>/journal/<epoch>/<start>-<end>      bytes of a segment: one batch, or many joined
//! catalog/<run>/files/<epoch>-<n>                  files of the run as blobs; the last one counts
//! ```
//! Documents are never replaced. Only one process can create an opening, so each session has a
//! segment of its own. Small pieces are joined into larger ones during the session, then removed; a
//! reader takes the longest piece at each position. Files are those of a run directory that no
//! journal can restore (plan, configuration, what a resumption needs) and, from the end of a session
//! on, the manifest, records, result and tables.
//!
//! A run directory of a host is a copy that [`Catalog::download`] makes.

mod files;
mod header;
mod mirror;
mod piece;
mod segments;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::Arc;

use rollout_base::shown_path::shown;
use rollout_protocol::id::RunId;
use rollout_store::{BlobStore, StoreError};

pub use self::files::{CatalogFile, OtherFiles};
pub use self::header::CatalogHeader;
pub use self::mirror::{CatalogMirror, MirrorOptions};
use super::journal::{JournalError, MirrorError};

/// Path prefix of the documents of all runs.
pub const CATALOG: &str = "catalog/";

/// Requests at a time while a run is read.
const CONCURRENT_READS: usize = 16;

/// The catalog of a blob store.
#[derive(Debug, Clone)]
pub struct Catalog {
    store: Arc<dyn BlobStore>,
}

/// Why a catalog cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum CatalogError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A document is not one that this version can read.
    #[error("cannot read the document {path} of the catalog: {reason}")]
    Document {
        /// Its path in the store.
        path: String,
        /// The reason.
        reason: String,
    },
    /// A part of a journal is missing.
    #[error("the catalog lacks bytes of session {epoch} of run {run} from byte {offset} on")]
    Gap {
        /// The run.
        run: RunId,
        /// The session.
        epoch: u32,
        /// Bytes before the gap.
        offset: u64,
    },
    /// No run matches.
    #[error("the catalog has no run {0}")]
    NoRun(String),
    /// Several runs match.
    #[error("the catalog has {} runs{}: name one of {}", runs.len(), name, names(runs))]
    Ambiguous {
        /// ` named …`, or nothing.
        name: String,
        /// The runs.
        runs: Vec<CatalogHeader>,
    },
    /// A user ended the wait for the store.
    #[error("stopped while waiting for the store")]
    Interrupted,
    /// A file of the local copy cannot be written or read.
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
}

fn names(runs: &[CatalogHeader]) -> String {
    let each = runs.iter().map(|run| format!("{} ({})", run.run, run.job));
    each.collect::<Vec<_>>().join(", ")
}

impl CatalogError {
    fn file(action: &'static str, path: &std::path::Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::File { action, path, source }
    }

    /// Whether a retry may succeed.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Store(error) if error.is_transient())
    }
}

impl From<CatalogError> for JournalError {
    fn from(error: CatalogError) -> Self {
        match error {
            CatalogError::Store(error) => Self::Mirror(MirrorError::Store(error)),
            CatalogError::File { action, path, source } => Self::Io { action, path, source },
            CatalogError::Interrupted => Self::Mirror(MirrorError::Interrupted),
            error => Self::Mirror(MirrorError::Unusable(error.to_string())),
        }
    }
}

impl Catalog {
    /// The catalog of a store.
    pub fn new(store: Arc<dyn BlobStore>) -> Self {
        Self { store }
    }
}

/// Path prefix of the documents of a run.
fn run_prefix(run: RunId) -> String {
    format!("{CATALOG}{run}/")
}
