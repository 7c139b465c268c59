//! The digests that a run names: in its files, in its documents in the store, and one level down in
//! the JSON documents that these name (specs and records). A digest need not be that of a blob.

use std::collections::HashMap;
use std::fs::File;
use std::io::{ErrorKind, Read as _};
use std::path::{Path, PathBuf};

use futures_util::stream::{self, TryStreamExt as _};
use rollout_base::supervise;
use rollout_engine::catalog::CATALOG;
use rollout_engine::journal::RunLayout;
use rollout_protocol::digest::Digest;
use rollout_protocol::id::RunId;
use rollout_protocol::limits;
use rollout_protocol::wire::marker::ResultMarker;
use rollout_store::{BlobStore, StoreError};

use super::BlobsError;
use super::event_chunks::{ChunkScanner, EventChunks};
use super::scan::{DigestScanner, scan};
use crate::plan::JobPlan;
use crate::workloads::job::read_previous_plan;

/// Documents that are read concurrently: most of the time of a small read is spent waiting.
const PARALLEL_READS: usize = 16;

/// Buffer for reading files.
const BUFFER_BYTES: usize = 256 * 1024;

/// Deepest level of directories below `eval/` and `repair-<n>/` that has files of the run itself.
const DEPTH: usize = 4;

/// Treatment of damaged documents, which may name blobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DamagePolicy {
    /// They name nothing, and are reported otherwise.
    Skip,
    /// They end the search: their blobs are unknown.
    Refuse,
}

/// Digests, and whether each is known to be that of a blob.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MarkedDigests {
    digests: HashMap<Digest, bool>,
}

impl MarkedDigests {
    /// Whether a digest is marked.
    pub fn contains(&self, digest: &Digest) -> bool {
        self.digests.contains_key(digest)
    }

    /// Every digest, and whether it is known to be that of a blob, ascending.
    pub fn into_sorted(self) -> Vec<(Digest, bool)> {
        let mut all: Vec<_> = self.digests.into_iter().collect();
        all.sort_unstable();
        all
    }

    fn add(&mut self, digest: Digest, is_blob: bool) {
        *self.digests.entry(digest).or_default() |= is_blob;
    }

    fn scan(&mut self, text: &[u8]) {
        scan(text, |digest, is_blob| self.add(digest, is_blob));
    }

    /// Marks what the files of a run directory name. Blocks on the file system.
    /// Returns the chunks of hook events, some of which may not be needed any more.
    fn add_directory(&mut self, run_dir: &Path) -> Result<EventChunks, BlobsError> {
        let mut chunks = EventChunks::default();
        for path in durable_files(run_dir)? {
            self.add_file(&path, &mut chunks)?;
        }
        chunks.read_executions(run_dir);
        let plan = read_previous_plan(&RunLayout::new(run_dir));
        plan?.iter().for_each(|plan| self.add_plan(plan));
        // A directory that was moved away meanwhile was read in part only.
        let journal = run_dir.join("journal");
        std::fs::metadata(&journal).map_err(BlobsError::file("find", &journal))?;
        Ok(chunks)
    }

    /// Marks the documents of a plan that its file contains instead of naming them.
    fn add_plan(&mut self, plan: &JobPlan) {
        let settings = Digest::sha256_json(plan.settings());
        let agents = plan.agents().iter().map(|agent| Digest::sha256_json(&agent.spec));
        for digest in agents.chain([settings]) {
            self.add(digest.expect("a plan that was read has a JSON form"), true);
        }
        plan.tasks().iter().for_each(|task| self.add(task.spec, true));
    }

    fn add_file(&mut self, path: &Path, chunks: &mut EventChunks) -> Result<(), BlobsError> {
        let mut file = match File::open(path) {
            // A temporary file, or one that was replaced. Those of the journal stay.
            Err(error) if error.kind() == ErrorKind::NotFound && !is_of_journal(path) => {
                return Ok(());
            }
            file => file.map_err(BlobsError::file("open", path))?,
        };
        let (mut scanner, mut buffer) = (DigestScanner::default(), vec![0; BUFFER_BYTES]);
        let mut chunk_scanner = is_of_journal(path).then(ChunkScanner::default);
        loop {
            match file.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(read) => {
                    scanner.scan(&buffer[..read], |digest, is_blob| self.add(digest, is_blob));
                    if let Some(scanner) = &mut chunk_scanner {
                        scanner.scan(&buffer[..read], chunks);
                    }
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(BlobsError::file("read", path)(error)),
            }
        }
    }

    /// Marks what the documents of a run in the store name. Only result markers name blobs, in their
    /// path.
    async fn add_results(&mut self, store: &dyn BlobStore, run: RunId) -> Result<(), BlobsError> {
        let mut paths = store.list_documents(&format!("{CATALOG}{run}/files/")).await?;
        while let Some(path) = paths.pop() {
            match store.get_document(&path).await? {
                Some(text) => self.scan(&text),
                // It was replaced by a new one.
                None => paths = store.list_documents(&format!("{CATALOG}{run}/files/")).await?,
            }
        }
        for path in store.list_documents(&format!("results/{run}/")).await? {
            match ResultMarker::parse(&path) {
                Some(marker) => self.add(marker.record, true),
                None => {
                    let text = store.get_document(&path).await?;
                    self.scan(&text.unwrap_or_default());
                }
            }
        }
        Ok(())
    }

