//! Commands for ideas as items of the search's run: their inputs, and their ideas as files.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rollout_protocol::blob::{BlobRef, MediaType};
use rollout_protocol::digest::Digest;
use rollout_protocol::id::ItemId;
use rollout_protocol::item_name::{IdeasName, ItemName};
use rollout_protocol::limits;
use rollout_protocol::record::{IdeasRecord, ItemOutcome};
use rollout_protocol::spec::ideas::{
    EarlierIdeas, IdeasSpec, MAX_IDEA_BYTES, MAX_IDEAS, invalid_idea_reason,
};
use rollout_worker::archive::{self, ArchiveError, ArchivePath, FilterDecision, ArchiveLimits};
use rollout_worker::store::{BlobStore, StoreError, get_json, put_json};
use rollout_worker::{fs_remove, supervise};

use super::asked::{Told, Try, WorkKind};
use super::results::{self, ResultsError};
use super::shop::{Shop, of, patiently};
use crate::engine::core::Settled;
use crate::workloads::search::driver::{COST_FILE, IdeasOrder, TreeError, WorkError, usable};
use rollout_protocol::search::NodeId;

/// Bounds of a directory of earlier ideas, and of the ideas of a node.
const IDEAS_OF_A_NODE: ArchiveLimits =
    ArchiveLimits { entries: MAX_IDEAS as u64, bytes: MAX_IDEAS as u64 * MAX_IDEA_BYTES };

/// Bounds of the files that describe a node: a few files of bounded size.
const PACK: ArchiveLimits = ArchiveLimits { entries: 100, bytes: limits::RESULTS_BYTES };

