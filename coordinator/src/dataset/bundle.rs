//! Packs the files of tasks, stores them, and makes the documents that trials refer to.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use rollout_protocol::blob::{BlobRef, MediaType};
use rollout_protocol::digest::Digest;
use rollout_protocol::error::{ErrorCode, ErrorType};
use rollout_protocol::limits::INSTRUCTION_BYTES;
use rollout_protocol::spec::task::{TaskEnvironment, TaskSpec};
use rollout_worker::archive::{self, ArchiveError, Keep, Limits};
use rollout_worker::environment::dockerignore::Dockerignore;
use rollout_worker::store::{BlobStore, StoreError};
use rollout_worker::supervise;

use super::task::{ENVIRONMENT, INSTRUCTION, invalid};
use super::{Dataset, Task};
use crate::config::{ConfigError, ConfigErrors, ErrorKind, Job, Problems, Spot};

/// Tasks packed at once: enough to keep a disk busy, few enough to leave the machine usable.
const TASKS_AT_ONCE: usize = 8;

/// Where bundles go.
#[derive(Debug, Clone)]
pub struct Sink {
    /// The store; nothing when only digests are wanted.
    pub store: Option<Arc<dyn BlobStore>>,
    /// An empty directory for archives on their way, on the store's file system where that is local.
    pub scratch: PathBuf,
}

/// A task ready to run.
#[derive(Debug, Clone, PartialEq)]
pub struct Bundled {
    /// The task.
    pub spec: TaskSpec,
    /// Digest of its document in the store.
    pub digest: Digest,
    /// Digest of its files alone.
    pub files: Digest,
    /// Digest of everything else that a trial depends on.
    pub rules: Digest,
}

