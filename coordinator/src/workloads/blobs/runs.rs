//! The runs that use a store.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rollout_base::supervise;
use rollout_engine::catalog::{CATALOG, Catalog};
use rollout_engine::journal::{RunLayout, SegmentIndex};
use rollout_engine::{RunLock, RunManifest, RunState};
use rollout_protocol::id::RunId;
use rollout_protocol::limits::BLOB_RENEWAL;
use rollout_store::{BlobStore, StoreUrl};
use tempfile::TempDir;

use super::BlobsError;
use crate::results::files::store::{self, RUNS, RunRegistration};

/// Documents of runs, besides those that name their directories: result markers, the digests of
/// base images, and the catalog.
pub(super) const RUN_DOCUMENTS: [&str; 3] = ["results/", "bases/", CATALOG];

/// Time between storing a blob and writing the file that names it, at most, plus the age up to which
/// content that is stored again is not renewed: blobs of a session are at most this much older than
/// the session.
const SESSION_MARGIN: Duration = BLOB_RENEWAL.saturating_add(Duration::from_secs(60 * 60));

/// A run whose directory is here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptRun {
    /// Its id; `None` before it was opened.
    pub run: Option<RunId>,
    /// Its directory.
    pub directory: PathBuf,
    /// Whether a process owns it.
    pub in_progress: bool,
    /// Blobs that were modified since are kept: results may be on their way.
    pub keep_since: Option<SystemTime>,
}

/// A run whose directory is not here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AbsentRun {
    /// Its id.
    pub run: RunId,
    /// The directories that it registered. Empty if the store only has other documents of it.
    pub registered: Vec<RunRegistration>,
}

/// All runs of a store.
#[derive(Debug, Default)]
pub(super) struct StoreRuns {
    /// Runs whose directories are here; one with several directories is listed for each.
    pub(super) kept: Vec<KeptRun>,
    /// Runs of this host without a directory.
    pub(super) missing: Vec<AbsentRun>,
    /// Runs with a directory on another host, or of which no directory is known.
    pub(super) remote: Vec<AbsentRun>,
    /// Every run that the store has documents of.
    pub(super) with_documents: Vec<RunId>,
    /// Copies of the runs in the catalog, which count as their directories.
    copies: Option<TempDir>,
}

impl StoreRuns {
    /// Finds the runs of a store. Those to `forget` are not read from its catalog.
    pub(super) async fn find(
        store: &Arc<dyn BlobStore>,
        url: &StoreUrl,
        forget: &[RunId],
    ) -> Result<Self, BlobsError> {
        let mut registered: BTreeMap<RunId, Vec<RunRegistration>> = BTreeMap::new();
        for registration in store::runs_using(&**store).await? {
            registered.entry(registration.run).or_default().push(registration);
        }
        for run in runs_with_documents(&**store).await? {
            registered.entry(run).or_default();
        }
        let directory = url.directory().map(Path::to_owned);
        let found = supervise::blocking(move || Self::sort(registered, directory.as_deref()));
        let mut found = found.await?;
        found.add_catalog(store, forget).await?;
        found.find_beginnings(store).await?;
        Ok(found)
    }

    /// Counts runs that never began as missing: of them the store has only what the beginning of a
    /// session writes to the catalog, from long ago.
    async fn find_beginnings(&mut self, store: &Arc<dyn BlobStore>) -> Result<(), BlobsError> {
        for absent in std::mem::take(&mut self.remote) {
            let is_old =
                absent.registered.is_empty() && is_old_beginning(store, absent.run).await?;
            match is_old {
                true => self.missing.push(absent),
                false => self.remote.push(absent),
            }
        }
        Ok(())
    }