    /// Marks what the JSON documents among the marked digests name.
    async fn add_documents(
        &mut self,
        store: &dyn BlobStore,
        damage: DamagePolicy,
    ) -> Result<(), BlobsError> {
        let named: Vec<Digest> = self.digests.keys().copied().collect();
        let reads = stream::iter(named.into_iter().map(Ok::<_, BlobsError>));
        let reads = reads.map_ok(|digest| read_document(store, digest, damage));
        let mut reads = reads.try_buffer_unordered(PARALLEL_READS);
        while let Some(found) = reads.try_next().await? {
            found.into_iter().for_each(|(digest, is_blob)| self.add(digest, is_blob));
        }
        Ok(())
    }
}

/// The digests that runs name: of their directories, and of their documents in the store.
///
/// # Errors
/// [`BlobsError`] if a file, document or blob cannot be read: then the digests are unknown.
pub(super) async fn marks_of_runs(
    store: &dyn BlobStore,
    directories: Vec<PathBuf>,
    runs: &[RunId],
    damage: DamagePolicy,
) -> Result<MarkedDigests, BlobsError> {
    let (mut marks, chunks) = supervise::blocking(move || {
        let (mut marks, mut chunks) = (MarkedDigests::default(), Vec::new());
        for directory in directories {
            chunks.push(marks.add_directory(&directory)?);
        }
        Ok::<_, BlobsError>((marks, chunks))
    })
    .await?;
    for run in runs {
        marks.add_results(store, *run).await?;
    }
    marks.add_documents(store, damage).await?;
    for chunks in chunks {
        // They name nothing.
        chunks.needed(store).await.into_iter().for_each(|digest| marks.add(digest, true));
    }
    Ok(marks)
}

/// The digests that one run names.
///
/// # Errors
/// [`BlobsError`].
pub async fn marks_of_run(
    store: &dyn BlobStore,
    run_dir: &Path,
) -> Result<MarkedDigests, BlobsError> {
    let directory = run_dir.to_owned();
    let run = supervise::blocking(move || super::runs::look_at(&directory)).await?;
    let runs: Vec<RunId> = run.and_then(|run| run.run).into_iter().collect();
    marks_of_runs(store, vec![run_dir.to_owned()], &runs, DamagePolicy::Skip).await
}

/// The digests in a blob, if it is a JSON document of usual size. Absent and damaged blobs name
/// nothing, unless damage is refused.
async fn read_document(
    store: &dyn BlobStore,
    digest: Digest,
    damage: DamagePolicy,
) -> Result<Vec<(Digest, bool)>, BlobsError> {
    let mut found = Vec::new();
    match store.get_bytes(&digest, limits::DOCUMENT_BYTES).await {
        Ok(text) if text.starts_with(b"{") => {
            scan(&text, |digest, is_blob| found.push((digest, is_blob)));
        }
        Ok(_) | Err(StoreError::Missing { .. } | StoreError::TooLarge { .. }) => {}
        Err(error @ StoreError::Corrupt { .. }) if damage == DamagePolicy::Skip => {
            tracing::warn!("{error}");
        }
        Err(error) => return Err(error.into()),
    }
    Ok(found)
}

/// The files of a run directory that may name blobs: everything that is not a copy of a trial's or
/// an eval's results, a checkout, or working state.
fn durable_files(run_dir: &Path) -> Result<Vec<PathBuf>, BlobsError> {
    let mut found = Vec::new();
    list(run_dir, 0, &|_| true, &mut found)?;
    for name in ["journal", "records", "repository"] {
        list(&run_dir.join(name), 0, &|_| true, &mut found)?;
    }
    list(&run_dir.join("eval"), DEPTH, &is_json, &mut found)?;
    let entries = std::fs::read_dir(run_dir).map_err(BlobsError::file("list", run_dir))?;
    for entry in entries {
        let entry = entry.map_err(BlobsError::file("list", run_dir))?;
        if entry.file_name().to_string_lossy().starts_with("repair-") {
            list(&entry.path(), DEPTH, &|_| true, &mut found)?;
        }
    }
    Ok(found)
}

fn is_of_journal(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "log")
}

fn is_json(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "json")
}

/// Adds the regular files of a directory and of `depth` levels below it.
fn list(
    directory: &Path,
    depth: usize,
    wanted: &dyn Fn(&Path) -> bool,
    found: &mut Vec<PathBuf>,
) -> Result<(), BlobsError> {
    let entries = match std::fs::read_dir(directory) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(());
        }
        entries => entries.map_err(BlobsError::file("list", directory))?,
    };
    for entry in entries {
        let entry = entry.map_err(BlobsError::file("list", directory))?;
        let (path, kind) = (entry.path(), entry.file_type());
        let kind = kind.map_err(BlobsError::file("look at", &path))?;
        let is_file = match kind.is_symlink() {
            true => std::fs::metadata(&path).is_ok_and(|target| target.is_file()),
            false => kind.is_file(),
        };
        if kind.is_dir() && depth > 0 {
            list(&path, depth - 1, wanted, found)?;
        } else if is_file && wanted(&path) {
            found.push(path);
        }
    }
    Ok(())
}