/// Why inputs of a command are not stored, or its ideas are not taken.
#[derive(Debug, thiserror::Error)]
enum IdeasError {
    #[error("the blob store")]
    Store(#[from] StoreError),
    #[error("cannot pack or unpack {}", path.display())]
    Archive {
        path: PathBuf,
        #[source]
        source: ArchiveError,
    },
    #[error("cannot {action} {}", path.display())]
    Disk {
        action: &'static str,
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error(transparent)]
    Results(#[from] ResultsError),
}

fn disk(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> IdeasError {
    let path = path.to_owned();
    move |source| IdeasError::Disk { action, path, source }
}

/// A command for ideas that is asked for.
pub(super) struct AskedIdeas {
    item: ItemId,
    order: IdeasOrder,
}

impl Shop {
    /// Has ideas written for all nodes; `done` hears of each node that has them.
    pub(super) fn write_ideas(
        &mut self,
        orders: Vec<IdeasOrder>,
        done: &mut dyn FnMut(NodeId) -> Result<(), TreeError>,
    ) -> Result<(), TreeError> {
        let asked = orders.into_iter().map(|order| self.ask_ideas(order));
        let mut asked = asked.collect::<Result<Vec<_>, _>>()?;
        self.asked.waits();
        while !asked.is_empty() {
            let item = match self.handle.block_on(self.told.recv()) {
                Some(Told::Settled(item)) => item,
                Some(Told::Over) | None => return Err(WorkError::Stopped.into()),
            };
            let Some(at) = asked.iter().position(|asked| asked.item == item) else {
                // An eval is settled meanwhile: it is heard of when evals are waited for.
                self.heard.push_back(item);
                continue;
            };
            let AskedIdeas { order, .. } = asked.swap_remove(at);
            self.conclude_ideas(&item, &order)?;
            done(order.node.node_id)?;
        }
        Ok(())
    }

    fn ask_ideas(&mut self, order: IdeasOrder) -> Result<AskedIdeas, WorkError> {
        let node = order.node.node_id;
        let failed = "cannot prepare a command for ideas";
        let commit = order.node.commit.clone();
        let repository = self.repository()?.spec(&commit).map_err(of(failed))?;
        let (store, handle) = (Arc::clone(&self.store), self.handle.clone());
        let inputs = handle.block_on(patiently_inputs(&store, &order));
        let (earlier, pack) = inputs.map_err(of(failed))?;
        let spec: IdeasSpec = self.plan.spec_of_ideas(&order, repository, earlier, pack);
        let stored = handle.block_on(patiently(async || put_json(&*store, &spec).await));
        let spec = stored.map_err(of(failed))?.digest;
        let (item, attempt) = self.item_of_ideas(&order, &spec);
        let search = self.tree.name.clone();
        let name = ItemName::Ideas(IdeasName { search, node, attempt });
        self.asked.ask(Try { kind: WorkKind::Ideas, item, spec, name });
        Ok(AskedIdeas { item, order })
    }

    /// The key of a command, and its attempt: a command that failed in a former session of the run is
    /// run again.
    fn item_of_ideas(&self, order: &IdeasOrder, spec: &Digest) -> (ItemId, u32) {
        let (tree, node) = (&self.tree.name, order.node.node_id.0);
        let mut attempt = 1;
        loop {
            let item = ItemId::for_ideas(tree, node, order.round, attempt, spec);
            let settled = self.asked.settlement(&item);
            if settled.is_none_or(|settled| settled.verdict.outcome == ItemOutcome::Completed) {
                return (item, attempt);
            }
            attempt += 1;
        }
    }

    /// Writes the ideas and logs of a command that ended.
    fn conclude_ideas(&self, item: &ItemId, order: &IdeasOrder) -> Result<(), WorkError> {
        let node = order.node.node_id;
        let what = format!("the command `ideas` for node {node}");
        let settled = self.asked.settlement(item).ok_or(WorkError::Stopped)?;
        let record = self.record_of_ideas(&settled)?;
        let logs = self.tree.run_dir().join("logs").join("ideas").join(node.to_string());
        let store = &*self.store;
        if let Some(record) = &record {
            let written = self.handle.block_on(write_logs(store, record, &logs));
            written.map_err(of("cannot write the logs of a command for ideas"))?;
        }
        if settled.verdict.outcome != ItemOutcome::Completed {
            let error = settled.verdict.error.as_ref();
            let reason = error.map_or("it ended without ideas", |error| &error.message).to_owned();
            return Err(WorkError::Failed { what, reason });
        }
        let none = || WorkError::Failed {
            what: what.clone(),
            reason: "its record is not in the blob store".to_owned(),
        };
        let record = record.ok_or_else(none)?;
        if !record.left_out.is_empty() {
            let count = record.left_out.len();
            tracing::warn!("{count} things among the ideas of node {node} are left out");
        }
        let taken = self.handle.block_on(take(store, &record, order));
        taken.map_err(of("cannot take ideas"))
    }

    fn record_of_ideas(&self, settled: &Settled) -> Result<Option<IdeasRecord>, WorkError> {
        let Some(blob) = settled.by.as_ref().and_then(|by| by.record.as_ref()) else {
            return Ok(None);
        };
        let store = &*self.store;
        let reading = patiently(async || get_json::<IdeasRecord>(store, &blob.digest).await);
        let record = self.handle.block_on(reading).map_err(of("cannot read a record of ideas"))?;
        Ok((record.item == settled.item).then_some(record))
    }
}

/// Stores the inputs of a command: earlier ideas, and the files that describe the node.
async fn patiently_inputs(
    store: &Arc<dyn BlobStore>,
    order: &IdeasOrder,
) -> Result<(Vec<EarlierIdeas>, BlobRef), IdeasError> {
    let mut earlier = Vec::new();
    for (at, dir) in order.context.iter().enumerate() {
        let from = dir.clone();
        // The search counts these as shown: a directory of the user may hold anything.
        let shown: BTreeSet<String> =
            supervise::blocking(move || usable(&from).into_keys().collect()).await;
        let keep = move |path: &Path| path.to_str().is_some_and(|name| shown.contains(name));
        let archive = packed(store, dir, IDEAS_OF_A_NODE, keep).await?;
        earlier.push(EarlierIdeas { name: format!("{at:02}-{}", plain(dir)), archive });
    }
    let at = order.pack.clone();
    let pack = packed(store, &order.pack, PACK, move |path| is_visible_file(&at, path)).await?;
    Ok((earlier, pack))
}

/// Stores the files directly below a directory that `keep` names. Equal files give equal archives.
async fn packed(
    store: &Arc<dyn BlobStore>,
    dir: &Path,
    bounds: ArchiveLimits,
    keep: impl Fn(&Path) -> bool + Send + 'static,
) -> Result<BlobRef, IdeasError> {
    let scratch = tempfile::tempdir().map_err(disk("create a directory for", dir))?;
    let (from, tar) = (dir.to_owned(), scratch.path().join("files.tar"));
    let to = tar.clone();
    let work = move || {
        let keep = |path: &Path, is_dir: bool| match !is_dir && keep(path) {
            true => FilterDecision::Yes,
            false => FilterDecision::No,
        };
        archive::pack(&from, &to, bounds, &keep)
    };
    let packed = supervise::blocking(work).await;
    packed.map_err(|source| IdeasError::Archive { path: dir.to_owned(), source })?;
    Ok(patiently(async || store.put_file(&tar, MediaType::Tar).await).await?)
}

fn is_visible_file(dir: &Path, path: &Path) -> bool {
    let is_hidden = path.as_os_str().as_bytes().starts_with(b".");
    !is_hidden && dir.join(path).symlink_metadata().is_ok_and(|found| found.is_file())
}

/// The name of a directory in an environment, made of one on this host.
fn plain(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let plain = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' };
    name.chars().take(60).map(plain).collect()
}

/// Writes output and logs of a command; those of an earlier attempt are replaced.
async fn write_logs(
    store: &dyn BlobStore,
    record: &IdeasRecord,
    dir: &Path,
) -> Result<(), IdeasError> {
    fs_remove::remove(dir).await.map_err(disk("remove", dir))?;
    tokio::fs::create_dir_all(dir).await.map_err(disk("create", dir))?;
    for output in &record.outputs {
        // The path is a worker's word: only a plain path is written to.
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
        tokio::fs::write(&path, text).await.map_err(disk("write", &path))?;
    }
    Ok(())
}

/// Writes the ideas of a command, and its cost, into the directory of its order.
async fn take(
    store: &dyn BlobStore,
    record: &IdeasRecord,
    order: &IdeasOrder,
) -> Result<(), IdeasError> {
    let Some(ideas) = &record.ideas else { return Ok(()) };
    let into = &order.into;
    let work = into.with_file_name(format!(".work-{}", order.node.node_id));
    fs_remove::remove(&work).await.map_err(disk("remove", &work))?;
    let source = patiently(async || store.get(&ideas.archive.digest).await).await?;
    let unpacked = archive::extract(source, &work, IDEAS_OF_A_NODE).await;
    unpacked.map_err(|source| IdeasError::Archive { path: work.clone(), source })?;
    if let Some(cost) = record.reported_cost.filter(|cost| *cost > 0.0) {
        let file = into.join(COST_FILE);
        tokio::fs::write(&file, cost.to_string()).await.map_err(disk("write", &file))?;
    }
    let (from, to) = (work.clone(), into.clone());
    supervise::blocking(move || move_ideas(&from, &to)).await?;
    fs_remove::remove(&work).await.map_err(disk("remove", &work))
}

/// Moves ideas to the directory of their order. The worker has checked them, and they are checked
/// again: its word decides nothing here.
fn move_ideas(from: &Path, into: &Path) -> Result<(), IdeasError> {
    for entry in fs::read_dir(from).map_err(disk("list", from))? {
        let path = entry.map_err(disk("list", from))?.path();
        let found = path.symlink_metadata().map_err(disk("inspect", &path))?;
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
        if !found.is_file() || found.len() > MAX_IDEA_BYTES {
            continue;
        }
        let content = fs::read(&path).map_err(disk("read", &path))?;
        if invalid_idea_reason(name, &content).is_some() {
            continue;
        }
        let synced = File::open(&path).and_then(|file| file.sync_all());
        synced.map_err(disk("sync", &path))?;
        let to = into.join(name);
        fs::rename(&path, &to).map_err(disk("write", &to))?;
    }
    let synced = File::open(into).and_then(|into| into.sync_all());
    synced.map_err(disk("sync", into))
}
