//! Removal of the blobs that no run needs.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::stream::{self, TryStreamExt as _};
use rollout_protocol::id::RunId;
use rollout_protocol::limits::BLOB_GRACE_IN_PROGRESS;
use rollout_store::{BlobStore, StoreError, StoreUrl, StoredBlob};

use super::BlobsError;
use super::marks::{DamagePolicy, MarkedDigests, marks_of_runs};
use super::runs::{AbsentRun, RUN_DOCUMENTS, StoreRuns};
use crate::results::files::store::RUNS;

/// Blobs that are removed concurrently.
const PARALLEL_REMOVALS: usize = 16;

/// A collection.
#[derive(Debug, Clone)]
pub struct CollectionRequest {
    /// The store.
    pub store: Arc<dyn BlobStore>,
    /// Its place.
    pub url: StoreUrl,
    /// Blobs that are younger stay.
    pub grace: Duration,
    /// Treat runs of this host without a directory as removed, and damaged documents as naming
    /// nothing.
    pub force: bool,
    /// Runs to treat as removed, whatever host they are on.
    pub forget: Vec<RunId>,
    /// Also remove the store itself when nothing is left in it.
    pub remove_store: bool,
    /// Count only, remove nothing.
    pub dry_run: bool,
}

/// Blobs and their size.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BlobCount {
    /// Number of blobs.
    pub blobs: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Result of a collection.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CollectionReport {
    /// Runs whose blobs were kept.
    pub kept_runs: u64,
    /// Runs whose documents were removed.
    pub removed_runs: Vec<RunId>,
    /// Blobs that a run needs.
    pub needed: BlobCount,
    /// Blobs that no file names yet and that are too young to be removed.
    pub young: BlobCount,
    /// Blobs that were removed.
    pub removed: BlobCount,
    /// Whether the store itself was removed: it had no runs, blobs or documents left.
    pub store_removed: bool,
    /// Why the store was not removed, although it is empty and its removal was asked for.
    pub store_in_use: Option<&'static str>,
}

impl BlobCount {
    fn add(&mut self, blob: &StoredBlob) {
        self.blobs += 1;
        self.bytes += blob.size_bytes;
    }
}

/// Removes the blobs that no run of a store needs, the documents of removed runs, and if asked for the
/// store itself when nothing is left in it.
///
/// # Errors
/// [`BlobsError`]. Nothing was removed unless the store failed.
pub async fn collect(request: &CollectionRequest) -> Result<CollectionReport, BlobsError> {
    let store = &*request.store;
    // Before anything is read: what is stored meanwhile is younger.
    let now = SystemTime::now();
    let mut runs = StoreRuns::find(&request.store, &request.url, &request.forget).await?;
    let removed_runs = removed_runs(request, &mut runs)?;
    check_grace(request, &runs)?;
    let limit = now.checked_sub(request.grace).unwrap_or(SystemTime::UNIX_EPOCH);
    let limit = runs.kept.iter().filter_map(|run| run.keep_since).fold(limit, SystemTime::min);

    let directories = runs.kept.iter().map(|run| run.directory.clone()).collect();
    // Also of runs whose directories do not tell their id yet.
    let ids = runs.kept.iter().filter_map(|run| run.run).chain(runs.with_documents.iter().copied());
    let ids: BTreeSet<RunId> = ids.filter(|run| !removed_runs.contains(run)).collect();
    let ids: Vec<RunId> = ids.into_iter().collect();
    let damage = if request.force { DamagePolicy::Skip } else { DamagePolicy::Refuse };
    let marks = marks_of_runs(store, directories, &ids, damage).await?;

    let mut report = CollectionReport { kept_runs: runs.kept.len() as u64, ..Default::default() };
    for first_byte in 0..=u8::MAX {
        sweep(request, first_byte, &marks, limit, &mut report).await?;
    }
    let removed = remove_documents(request, &removed_runs).await?;
    report.removed_runs = removed_runs;
    let blobs_left = report.needed.blobs + report.young.blobs;
    let is_empty = runs.kept.is_empty() && blobs_left == 0;
    if request.remove_store && is_empty && !has_documents(request, &removed).await? {
        report.store_in_use = remove_store(request).await?;
        report.store_removed = report.store_in_use.is_none();
    }
    Ok(report)
}