    /// Counts the runs in the catalog as kept: it has all that their directories name.
    async fn add_catalog(
        &mut self,
        store: &Arc<dyn BlobStore>,
        forget: &[RunId],
    ) -> Result<(), BlobsError> {
        let catalog = Catalog::new(Arc::clone(store));
        let headers = catalog.runs().await?;
        let kept: Vec<_> = headers.iter().filter(|run| !forget.contains(&run.run)).collect();
        if kept.is_empty() {
            return Ok(());
        }
        let copies = supervise::blocking(tempfile::tempdir).await;
        let copies =
            copies.map_err(BlobsError::file("create a directory in", &std::env::temp_dir()))?;
        for header in kept {
            let directory = copies.path().join(header.run.to_string());
            catalog.download(header.run, &RunLayout::new(&directory)).await?;
            let of = directory.clone();
            let Some(copy) = supervise::blocking(move || look_at_copy(&of)).await? else {
                continue;
            };
            self.missing.retain(|absent| absent.run != header.run);
            self.remote.retain(|absent| absent.run != header.run);
            self.kept.push(copy);
        }
        self.copies = Some(copies);
        Ok(())
    }

    fn sort(
        registered: BTreeMap<RunId, Vec<RunRegistration>>,
        store: Option<&Path>,
    ) -> Result<Self, BlobsError> {
        let with_documents = registered.keys().copied().collect();
        let mut found = Self { with_documents, ..Self::default() };
        let directories = registered.values().flatten().map(|each| each.directory.clone());
        let beside = store.map(sibling_runs).unwrap_or_default();
        let directories: BTreeSet<PathBuf> = directories.chain(beside).collect();
        for directory in directories {
            found.kept.extend(look_at(&directory)?);
        }
        for (run, registered) in registered {
            let is_kept = |each: &RunRegistration| {
                found.kept.iter().any(|kept| {
                    kept.directory == each.directory && kept.run.is_none_or(|id| id == run)
                })
            };
            // A directory of another host that is seen here is the same one only on a shared file
            // system; otherwise it is a copy.
            let is_seen_here = |each: &RunRegistration| {
                each.is_of_this_host()
                    || is_kept(each) && rollout_engine::is_shared(&each.directory)
            };
            let has_directory = found.kept.iter().any(|kept| kept.run == Some(run));
            if registered.is_empty() && has_directory {
                continue;
            }
            // Without a registration its directory may be anywhere.
            if registered.is_empty() || !registered.iter().all(is_seen_here) {
                found.remote.push(AbsentRun { run, registered });
            } else if !registered.iter().any(is_kept) && !has_directory {
                found.missing.push(AbsentRun { run, registered });
            }
        }
        Ok(found)
    }

    /// Whether a run has a directory here.
    pub(super) fn is_here(&self, run: RunId) -> bool {
        self.kept.iter().any(|kept| kept.run == Some(run))
    }
}

/// Runs that have documents in a store. Listed in sixteen parts, because a large run has many.
async fn runs_with_documents(store: &dyn BlobStore) -> Result<BTreeSet<RunId>, BlobsError> {
    let mut found = BTreeSet::new();
    for kind in RUN_DOCUMENTS.iter().chain([&RUNS]) {
        for digit in "0123456789abcdef".chars() {
            for path in store.list_documents(&format!("{kind}{digit}")).await? {
                let run = path.strip_prefix(kind).and_then(|rest| rest.split('/').next());
                found.extend(run.and_then(|run| run.parse::<RunId>().ok()));
            }
        }
    }
    Ok(found)
}

/// Whether a store has nothing of a run but a session that began long ago and went no further.
async fn is_old_beginning(store: &Arc<dyn BlobStore>, run: RunId) -> Result<bool, BlobsError> {
    for kind in RUN_DOCUMENTS.iter().filter(|kind| **kind != CATALOG) {
        if !store.list_documents(&format!("{kind}{run}/")).await?.is_empty() {
            return Ok(false);
        }
    }
    let catalog = Catalog::new(Arc::clone(store));
    if !catalog.has_only_beginnings(run).await? {
        return Ok(false);
    }
    let copy = supervise::blocking(tempfile::tempdir).await;
    let copy = copy.map_err(BlobsError::file("create a directory in", &std::env::temp_dir()))?;
    let layout = RunLayout::new(copy.path());
    catalog.download(run, &layout).await?;
    let index = supervise::blocking(move || SegmentIndex::read(&layout)).await?;
    let began = index.last_session_start().map(SystemTime::from);
    Ok(began.is_some_and(|began| began.elapsed().is_ok_and(|age| age > SESSION_MARGIN)))
}

