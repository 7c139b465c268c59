//! Results of an execution as files below the directory of its eval.
//!
//! ```text
//! eval/<eval>/attempt-<n>/<results file>        the sweep's results
//! eval/<eval>/experiment/attempt-<n>/record.json
//!                                   /<command>/stdout.txt, stderr.txt
//!                                   /logs/       files of the commands' logs directory
//!                                   /sweep_logs/ the same of the sweep's own environment
//!                                   /output/     files of the sweep's output directory
//! ```

use std::path::{Path, PathBuf};

use rollout_base::backoff::error_chain;
use rollout_base::fs_make::make_directory;
use rollout_base::shown_path::shown;
use rollout_base::{durable, supervise};
use rollout_engine::RunError;
use rollout_engine::atomic_file::write_json;
use rollout_protocol::blob::BlobRef;
use rollout_protocol::record::EvalRecord;
use rollout_store::archive::{self, ArchiveError, ArchiveLimits, ArchivePath, ExtractBlobError};
use rollout_store::{BlobStore, StoreError};

/// Failure to write results.
#[derive(Debug, thiserror::Error)]
pub enum ResultsError {
    /// The blob store failed.
    #[error("cannot fetch {what}")]
    Store {
        /// The object.
        what: String,
        /// The error of the store.
        #[source]
        source: StoreError,
    },
    /// An archive is invalid.
    #[error("cannot unpack {what}")]
    Archive {
        /// The archive.
        what: &'static str,
        /// The error of the archive.
        #[source]
        source: ArchiveError,
    },
    /// The local disk failed.
    #[error("cannot {action} {}", shown(path))]
    Disk {
        /// The action, an infinitive.
        action: &'static str,
        /// The path.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// A file of the run failed.
    #[error(transparent)]
    Run(#[from] RunError),
}

impl ResultsError {
    /// Whether a retry may succeed.
    pub(super) fn is_transient(&self) -> bool {
        matches!(self, Self::Store { source, .. } if source.is_transient())
    }

    pub(super) fn disk(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Disk { action, path, source }
    }
}

/// Writes the files of an attempt below `root`, the directory of its eval; replaces those of the
/// same attempt. They are durable on return. Returns the path of the results, if any.
pub(super) async fn write(
    store: &dyn BlobStore,
    record: &EvalRecord,
    root: &Path,
    attempt: u32,
    results_file: &str,
) -> Result<Option<String>, ResultsError> {
    let name = format!("attempt-{attempt}");
    let (tried, experiment) = (root.join(&name), root.join("experiment").join(&name));
    for dir in [&tried, &experiment] {
        match tokio::fs::remove_dir_all(dir).await {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(ResultsError::disk("remove", dir)(error));
            }
            _ => {}
        }
        let made = dir.clone();
        // Not the directory of the search: it may have been moved.
        let made = supervise::blocking(move || make_directory(&made, 2)).await;
        made.map_err(ResultsError::disk("create", dir))?;
    }
    write_json(&experiment.join("record.json"), record)?;
    for output in &record.outputs {
        // The worker chose the path: accept only a plain relative path.
        let Ok(Some(path)) = ArchivePath::clean(output.path.as_bytes()) else { continue };
        best_effort(fetch(store, &output.blob, &experiment.join(path.as_path())).await)?;
    }
    for (what, name, archive) in archives(record) {
        best_effort(unpack(store, what, archive, &experiment.join(name)).await)?;
    }
    let path = record.results.as_ref().map(|_| format!("{name}/{results_file}"));
    if let (Some(blob), Some(path)) = (&record.results, &path) {
        fetch(store, blob, &root.join(path)).await?;
    }
    // The result of the eval is durable next, and then no session writes these files again.
    let root = root.to_owned();
    supervise::blocking(move || sync(&root, [&tried, &experiment])).await?;
    Ok(path)
}

/// The archives of a record: what each holds, and the name of its directory.
pub(super) fn archives(
    record: &EvalRecord,
) -> impl Iterator<Item = (&'static str, &'static str, &BlobRef)> {
    let archives = [
        ("the logs", "logs", record.logs.as_ref()),
        ("the sweep's logs", "sweep_logs", record.sweep_logs.as_deref()),
        ("the sweep's output", "output", record.sweep_output.as_ref()),
    ];
    archives.into_iter().filter_map(|(what, name, logs)| Some((what, name, &logs?.archive)))
}

/// Syncs the directories of an attempt and those above them, up to the one of all evals.
fn sync(root: &Path, written: [&Path; 2]) -> Result<(), ResultsError> {
    for dir in written {
        durable::sync_tree(dir).map_err(ResultsError::disk("sync", dir))?;
    }
    let experiments = root.join("experiment");
    for dir in [experiments.as_path(), root, root.parent().unwrap_or(root)] {
        durable::sync_directory(dir).map_err(ResultsError::disk("sync", dir))?;
    }
    Ok(())
}

/// Ignores a permanent failure to fetch outputs: nothing depends on them.
pub(super) fn best_effort(written: Result<(), ResultsError>) -> Result<(), ResultsError> {
    match written {
        Err(error @ (ResultsError::Store { .. } | ResultsError::Archive { .. }))
            if !error.is_transient() =>
        {
            tracing::warn!("an output is not available: {}", error_chain(&error));
            Ok(())
        }
        written => written,
    }
}

async fn create_directory(dir: &Path) -> Result<(), ResultsError> {
    tokio::fs::create_dir_all(dir).await.map_err(ResultsError::disk("create", dir))
}

pub(super) async fn fetch(
    store: &dyn BlobStore,
    blob: &BlobRef,
    to: &Path,
) -> Result<(), ResultsError> {
    if let Some(parent) = to.parent() {
        create_directory(parent).await?;
    }
    let failed = |source| ResultsError::Store { what: shown(to).to_string(), source };
    store.get_file(&blob.digest, to).await.map_err(failed)
}

/// Unpacks an archive; a truncated one gives the files that it has.
pub(super) async fn unpack(
    store: &dyn BlobStore,
    what: &'static str,
    archive: &BlobRef,
    into: &Path,
) -> Result<(), ResultsError> {
    let extracted =
        archive::extract_blob(store, &archive.digest, into, ArchiveLimits::ARTIFACTS).await;
    let report = extracted.map_err(|error| match error {
        ExtractBlobError::Store(source) => ResultsError::Store { what: what.to_owned(), source },
        ExtractBlobError::Archive(source) => ResultsError::Archive { what, source },
    })?;
    if let Some(cut) = report.cut {
        tracing::warn!("the archive of {what} in {} is truncated: {cut}", into.display());
    }
    Ok(())
}