/// Removes an empty store; returns why it stays if a process uses it.
async fn remove_store(request: &CollectionRequest) -> Result<Option<&'static str>, BlobsError> {
    if request.dry_run {
        return Ok(None);
    }
    match request.store.remove_store().await {
        Err(StoreError::InUse { reason, .. }) => Ok(Some(reason)),
        removed => Ok(removed.map(|()| None)?),
    }
}

/// The runs to treat as removed.
fn removed_runs(
    request: &CollectionRequest,
    runs: &mut StoreRuns,
) -> Result<Vec<RunId>, BlobsError> {
    for run in &request.forget {
        let of_run = |absent: &AbsentRun| absent.run == *run;
        if !runs.remote.iter().any(of_run) && !runs.missing.iter().any(of_run) {
            let place = runs.kept.iter().find(|kept| kept.run == Some(*run));
            let reason = match place {
                Some(kept) => format!("its directory {} exists", kept.directory.display()),
                None => "the store has nothing of it".to_owned(),
            };
            return Err(BlobsError::NotAbsent { run: *run, reason });
        }
    }
    let forgotten = |absent: &AbsentRun| request.forget.contains(&absent.run);
    let remote = std::mem::take(&mut runs.remote);
    let (mut removed, remote): (Vec<_>, Vec<_>) = remote.into_iter().partition(forgotten);
    if !remote.is_empty() {
        return Err(BlobsError::OnOtherHosts(remote));
    }
    let missing = std::mem::take(&mut runs.missing);
    let (given_up, missing): (Vec<_>, Vec<_>) =
        missing.into_iter().partition(|absent| request.force || forgotten(absent));
    if !missing.is_empty() {
        return Err(BlobsError::Missing(missing));
    }
    removed.extend(given_up);
    // One that was copied to another host is kept for its directory here.
    Ok(removed.into_iter().map(|absent| absent.run).filter(|run| !runs.is_here(*run)).collect())
}

/// Refuses a short grace while a process may be about to name what it stored.
fn check_grace(request: &CollectionRequest, runs: &StoreRuns) -> Result<(), BlobsError> {
    let least = BLOB_GRACE_IN_PROGRESS;
    let in_progress = runs.kept.iter().filter(|run| run.in_progress);
    let runs: Vec<_> = in_progress.map(|run| run.directory.clone()).collect();
    match request.grace < least && !runs.is_empty() {
        true => Err(BlobsError::InProgress { runs, least }),
        false => Ok(()),
    }
}

/// Removes the unneeded blobs whose digest begins with a byte.
async fn sweep(
    request: &CollectionRequest,
    first_byte: u8,
    marks: &MarkedDigests,
    limit: SystemTime,
    report: &mut CollectionReport,
) -> Result<(), BlobsError> {
    let mut old = Vec::new();
    for blob in request.store.list_blobs(first_byte).await? {
        if marks.contains(&blob.digest) {
            report.needed.add(&blob);
        } else if blob.modified > limit {
            report.young.add(&blob);
        } else {
            old.push(blob);
        }
    }
    if request.dry_run {
        old.iter().for_each(|blob| report.removed.add(blob));
        return Ok(());
    }
    let removals = stream::iter(old.into_iter().map(Ok::<_, BlobsError>));
    let removals = removals.map_ok(|blob| async move {
        let removed = request.store.remove_blob(&blob.digest, limit).await?;
        Ok((blob, removed))
    });
    let mut removals = removals.try_buffer_unordered(PARALLEL_REMOVALS);
    while let Some((blob, removed)) = removals.try_next().await? {
        // One that was not removed was stored again, or another collection removed it.
        if removed { report.removed.add(&blob) } else { report.young.add(&blob) }
    }
    Ok(())
}

/// Removes the documents of runs, those that name their directories last. Returns their paths.
async fn remove_documents(
    request: &CollectionRequest,
    runs: &[RunId],
) -> Result<BTreeSet<String>, BlobsError> {
    let store = &*request.store;
    let mut removed = BTreeSet::new();
    for run in runs {
        for kind in RUN_DOCUMENTS.iter().chain([&RUNS]) {
            for path in store.list_documents(&format!("{kind}{run}/")).await? {
                if !request.dry_run {
                    store.remove_document(&path).await?;
                }
                removed.insert(path);
            }
        }
    }
    Ok(removed)
}

/// Whether a store has other documents than those that were removed, or would be.
async fn has_documents(
    request: &CollectionRequest,
    removed: &BTreeSet<String>,
) -> Result<bool, BlobsError> {
    let left = request.store.list_documents("").await?;
    Ok(left.iter().any(|path| !removed.contains(path)))
}