/// The run in a copy of a directory. Its owner may be on another host, unless it is completed.
/// `None` for a copy without a plan: it does not name everything that the run needs.
fn look_at_copy(directory: &Path) -> Result<Option<KeptRun>, BlobsError> {
    let layout = RunLayout::new(directory);
    let Some(found) = look_at(directory)?.filter(|_| layout.plan().exists()) else {
        return Ok(None);
    };
    let index = SegmentIndex::read(&layout)?;
    // The manifest is that of the last session that ended.
    let last = index.openings().next_back().map(|opened| opened.epoch);
    let manifest = RunManifest::read(&layout)?;
    let ended = manifest.filter(|manifest| manifest.state == RunState::Completed);
    let in_progress = ended.map(|manifest| manifest.epoch) != last;
    let session = index.last_session_start().map(SystemTime::from);
    let session = session.and_then(|at| at.checked_sub(SESSION_MARGIN));
    let keep_since = in_progress.then(|| session.unwrap_or(SystemTime::UNIX_EPOCH));
    Ok(Some(KeptRun { in_progress, keep_since, ..found }))
}

/// The run in a directory, if there is one.
pub(super) fn look_at(directory: &Path) -> Result<Option<KeptRun>, BlobsError> {
    if !is_run(directory).map_err(BlobsError::file("look at", directory))? {
        return Ok(None);
    }
    let layout = match RunLayout::is_search(directory) {
        true => RunLayout::for_search(directory),
        false => RunLayout::new(directory),
    };
    let in_progress =
        RunLock::is_held(&layout).map_err(BlobsError::file("look at the lock of", directory))?;
    let segments = SegmentIndex::read(&layout)?;
    let last = segments.openings().next_back();
    let is_remote = last.is_some_and(|last| last.pool.is_some());
    // Reports that no session has read may be on a server.
    let is_open = in_progress || is_remote && !is_completed(&layout);
    let started = segments.last_session_start().map(SystemTime::from);
    let started = started.and_then(|started| started.checked_sub(SESSION_MARGIN));
    Ok(Some(KeptRun {
        run: last.map(|last| last.run),
        directory: directory.to_owned(),
        in_progress,
        keep_since: is_open.then(|| started.unwrap_or(SystemTime::UNIX_EPOCH)),
    }))
}

fn is_completed(layout: &RunLayout) -> bool {
    let manifest = RunManifest::read(layout).ok().flatten();
    manifest.is_some_and(|manifest| manifest.state == RunState::Completed)
}

/// The run directories beside a store that is the default store of a jobs directory.
fn sibling_runs(store: &Path) -> Vec<PathBuf> {
    let store = store.canonicalize().unwrap_or_else(|_| store.to_owned());
    let own = store.ends_with(".rollout/blobs");
    let jobs = store.ancestors().nth(2).filter(|_| own);
    let entries = jobs.and_then(|jobs| std::fs::read_dir(jobs).ok());
    let paths = entries.into_iter().flatten().flatten().map(|entry| entry.path());
    // One that cannot be read counts: the collection fails then.
    paths.filter(|path| is_run(path).unwrap_or(true) && uses_store(path, &store)).collect()
}

/// Whether there is a run directory. Only its absence means that the run was removed: a directory
/// may also be out of reach.
fn is_run(path: &Path) -> io::Result<bool> {
    match std::fs::metadata(path.join("journal")) {
        Ok(found) => Ok(found.is_dir()),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// Whether a run in a jobs directory uses the store of that directory, by its own record.
fn uses_store(run_dir: &Path, store: &Path) -> bool {
    store::find(run_dir).is_ok_and(|found| found.directory() == Some(store))
}
