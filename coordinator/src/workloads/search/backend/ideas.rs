//! Idea commands as items of the search's run: their inputs and outputs.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rollout_base::shown_path::shown;
use rollout_base::{durable, fs_remove, supervise};
use rollout_engine::atomic_file;
use rollout_engine::core::ItemSettlement;
use rollout_protocol::blob::{BlobRef, MediaType};
use rollout_protocol::digest::Digest;
use rollout_protocol::id::ItemId;
use rollout_protocol::item_name::{IdeasName, ItemName};
use rollout_protocol::limits;
use rollout_protocol::record::{IdeasRecord, ItemOutcome};
use rollout_protocol::spec::eval::EvalStage;
use rollout_protocol::spec::ideas::{
    EarlierIdeas, IdeasSpec, MAX_IDEA_BYTES, MAX_IDEAS, invalid_idea_reason,
};
use rollout_store::archive::{
    self, ArchiveError, ArchiveLimits, ArchivePath, ExtractBlobError, FilterDecision,
};
use rollout_store::{BlobStore, StoreError, get_json, put_json};

use super::live::{LiveBackend, backend_error, with_retry, with_retry_if};
use super::outcome::superseded_cost;
use super::requests::{RunNotification, WorkKind, WorkRequest};
use super::results::{self, ResultsError};
use crate::workloads::search::driver::{
    BackendError, CALLS_FILE, COST_FILE, IdeasOrder, SearchError, read_user_ideas,
};
use crate::workloads::search::manifest::StepCalls;
use rollout_protocol::search::NodeId;

/// Limits of a directory of earlier ideas, and of the ideas of a node.
const NODE_IDEAS_LIMITS: ArchiveLimits =
    ArchiveLimits { entries: MAX_IDEAS as u64, bytes: MAX_IDEAS as u64 * MAX_IDEA_BYTES };

/// Limits of the context pack: a few files of bounded size.
const CONTEXT_PACK_LIMITS: ArchiveLimits =
    ArchiveLimits { entries: 100, bytes: limits::RESULTS_BYTES };

