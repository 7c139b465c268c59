//! Storing of task files and of the documents that trials refer to; existing blobs are skipped.

use std::any::Any;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use rollout_base::shown_path::shown;
use rollout_base::supervise;
use rollout_protocol::blob::{BlobRef, MediaType};
use rollout_protocol::digest::Digest;
use rollout_protocol::error::{ErrorCode, ErrorType};
use rollout_protocol::spec::task::TaskSpec;
use rollout_store::archive::ArchiveError;
use rollout_store::{BlobContent, BlobStore, StoreError};

use super::pack::{self, LoadedTaskFiles, PackError};
use super::pack_cache::PackCache;
use super::task::invalid;
use super::{Dataset, DatasetTask, faults, spec};
use crate::config::{ConfigError, ConfigErrors, Diagnostics, ErrorKind, Job, TaskMetadata};

/// Tasks packed concurrently: enough to keep a disk busy, few enough to leave the machine usable.
const CONCURRENT_TASKS: usize = 8;

/// Tasks whose files are stored together: syncing a batch costs little more than syncing one.
const TASKS_PER_BATCH: usize = 64;

/// Concurrent blob lookups.
const CONCURRENT_LOOKUPS: usize = 16;

/// Destination of bundles.
#[derive(Debug, Clone)]
pub struct BundleSink {
    /// The store; `None` if only digests are needed.
    pub store: Option<Arc<dyn BlobStore>>,
    /// An empty directory for temporary archives, on the store's file system if that is local.
    pub scratch: PathBuf,
    /// Owner of that directory. Work in the directory holds it: packing goes on for a while when its
    /// future is dropped.
    pub holder: Option<Arc<dyn Any + Send + Sync>>,
    /// Cache of packed parts; without it all parts are packed again.
    pub pack_cache: Option<Arc<PackCache>>,
}

/// A task ready to run.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskBundle {
    /// The task.
    pub spec: TaskSpec,
    /// Digest of its document in the store.
    pub digest: Digest,
    /// Digest of its files alone.
    pub files: Digest,
    /// Digest of every other input of a trial.
    pub rules: Digest,
    /// Metadata of its file.
    pub metadata: TaskMetadata,
}