/// Why tasks could not be bundled.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    /// Tasks have files that cannot be packed.
    #[error(transparent)]
    Config(#[from] ConfigErrors),
    /// The store failed.
    #[error("storing the tasks")]
    Store(#[from] StoreError),
    /// A document has no JSON form.
    #[error("a task has no JSON form")]
    Json(#[from] serde_json::Error),
}

impl Sink {
    /// Stores bytes.
    ///
    /// # Errors
    /// [`BundleError::Store`].
    pub async fn put(&self, bytes: Bytes, media_type: MediaType) -> Result<BlobRef, BundleError> {
        match &self.store {
            Some(store) => Ok(store.put_bytes(bytes, media_type).await?),
            None => Ok(BlobRef::of(&bytes, media_type)),
        }
    }

    async fn put_archive(&self, packed: &PackedPart) -> Result<BlobRef, BundleError> {
        let blob = match &self.store {
            Some(store) => store.put_file(&packed.archive, MediaType::Tar).await?,
            None => packed.blob.clone(),
        };
        // The store may have moved the file away; what is left goes with the scratch directory.
        let _removed = std::fs::remove_file(&packed.archive);
        Ok(blob)
    }
}

/// Packs and stores the tasks of all datasets, in their order.
///
/// # Errors
/// [`BundleError`]; faults of files come from all tasks at once.
pub async fn bundle(
    job: &Job,
    datasets: Vec<Dataset>,
    sink: &Sink,
) -> Result<Vec<Bundled>, BundleError> {
    let tasks = datasets.into_iter().flat_map(|dataset| {
        let name = dataset.name;
        dataset.tasks.into_iter().map(move |task| (name.clone(), task))
    });
    let mut results = stream::iter(tasks.enumerate())
        .map(|(index, (dataset, task))| one(job, dataset, task, index, sink))
        .buffered(TASKS_AT_ONCE);
    let mut bundled = Vec::new();
    let mut problems = Problems::default();
    while let Some(result) = results.next().await {
        match result {
            Ok(task) => bundled.push(task),
            Err(OneError::File(error)) => problems.error(*error),
            Err(OneError::Fatal(error)) => return Err(error),
        }
    }
    Ok(problems.finish(bundled)?.0)
}

enum OneError {
    File(Box<ConfigError>),
    Fatal(BundleError),
}

impl<E: Into<BundleError>> From<E> for OneError {
    fn from(error: E) -> Self {
        Self::Fatal(error.into())
    }
}

async fn one(
    job: &Job,
    dataset: String,
    task: Task,
    index: usize,
    sink: &Sink,
) -> Result<Bundled, OneError> {
    let mut spec = spec(job, dataset, &task);
    let rules = Digest::of_json(&TaskSpec { git_commit_id: None, ..spec.clone() })?;
    if spec.fault.is_none() {
        let dir = task.dir.clone();
        let scratch = sink.scratch.join(index.to_string());
        match supervise::blocking(move || read(&task, &scratch)).await {
            Ok(read) => store(read, &mut spec, sink).await?,
            Err(_) if !dir.is_dir() => {
                let message = format!("the task's directory {} is gone", dir.display());
                let (kind, code) = (ErrorType::TaskNotFound, ErrorCode::SOURCE_CHANGED);
                spec.fault = Some(invalid(kind, code, message));
            }
            Err(error) => return Err(OneError::File(error)),
        }
    }
    let document = serde_json::to_vec(&spec)?;
    let digest = Digest::of(&document);
    sink.put(Bytes::from(document), MediaType::Json).await?;
    Ok(Bundled { digest, files: files(&spec)?, rules, spec })
}

/// The digest of the files alone.
fn files(spec: &TaskSpec) -> Result<Digest, serde_json::Error> {
    let steps: Vec<_> = spec.steps.iter().map(|step| &step.files).collect();
    Digest::of_json(&(&spec.environment.context, steps))
}

/// The task without its files.
fn spec(job: &Job, dataset: String, task: &Task) -> TaskSpec {
    let limits = job.timeouts.apply(&task.file.timeouts);
    let mut spec = TaskSpec::new(dataset, &task.name);
    spec.git_commit_id.clone_from(&task.git_commit_id);
    spec.install_sec = limits.install_sec;
    spec.fault.clone_from(&task.fault);
    spec.rules = job.rules.apply(spec.rules);
    spec.environment = TaskEnvironment {
        docker_image: task.file.docker_image.clone(),
        build_sec: limits.build_sec,
        resources: job.resources.apply(&task.file.resources),
        env: task.file.env.iter().map(|(n, v)| (n.clone(), v.template.clone())).collect(),
        ..TaskEnvironment::default()
    };
    for step in &mut spec.steps {
        step.agent.timeout_sec = limits.agent_sec;
        step.verifier.timeout_sec = limits.verifier_sec;
    }
    spec
}

/// The files of a task, read and packed.
struct ReadTask {
    instruction: Vec<u8>,
    environment: Option<PackedPart>,
    solution: Option<PackedPart>,
    tests: Option<PackedPart>,
}

struct PackedPart {
    archive: PathBuf,
    blob: BlobRef,
}

fn read(task: &Task, scratch: &Path) -> Result<ReadTask, Box<ConfigError>> {
    let part = |wanted: bool, name: &str| {
        let dir = task.dir.join(name);
        wanted.then(|| pack(&dir, scratch.with_extension(name), name == ENVIRONMENT)).transpose()
    };
    Ok(ReadTask {
        instruction: instruction(&task.dir.join(INSTRUCTION))?,
        environment: part(task.parts.environment, ENVIRONMENT)?,
        solution: part(task.parts.solution, "solution")?,
        tests: part(task.parts.tests, "tests")?,
    })
}

async fn store(read: ReadTask, spec: &mut TaskSpec, sink: &Sink) -> Result<(), BundleError> {
    let files = &mut spec.steps[0].files;
    files.instruction = Some(sink.put(Bytes::from(read.instruction), MediaType::Text).await?);
    for (part, place) in [
        (read.environment, &mut spec.environment.context),
        (read.solution, &mut files.solution),
        (read.tests, &mut files.tests),
    ] {
        if let Some(packed) = part {
            *place = Some(sink.put_archive(&packed).await?);
        }
    }
    Ok(())
}

fn instruction(file: &Path) -> Result<Vec<u8>, Box<ConfigError>> {
    let mut bytes = Vec::new();
    File::open(file)
        .and_then(|f| f.take(INSTRUCTION_BYTES + 1).read_to_end(&mut bytes))
        .map_err(|error| fault(file, ErrorKind::Unreadable, error.to_string()))?;
    if bytes.len() as u64 > INSTRUCTION_BYTES {
        let found = format!("more than {INSTRUCTION_BYTES} bytes");
        return Err(fault(file, ErrorKind::TooLarge, found));
    }
    Ok(bytes)
}

fn pack(dir: &Path, archive: PathBuf, is_context: bool) -> Result<PackedPart, Box<ConfigError>> {
    let ignore = if is_context {
        let bad = |error: std::io::Error| {
            fault(&dir.join(".dockerignore"), ErrorKind::BadFile, error.to_string())
        };
        Dockerignore::read(dir).map_err(bad)?
    } else {
        Dockerignore::default()
    };
    let packed =
        archive::pack(dir, &archive, Limits::BUNDLE, &|path, is_dir| keep(&ignore, path, is_dir));
    let packed = packed.map_err(|error| pack_fault(dir, &error))?;
    let (digest, size_bytes) = (packed.digest, packed.size_bytes);
    let blob = BlobRef { digest, size_bytes, media_type: Some(MediaType::Tar) };
    Ok(PackedPart { archive, blob })
}

/// What a build would not see is no part of a build context, whichever environment runs it.
fn keep(ignore: &Dockerignore, path: &Path, is_dir: bool) -> Keep {
    let Some(text) = path.to_str() else { return Keep::Yes };
    if matches!(text, "Dockerfile" | ".dockerignore") || !ignore.excludes(text) {
        Keep::Yes
    } else if is_dir && ignore.takes_back() {
        Keep::IfNotEmpty
    } else {
        Keep::No
    }
}

fn pack_fault(dir: &Path, error: &ArchiveError) -> Box<ConfigError> {
    let found = match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    };
    match error {
        ArchiveError::NotPackable { path, reason } => {
            fault(&dir.join(path), ErrorKind::BadFile, format!("what cannot be packed: {reason}"))
        }
        ArchiveError::TooLarge { .. } => fault(dir, ErrorKind::TooLarge, found),
        ArchiveError::Io { path, .. } => fault(path, ErrorKind::Unreadable, found),
        ArchiveError::Changed { path } => fault(&dir.join(path), ErrorKind::Unreadable, found),
        ArchiveError::Untrusted { .. } => fault(dir, ErrorKind::BadFile, found),
    }
}

fn fault(file: &Path, kind: ErrorKind, found: String) -> Box<ConfigError> {
    let spot = Spot { key: String::new(), line: None };
    let expected = "readable files, directories, and links inside the task";
    Box::new(spot.error(file, kind, found, expected))
}