/// Failure to store the inputs of a command or to accept its ideas.
#[derive(Debug, thiserror::Error)]
enum IdeasError {
    #[error("cannot access the blob store")]
    Store(#[from] StoreError),
    #[error("cannot pack or unpack {}", shown(path))]
    Archive {
        path: PathBuf,
        #[source]
        source: ArchiveError,
    },
    #[error("cannot {action} {}", shown(path))]
    Disk {
        action: &'static str,
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error(transparent)]
    Results(#[from] ResultsError),
}

impl IdeasError {
    /// Whether a retry may succeed.
    fn is_transient(&self) -> bool {
        match self {
            Self::Store(error) => error.is_transient(),
            Self::Results(error) => error.is_transient(),
            Self::Archive { .. } | Self::Disk { .. } => false,
        }
    }
}

fn io_error(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> IdeasError {
    let path = path.to_owned();
    move |source| IdeasError::Disk { action, path, source }
}

/// A requested idea command.
pub(super) struct PendingIdeas {
    item: ItemId,
    order: IdeasOrder,
}

impl LiveBackend {
    /// Gets ideas written for all nodes; calls `done` for each node that has them.
    pub(super) fn write_ideas(
        &mut self,
        orders: Vec<IdeasOrder>,
        done: &mut dyn FnMut(NodeId) -> Result<(), SearchError>,
    ) -> Result<(), SearchError> {
        let pending = orders.into_iter().map(|order| self.request_ideas(order));
        let mut asked = pending.collect::<Result<Vec<_>, _>>()?;
        self.requests.set_waiting();
        while !asked.is_empty() {
            let item = match self.handle.block_on(self.notifications.recv()) {
                Some(RunNotification::Settled(item)) => item,
                Some(RunNotification::Ended) | None => return Err(BackendError::Stopped.into()),
            };
            let Some(at) = asked.iter().position(|asked| asked.item == item) else {
                // An eval was settled meanwhile: `next_result` handles it.
                self.settled_evals.push_back(item);
                continue;
            };
            let PendingIdeas { order, .. } = asked.swap_remove(at);
            self.conclude_ideas(&item, &order)?;
            done(order.node.node_id)?;
        }
        Ok(())
    }

    fn request_ideas(&mut self, order: IdeasOrder) -> Result<PendingIdeas, BackendError> {
        let node = order.node.node_id;
        let failed = "cannot prepare a command for ideas";
        let commit = order.node.commit.clone();
        let repository = self.repository()?.spec(&commit).map_err(backend_error(failed))?;
        let (store, handle) = (Arc::clone(&self.store), self.handle.clone());
        let inputs = handle.block_on(store_inputs(&store, &order));
        let (earlier, pack) = inputs.map_err(backend_error(failed))?;
        let spec: IdeasSpec = self.plan.spec_of_ideas(&order, repository, earlier, pack);
        let stored = handle.block_on(with_retry(async || put_json(&*store, &spec).await));
        let spec = stored.map_err(backend_error(failed))?.digest;
        let (item, attempt) = self.ideas_item(&order, &spec);
        let search = self.tree.name.clone();
        let name = ItemName::Ideas(IdeasName { search, node, attempt });
        self.requests.request(WorkRequest { kind: WorkKind::Ideas, item, spec, name });
        Ok(PendingIdeas { item, order })
    }

    /// The key of a command and its attempt: a command that failed in a former session of the run
    /// is run again.
    fn ideas_item(&self, order: &IdeasOrder, spec: &Digest) -> (ItemId, u32) {
        let (tree, node) = (&self.tree.name, order.node.node_id.0);
        let mut attempt = 1;
        loop {
            let item = ItemId::for_ideas(tree, node, order.round, attempt, spec);
            let settled = self.requests.settlement(&item);
            if settled.is_none_or(|settled| settled.verdict.outcome == ItemOutcome::Completed) {
                return (item, attempt);
            }
            attempt += 1;
        }
    }

    /// Writes the ideas and logs of an ended command.
    fn conclude_ideas(&self, item: &ItemId, order: &IdeasOrder) -> Result<(), BackendError> {
        let node = order.node.node_id;
        let what = format!("the command `ideas` for node {node}");
        let settled = self.requests.settlement(item).ok_or(BackendError::Stopped)?;
        let record = self.read_ideas_record(&settled)?;
        let logs = self.tree.run_dir().join("logs").join("ideas").join(node.to_string());
        let store = &*self.store;
        if let Some(record) = &record {
            self.fence.check()?;
            let writing = with_retry_if(IdeasError::is_transient, async || {
                write_logs(store, record, &logs).await
            });
            let written = self.handle.block_on(writing);
            written.map_err(backend_error("cannot write the logs of a command for ideas"))?;
        }
        if settled.verdict.outcome != ItemOutcome::Completed {
            let error = settled.verdict.error.as_ref();
            let reason = error.map_or("it ended without ideas", |error| &error.message).to_owned();
            return Err(BackendError::Failed { what, reason });
        }
        let none = || BackendError::Failed {
            what: what.clone(),
            reason: "its record is not in the blob store".to_owned(),
        };
        let record = record.ok_or_else(none)?;
        if !record.left_out.is_empty() {
            let count = record.left_out.len();
            tracing::warn!("skipped {count} entries among the ideas of node {node}");
        }
        self.fence.check()?;
        let superseded = superseded_cost(&settled);
        let accepting = with_retry_if(IdeasError::is_transient, async || {
            accept_ideas(store, &record, superseded, order).await
        });
        let taken = self.handle.block_on(accepting);
        taken.map_err(backend_error("cannot accept ideas"))
    }

    fn read_ideas_record(
        &self,
        settled: &ItemSettlement,
    ) -> Result<Option<IdeasRecord>, BackendError> {
        let Some(blob) = settled.by.as_ref().and_then(|by| by.record.as_ref()) else {
            return Ok(None);
        };
        let store = &*self.store;
        let reading = with_retry(async || get_json::<IdeasRecord>(store, &blob.digest).await);
        let record = self
            .handle
            .block_on(reading)
            .map_err(backend_error("cannot read a record of ideas"))?;
        Ok((record.item == settled.item).then_some(record))
    }
}

/// Stores the inputs of a command: earlier ideas and the context pack.
async fn store_inputs(
    store: &Arc<dyn BlobStore>,
    order: &IdeasOrder,
) -> Result<(Vec<EarlierIdeas>, BlobRef), IdeasError> {
    let mut earlier = Vec::new();
    for (at, dir) in order.context.iter().enumerate() {
        let from = dir.clone();
        // Only the ideas that the search counts as shown: a directory of the user may contain other
        // files.
        let shown: BTreeSet<String> =
            supervise::blocking(move || read_user_ideas(&from).into_keys().collect()).await;
        let keep = move |path: &Path| path.to_str().is_some_and(|name| shown.contains(name));
        let archive = store_directory(store, dir, NODE_IDEAS_LIMITS, keep).await?;
        earlier.push(EarlierIdeas { name: format!("{at:02}-{}", safe_name(dir)), archive });
    }
    let at = order.pack.clone();
    let pack = store_directory(store, &order.pack, CONTEXT_PACK_LIMITS, move |path| {
        is_visible_file(&at, path)
    })
    .await?;
    Ok((earlier, pack))
}

/// Stores the files directly below a directory that `keep` accepts. Equal files give equal
/// archives.
async fn store_directory(
    store: &Arc<dyn BlobStore>,
    dir: &Path,
    bounds: ArchiveLimits,
    keep: impl Fn(&Path) -> bool + Send + 'static,
) -> Result<BlobRef, IdeasError> {
    let scratch = tempfile::tempdir().map_err(io_error("create a directory for", dir))?;
    let (from, tar) = (dir.to_owned(), scratch.path().join("files.tar"));
    let to = tar.clone();
    let work = move || {
        let keep = |path: &Path, is_dir: bool| match !is_dir && keep(path) {
            true => FilterDecision::Include,
            false => FilterDecision::Exclude,
        };
        archive::pack(&from, &to, bounds, &keep)
    };
    let packed = supervise::blocking(work).await;
    packed.map_err(|source| IdeasError::Archive { path: dir.to_owned(), source })?;
    Ok(with_retry(async || store.put_file(&tar, MediaType::Tar).await).await?)
}

fn is_visible_file(dir: &Path, path: &Path) -> bool {
    let is_hidden = path.as_os_str().as_bytes().starts_with(b".");
    !is_hidden && dir.join(path).symlink_metadata().is_ok_and(|found| found.is_file())
}

/// Makes a directory name for an environment from one on this host.
fn safe_name(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let plain = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' };
    name.chars().take(60).map(plain).collect()
}

/// Writes output and logs of a command, durably; replaces those of an earlier attempt.
async fn write_logs(
    store: &dyn BlobStore,
    record: &IdeasRecord,
    dir: &Path,
) -> Result<(), IdeasError> {
    fs_remove::remove(dir).await.map_err(io_error("remove", dir))?;
    let made = dir.to_owned();
    let made = supervise::blocking(move || durable::create_directory(&made)).await;
    made.map_err(io_error("create", dir))?;
    for output in &record.outputs {
        // The worker chose the path: accept only a plain relative path.
        let Ok(Some(path)) = ArchivePath::clean(output.path.as_bytes()) else { continue };
        let fetched = results::fetch(store, &output.blob, &dir.join(path.as_path())).await;
        results::best_effort(fetched)?;
    }
    if let Some(logs) = &record.logs {
        let to = dir.join("logs");
        results::best_effort(results::unpack(store, "the logs", &logs.archive, &to).await)?;
    }
    if !record.left_out.is_empty() {
        let (path, text) = (dir.join("left_out.txt"), record.left_out.join("\n") + "\n");
        tokio::fs::write(&path, text).await.map_err(io_error("write", &path))?;
    }
    let written = dir.to_owned();
    let synced = supervise::blocking(move || durable::sync_tree(&written)).await;
    synced.map_err(io_error("sync", dir))
}

/// Writes the ideas of a command and its cost to the directory of its order.
async fn accept_ideas(
    store: &dyn BlobStore,
    record: &IdeasRecord,
    superseded: Option<f64>,
    order: &IdeasOrder,
) -> Result<(), IdeasError> {
    let Some(ideas) = &record.ideas else { return Ok(()) };
    let into = &order.into;
    let work = into.with_file_name(format!(".work-{}", order.node.node_id));
    fs_remove::remove(&work).await.map_err(io_error("remove", &work))?;
    let unpacked =
        archive::extract_blob(store, &ideas.archive.digest, &work, NODE_IDEAS_LIMITS).await;
    unpacked.map_err(|error| match error {
        ExtractBlobError::Store(error) => IdeasError::Store(error),
        ExtractBlobError::Archive(source) => IdeasError::Archive { path: work.clone(), source },
    })?;
    write_cost(record, superseded, into).await?;
    let (from, to) = (work.clone(), into.clone());
    supervise::blocking(move || move_ideas(&from, &to)).await?;
    fs_remove::remove(&work).await.map_err(io_error("remove", &work))
}

/// Writes the cost of ideas beside them, and the model calls of their agent.
async fn write_cost(
    record: &IdeasRecord,
    superseded: Option<f64>,
    into: &Path,
) -> Result<(), IdeasError> {
    let calls = record.gateway.as_ref().map(|calls| StepCalls::of(EvalStage::Ideas, calls));
    let parts = [record.reported_cost, calls.as_ref().map(|calls| calls.cost), superseded];
    let cost: f64 = parts.into_iter().flatten().sum();
    if cost > 0.0 {
        replace(into.join(COST_FILE), cost.to_string()).await?;
    }
    if let Some(calls) = calls {
        replace(into.join(CALLS_FILE), serde_json::json!([calls]).to_string()).await?;
    }
    Ok(())
}

/// Replaces a file durably: a session that finds the ideas writes it no more.
async fn replace(file: PathBuf, text: String) -> Result<(), IdeasError> {
    let path = file.clone();
    let written = supervise::blocking(move || atomic_file::replace(&path, text.as_bytes())).await;
    written.map_err(io_error("write", &file))
}

/// Moves ideas to the directory of their order. The worker has checked them; they are checked
/// again, because a worker is not trusted here.
fn move_ideas(from: &Path, into: &Path) -> Result<(), IdeasError> {
    for entry in fs::read_dir(from).map_err(io_error("list", from))? {
        let path = entry.map_err(io_error("list", from))?.path();
        let found = path.symlink_metadata().map_err(io_error("inspect", &path))?;
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
        if !found.is_file() || found.len() > MAX_IDEA_BYTES {
            continue;
        }
        let content = fs::read(&path).map_err(io_error("read", &path))?;
        if invalid_idea_reason(name, &content).is_some() {
            continue;
        }
        let synced = File::open(&path).and_then(|file| file.sync_all());
        synced.map_err(io_error("sync", &path))?;
        let to = into.join(name);
        fs::rename(&path, &to).map_err(io_error("write", &to))?;
    }
    durable::sync_directory(into).map_err(io_error("sync", into))
}