/// Error of bundling tasks.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    /// Files of tasks cannot be packed.
    #[error(transparent)]
    Config(#[from] ConfigErrors),
    /// The archives of task files cannot be written.
    #[error("cannot pack the tasks")]
    Scratch(#[source] ArchiveError),
    /// The store failed.
    #[error("cannot store the tasks")]
    Store(#[from] StoreError),
    /// A document cannot be serialized to JSON.
    #[error("cannot serialize a task to JSON")]
    Json(#[from] serde_json::Error),
}

impl BundleSink {
    /// Stores bytes unless the store has them.
    ///
    /// # Errors
    /// [`BundleError::Store`].
    pub async fn put(&self, bytes: Bytes, media_type: MediaType) -> Result<BlobRef, BundleError> {
        let blob = BlobRef::for_bytes(&bytes, media_type);
        self.put_all(vec![(blob.clone(), BlobContent::Bytes(bytes, media_type))]).await?;
        Ok(blob)
    }

    /// Whether the store has a blob and keeps it as if it were just stored; always true without a
    /// store.
    async fn has(&self, blob: &BlobRef) -> Result<bool, StoreError> {
        match &self.store {
            Some(store) => store.renew(&blob.digest).await,
            None => Ok(true),
        }
    }

    /// Stores the contents that the store lacks.
    async fn put_all(&self, contents: Vec<(BlobRef, BlobContent)>) -> Result<(), StoreError> {
        let Some(store) = &self.store else { return Ok(()) };
        let looked = stream::iter(contents)
            .map(|(blob, content)| async move {
                Ok::<_, StoreError>((!self.has(&blob).await?).then_some(content))
            })
            .buffered(CONCURRENT_LOOKUPS);
        let new: Vec<BlobContent> =
            looked.try_filter_map(|new| async { Ok(new) }).try_collect().await?;
        if !new.is_empty() {
            store.put_many(new).await?;
        }
        Ok(())
    }
}

/// Packs and stores the tasks of all datasets, in order.
///
/// # Errors
/// [`BundleError`]; file errors of all tasks are reported together.
pub async fn bundle(
    job: &Job,
    datasets: Vec<Dataset>,
    sink: &BundleSink,
) -> Result<Vec<TaskBundle>, BundleError> {
    let tasks = datasets.into_iter().flat_map(|dataset| {
        let name = dataset.name;
        dataset.tasks.into_iter().map(move |task| (name.clone(), task))
    });
    let mut batches = stream::iter(tasks.enumerate())
        .map(|(index, (dataset, task))| prepare(job, dataset, task, index, sink))
        .buffered(CONCURRENT_TASKS)
        .chunks(TASKS_PER_BATCH);
    let mut bundled = Vec::new();
    let mut problems = Diagnostics::default();
    let mut settled = Vec::new();
    while let Some(batch) = batches.next().await {
        let mut good = Vec::with_capacity(batch.len());
        for prepared in batch {
            match prepared {
                Ok(mut prepared) => {
                    settled.extend(prepared.refused_entry.take());
                    good.push(prepared);
                }
                Err(PrepareError::File(error)) => problems.error(*error),
                Err(PrepareError::Fatal(error)) => return Err(error),
            }
        }
        store(good, sink, &mut bundled).await?;
    }
    save_pack_cache(sink).await;
    // No task is left to run.
    if bundled.iter().all(|task: &TaskBundle| task.spec.fault.is_some()) {
        settled.into_iter().for_each(|error| problems.error(error));
    }
    Ok(problems.finish(bundled)?.0)
}

/// A task with its files read.
struct PreparedTask {
    task: Arc<DatasetTask>,
    spec: TaskSpec,
    rules: Digest,
    /// `None` for a task that cannot run.
    files: Option<LoadedTaskFiles>,
    /// The error of a link out of it, or of another entry that is never packed.
    refused_entry: Option<ConfigError>,
}

enum PrepareError {
    File(Box<ConfigError>),
    Fatal(BundleError),
}

impl<E: Into<BundleError>> From<E> for PrepareError {
    fn from(error: E) -> Self {
        Self::Fatal(error.into())
    }
}

impl PrepareError {
    fn from_pack(error: PackError) -> Self {
        match error {
            PackError::Task(error) => Self::File(error),
            PackError::Scratch(error) => Self::Fatal(BundleError::Scratch(error)),
        }
    }
}

async fn prepare(
    job: &Job,
    dataset: String,
    task: DatasetTask,
    index: usize,
    sink: &BundleSink,
) -> Result<PreparedTask, PrepareError> {
    let mut spec = spec::task_spec(job, dataset, &task);
    // The doubt about a format changes no trial.
    let same = TaskSpec { git_commit_id: None, other_rules: None, ..spec.clone() };
    let rules = Digest::sha256_json(&same)?;
    let task = Arc::new(task);
    let (mut files, mut refused_entry) = (None, None);
    if spec.fault.is_none() {
        let has_model_agents = job.agents.iter().any(|agent| agent.spec.kind.calls_models());
        match read(&task, index, sink, has_model_agents).await {
            Ok(read) => files = Some(read),
            Err(PrepareError::File(error))
                if !job.is_strict
                    && matches!(error.kind, ErrorKind::TooLarge | ErrorKind::BadFile) =>
            {
                let shown = format!("{}/{}", spec.dataset, spec.name);
                spec.fault =
                    Some(faults::file_fault(&shown, &task.dir, std::slice::from_ref(&*error)));
                refused_entry = Some(*error).filter(|error| error.kind == ErrorKind::BadFile);
            }
            Err(PrepareError::File(_)) if !task.dir.is_dir() => {
                let message = format!("the task's directory {} no longer exists", shown(&task.dir));
                let (kind, code) = (ErrorType::TaskNotFound, ErrorCode::SOURCE_CHANGED);
                spec.fault = Some(invalid(kind, code, message));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(PreparedTask { task, spec, rules, files, refused_entry })
}

/// Reads the files of a task; parts that are cached and stored are not packed.
async fn read(
    task: &Arc<DatasetTask>,
    index: usize,
    sink: &BundleSink,
    has_model_agents: bool,
) -> Result<LoadedTaskFiles, PrepareError> {
    let scratch = sink.scratch.join(index.to_string());
    let (owned, at, known) = (Arc::clone(task), scratch.clone(), sink.pack_cache.clone());
    let holder = sink.holder.clone();
    let work = move || {
        let _held = holder;
        pack::read(&owned, &at, known.as_deref(), has_model_agents)
    };
    let mut files = supervise::blocking(work).await.map_err(PrepareError::from_pack)?;
    for (number, part) in std::mem::take(&mut files.parts).into_iter().enumerate() {
        let part = if part.archive.is_some() || sink.has(&part.blob).await? {
            part
        } else {
            let (task, archive) = (Arc::clone(task), scratch.with_extension(number.to_string()));
            let holder = sink.holder.clone();
            let work = move || {
                let _held = holder;
                part.pack(&task, archive)
            };
            supervise::blocking(work).await.map_err(PrepareError::from_pack)?
        };
        files.parts.push(part);
    }
    Ok(files)
}

/// Stores the files of several tasks, then their documents, so that no document refers to a missing
/// blob.
async fn store(
    tasks: Vec<PreparedTask>,
    sink: &BundleSink,
    bundled: &mut Vec<TaskBundle>,
) -> Result<(), BundleError> {
    let mut contents = Vec::new();
    for PreparedTask { files, .. } in &tasks {
        let Some(files) = files else { continue };
        for text in &files.instructions {
            let content = BlobContent::Bytes(Bytes::from(text.clone()), MediaType::Text);
            contents.push((BlobRef::for_bytes(text, MediaType::Text), content));
        }
        for document in files.trajectories.iter().flatten() {
            let content = BlobContent::Bytes(document.clone(), MediaType::Json);
            contents.push((BlobRef::for_bytes(document, MediaType::Json), content));
        }
        for part in &files.parts {
            let archive = part.archive.clone().map(|file| BlobContent::File(file, MediaType::Tar));
            contents.extend(archive.map(|content| (part.blob.clone(), content)));
        }
    }
    sink.put_all(contents).await?;
    let mut documents = Vec::with_capacity(tasks.len());
    for PreparedTask { task, mut spec, rules, files, .. } in tasks {
        if let Some(files) = files {
            assign_blobs(&task, &files, &mut spec, sink);
        }
        let bytes = Bytes::from(serde_json::to_vec(&spec)?);
        let document = BlobRef::for_bytes(&bytes, MediaType::Json);
        let digest = document.digest;
        documents.push((document, BlobContent::Bytes(bytes, MediaType::Json)));
        let (files, metadata) = (digest_of_files(&spec)?, task.file.metadata.clone());
        bundled.push(TaskBundle { digest, files, rules, spec, metadata });
    }
    Ok(sink.put_all(documents).await?)
}

/// Sets the blobs of a task's files in its spec, and adds new ones to the cache.
fn assign_blobs(
    task: &DatasetTask,
    files: &LoadedTaskFiles,
    spec: &mut TaskSpec,
    sink: &BundleSink,
) {
    for (step, text) in spec.steps.iter_mut().zip(&files.instructions) {
        step.files.instruction = Some(BlobRef::for_bytes(text, MediaType::Text));
    }
    for (step, document) in spec.steps.iter_mut().zip(&files.trajectories) {
        let blob = |document: &Bytes| BlobRef::for_bytes(document, MediaType::Json);
        step.files.trajectory = document.as_ref().map(blob);
    }
    for part in &files.parts {
        part.assign_blob(spec);
        if let (Some(known), true) = (&sink.pack_cache, sink.store.is_some()) {
            part.add_to_cache(&task.dir, known);
        }
        // The store may have moved the file; anything left is removed with the scratch directory.
        let _removed = part.archive.as_ref().map(std::fs::remove_file);
    }
}

/// The digest of the files alone.
fn digest_of_files(spec: &TaskSpec) -> Result<Digest, serde_json::Error> {
    let steps: Vec<_> = spec.steps.iter().map(|step| &step.files).collect();
    let own = || spec.steps.iter().filter_map(|step| step.verifier.environment.as_deref());
    let contexts: Vec<_> = own().filter_map(|own| own.context.as_ref()).collect();
    let environments = std::iter::once(&spec.environment).chain(own());
    let placed: Vec<_> = environments.filter_map(|of| of.workdir_files.as_ref()).collect();
    let context = &spec.environment.context;
    // Tasks without a part keep the digest that they had before the part existed.
    match (contexts.is_empty(), placed.is_empty()) {
        (true, true) => Digest::sha256_json(&(context, steps)),
        (false, true) => Digest::sha256_json(&(context, steps, contexts)),
        (_, false) => Digest::sha256_json(&(context, steps, contexts, placed)),
    }
}

/// Saves the pack cache. If that fails, only the next run is slower.
async fn save_pack_cache(sink: &BundleSink) {
    let (Some(known), Some(_)) = (sink.pack_cache.clone(), &sink.store) else { return };
    if let Err(error) = supervise::blocking(move || known.save()).await {
        tracing::debug!(%error, "cannot write the pack cache");
    }
}
