//! Packing of task parts that are not cached.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use rollout_protocol::blob::{BlobRef, MediaType};
use rollout_protocol::digest::Digest;
use rollout_protocol::limits::INSTRUCTION_BYTES;
use rollout_protocol::spec::task::TaskSpec;
use rollout_worker::archive::{self, ArchiveError, ArchiveLimits, FilterDecision};
use rollout_worker::environment::dockerignore::Dockerignore;

use super::harborignore::{self, Harborignore};
use super::pack_cache::PackCache;
use super::{DatasetTask, fingerprint, instruction, trajectory};
use crate::config::{ConfigError, ErrorKind, SourceLocation, trajectory_file};

/// The files of a task, loaded.
pub(super) struct LoadedTaskFiles {
    /// The instruction of each step.
    pub(super) instructions: Vec<Vec<u8>>,
    /// The conversation that an agent continues in each step.
    pub(super) trajectories: Vec<Option<Bytes>>,
    /// The other parts, each once.
    pub(super) parts: Vec<PackedPart>,
}

/// A part of a task.
pub(super) struct PackedPart {
    source: PartSource,
    /// Fields of the task's spec that refer to its blob.
    slots: Vec<PartSlot>,
    /// Its fingerprint when it was packed; `None` if a later change might go unnoticed.
    fingerprint: Option<Digest>,
    /// Its blob.
    pub(super) blob: BlobRef,
    /// The archive; `None` if the part was cached.
    pub(super) archive: Option<PathBuf>,
}

/// Error of packing the files of a task.
#[derive(Debug)]
pub(super) enum PackError {
    /// A fault of the files.
    Task(Box<ConfigError>),
    /// A file of the scratch directory cannot be used.
    Scratch(ArchiveError),
}

impl From<Box<ConfigError>> for PackError {
    fn from(error: Box<ConfigError>) -> Self {
        Self::Task(error)
    }
}

/// Source of a part.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct PartSource {
    /// Directories of the task; later ones override earlier ones.
    dirs: Vec<PathBuf>,
    ignore: IgnoreRules,
}

/// Rules that leave files out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum IgnoreRules {
    /// No rules: all files are packed.
    Nothing,
    /// `.dockerignore`.
    Docker,
    /// `.harborignore`.
    Harbor,
}

/// Field of a task's spec that refers to a part.
#[derive(Debug, Clone, Copy)]
enum PartSlot {
    Context,
    VerifierContext(usize),
    Solution(usize),
    Tests(usize),
    Workdir(usize),
}

/// Reads and packs the files of a task; archives are written below `scratch`. Parts cached in
/// `known` are not packed again. Conversations are read if there are agents that call models.
///
/// # Errors
/// The first error in its files, or of writing the archives.
pub(super) fn read(
    task: &DatasetTask,
    scratch: &Path,
    cache: Option<&PackCache>,
    has_model_agents: bool,
) -> Result<LoadedTaskFiles, PackError> {
    let format = task.file.format.format;
    let instructions = task.parts.steps.iter().map(|step| {
        let file = task.dir.join(&step.instruction);
        instruction::read(&file, format).map_err(|error| instruction_fault(&file, &error))
    });
    let instructions = instructions.collect::<Result<_, _>>()?;
    let sources = sources(task).into_iter().enumerate();
    let parts = sources.map(|(index, (source, slots))| {
        let archive = scratch.with_extension(index.to_string());
        part(task, source, slots, archive, cache)
    });
    let trajectories = task.file.steps.iter().enumerate().map(|(index, step)| {
        // Trials that need a file with a fault are not run.
        let is_needed = has_model_agents && task.model_fault.is_none();
        let file = trajectory::find(&task.dir, index, step).filter(|_| is_needed);
        let Some(file) = file else { return Ok(None) };
        let read = trajectory_file::read_valid(&file).map(|bytes| Some(Bytes::from(bytes)));
        read.map_err(|why| fault(&file, ErrorKind::Unreadable, why))
    });
    let trajectories = trajectories.collect::<Result<_, _>>()?;
    let parts = parts.collect::<Result<_, _>>()?;
    Ok(LoadedTaskFiles { instructions, trajectories, parts })
}

/// The sources of the task's parts, each with its slots.
fn sources(task: &DatasetTask) -> Vec<(PartSource, Vec<PartSlot>)> {
    let harbor = IgnoreRules::Harbor;
    let one = |dir: &Option<PathBuf>| dir.iter().cloned().collect::<Vec<_>>();
    // Services may use files that the image build ignores.
    let context = |compose: &Option<String>| match compose {
        Some(_) => IgnoreRules::Nothing,
        None => IgnoreRules::Docker,
    };
    let own = context(&task.parts.compose);
    let mut wanted = vec![(one(&task.parts.context), own, PartSlot::Context)];
    for (at, step) in task.parts.steps.iter().enumerate() {
        let own = context(&step.verifier_compose);
        wanted.push((one(&step.verifier_context), own, PartSlot::VerifierContext(at)));
        wanted.push((one(&step.solution), harbor, PartSlot::Solution(at)));
        wanted.push((step.tests.clone(), harbor, PartSlot::Tests(at)));
        wanted.push((one(&step.workdir), IgnoreRules::Nothing, PartSlot::Workdir(at)));
    }
    let mut index: HashMap<PartSource, usize> = HashMap::new();
    let mut sources: Vec<(PartSource, Vec<PartSlot>)> = Vec::new();
    for (dirs, ignore, slot) in wanted.into_iter().filter(|(dirs, ..)| !dirs.is_empty()) {
        let source = PartSource { dirs, ignore };
        let at = *index.entry(source.clone()).or_insert_with(|| {
            sources.push((source, Vec::new()));
            sources.len() - 1
        });
        sources[at].1.push(slot);
    }
    sources
}

fn part(
    task: &DatasetTask,
    source: PartSource,
    slots: Vec<PartSlot>,
    archive: PathBuf,
    cache: Option<&PackCache>,
) -> Result<PackedPart, PackError> {
    let found = source.fingerprint(task);
    let known = cache
        .zip(found)
        .and_then(|(known, found)| known.find(&task.dir, &source.name(), &found.digest));
    let fingerprint = found.filter(|found| found.settled).map(|found| found.digest);
    let (blob, archive) = match known {
        Some(blob) => (blob, None),
        None => (source.pack(task, &archive)?, Some(archive)),
    };
    Ok(PackedPart { source, slots, fingerprint, blob, archive })
}

impl PackedPart {
    /// Packs a part that was cached but is not in the store.
    pub(super) fn pack(mut self, task: &DatasetTask, archive: PathBuf) -> Result<Self, PackError> {
        self.blob = self.source.pack(task, &archive)?;
        self.archive = Some(archive);
        Ok(self)
    }

    /// Adds the stored part to the cache.
    pub(super) fn add_to_cache(&self, task: &Path, cache: &PackCache) {
        if let (Some(fingerprint), Some(_)) = (self.fingerprint, &self.archive) {
            cache.insert(task, &self.source.name(), fingerprint, &self.blob);
        }
    }

    /// Sets its blob in the task's spec.
    pub(super) fn assign_blob(&self, spec: &mut TaskSpec) {
        for slot in &self.slots {
            let blob = Some(self.blob.clone());
            match *slot {
                PartSlot::Context => spec.environment.context = blob,
                PartSlot::VerifierContext(at) => {
                    let own = spec.steps[at].verifier.environment.as_mut();
                    own.expect("only such steps have the part").context = blob;
                }
                PartSlot::Solution(at) => spec.steps[at].files.solution = blob,
                PartSlot::Tests(at) => spec.steps[at].files.tests = blob,
                PartSlot::Workdir(at) => spec.steps[at].files.workdir = blob,
            }
        }
    }
}

impl PartSource {
    /// Its cache key within its task.
    fn name(&self) -> String {
        let dirs: Vec<_> = self.dirs.iter().map(|dir| dir.display().to_string()).collect();
        format!("{:?} {}", self.ignore, dirs.join(" "))
    }

    fn fingerprint(&self, task: &DatasetTask) -> Option<fingerprint::Fingerprint> {
        let root = Path::new(harborignore::FILE_NAME);
        let root = (self.ignore == IgnoreRules::Harbor).then_some(root);
        let entries = self.dirs.iter().map(PathBuf::as_path).chain(root);
        fingerprint::compute(&task.dir, entries, &self.name())
    }

    fn pack(&self, task: &DatasetTask, archive: &Path) -> Result<BlobRef, PackError> {
        let [dir] = self.dirs.as_slice() else { return self.pack_merged(task, archive) };
        let filter = self.filter(&task.dir, dir)?;
        pack(&task.dir.join(dir), archive, &filter)
    }

    /// Packs several directories merged into one.
    fn pack_merged(&self, task: &DatasetTask, archive: &Path) -> Result<BlobRef, PackError> {
        let mut merged = archive.as_os_str().to_owned();
        merged.push(".merged");
        let merged = PathBuf::from(merged);
        for dir in &self.dirs {
            let filter = self.filter(&task.dir, dir)?;
            let from = task.dir.join(dir);
            let overlay = DirectoryMerge { from: &from, to: &merged, filter: &filter };
            let failed = |error| pack_error(&from, archive, error);
            overlay.directory(Path::new("")).map_err(failed)?;
        }
        let packed = pack(&merged, archive, &|_, _| FilterDecision::Include);
        // Anything left is removed with the scratch directory.
        let _removed = fs::remove_dir_all(&merged);
        packed
    }

    fn filter(&self, task: &Path, dir: &Path) -> Result<Box<PackFilter>, Box<ConfigError>> {
        let bad = |dir: &Path, name: &str| {
            let file = dir.join(name);
            move |error: io::Error| fault(&file, ErrorKind::BadFile, unreadable(&error))
        };
        Ok(match self.ignore {
            IgnoreRules::Nothing => Box::new(|_, _| FilterDecision::Include),
            IgnoreRules::Docker => {
                let context = task.join(dir);
                let ignore = Dockerignore::read(&context);
                let ignore = ignore.map_err(bad(&context, ".dockerignore"))?;
                Box::new(move |path, is_dir| filter_ignored(&ignore, path, is_dir))
            }
            IgnoreRules::Harbor => {
                let ignore = Harborignore::read(task, dir);
                let ignore = ignore.map_err(bad(task, harborignore::FILE_NAME))?;
                Box::new(move |path, is_dir| match path.to_str() {
                    Some(text) if ignore.excludes(text, is_dir) => FilterDecision::Exclude,
                    _ => FilterDecision::Include,
                })
            }
        })
    }
}

/// Decides whether a path is packed.
type PackFilter = dyn Fn(&Path, bool) -> FilterDecision;

/// A directory merged over another.
struct DirectoryMerge<'a> {
    from: &'a Path,
    to: &'a Path,
    filter: &'a PackFilter,
}

impl DirectoryMerge<'_> {
    fn directory(&self, path: &Path) -> Result<(), ArchiveError> {
        let (from, to) = (self.from.join(path), self.to.join(path));
        if fs::symlink_metadata(&to).is_ok_and(|there| !there.is_dir()) {
            fs::remove_file(&to).map_err(|error| io_error("replace", &to, error))?;
        }
        fs::create_dir_all(&to).map_err(|error| io_error("create", &to, error))?;
        let listing = |error| io_error("list", &from, error);
        for entry in fs::read_dir(&from).map_err(listing)? {
            let entry = entry.map_err(listing)?;
            let kind = entry.file_type().map_err(listing)?;
            let path = path.join(entry.file_name());
            if (self.filter)(&path, kind.is_dir()) == FilterDecision::Exclude {
                continue;
            }
            if kind.is_dir() {
                self.directory(&path)?;
            } else {
                self.file(&path, kind)?;
            }
        }
        Ok(())
    }

    fn file(&self, path: &Path, kind: fs::FileType) -> Result<(), ArchiveError> {
        let (from, to) = (self.from.join(path), self.to.join(path));
        let writing = |error| io_error("write", &to, error);
        match fs::symlink_metadata(&to) {
            Ok(there) if there.is_dir() => fs::remove_dir_all(&to).map_err(writing)?,
            Ok(_) => fs::remove_file(&to).map_err(writing)?,
            Err(_) => {}
        }
        let reading = |error| io_error("read", &from, error);
        if kind.is_symlink() {
            let target = fs::read_link(&from).map_err(reading)?;
            return std::os::unix::fs::symlink(target, &to).map_err(writing);
        }
        if !kind.is_file() {
            let reason = "it is neither a file, a directory nor a link";
            return Err(ArchiveError::NotPackable { path: path.to_owned(), reason });
        }
        // An error of the copy does not say which of the two files it is about.
        drop(fs::File::open(&from).map_err(reading)?);
        fs::copy(&from, &to).map(|_| ()).map_err(writing)
    }
}

fn pack(dir: &Path, archive: &Path, filter: &PackFilter) -> Result<BlobRef, PackError> {
    let packed = archive::pack(dir, archive, ArchiveLimits::BUNDLE, filter);
    let packed = packed.map_err(|error| pack_error(dir, archive, error))?;
    let (digest, size_bytes) = (packed.digest, packed.size_bytes);
    Ok(BlobRef { digest, size_bytes, media_type: Some(MediaType::Tar) })
}

/// Files that a build ignores are not part of a build context, in any environment.
fn filter_ignored(ignore: &Dockerignore, path: &Path, is_dir: bool) -> FilterDecision {
    let Some(text) = path.to_str() else { return FilterDecision::Include };
    if matches!(text, "Dockerfile" | ".dockerignore") || !ignore.excludes(text) {
        FilterDecision::Include
    } else if is_dir && ignore.has_exceptions() {
        FilterDecision::IncludeIfNotEmpty
    } else {
        FilterDecision::Exclude
    }
}

fn instruction_fault(file: &Path, error: &io::Error) -> Box<ConfigError> {
    match error.kind() {
        io::ErrorKind::FileTooLarge => {
            fault(file, ErrorKind::TooLarge, format!("more than {INSTRUCTION_BYTES} bytes"))
        }
        _ => fault(file, ErrorKind::Unreadable, unreadable(error)),
    }
}

/// The error of packing `dir` into `archive`: only one of its own files is a fault of the task.
fn pack_error(dir: &Path, archive: &Path, error: ArchiveError) -> PackError {
    let scratch = archive.parent().unwrap_or(archive);
    match &error {
        ArchiveError::Io { path, .. } if path.starts_with(scratch) => PackError::Scratch(error),
        _ => PackError::Task(pack_fault(dir, &error)),
    }
}

fn pack_fault(dir: &Path, error: &ArchiveError) -> Box<ConfigError> {
    match error {
        ArchiveError::NotPackable { path, reason } => {
            fault(&dir.join(path), ErrorKind::BadFile, format!("an unpackable entry: {reason}"))
        }
        ArchiveError::TooLarge { cut, .. } => {
            fault(dir, ErrorKind::TooLarge, format!("a directory that is too large: {cut}"))
        }
        ArchiveError::Io { path, source, .. } => {
            fault(path, ErrorKind::Unreadable, unreadable(source))
        }
        ArchiveError::Changed { path } => {
            let found = "a file that changed while it was packed".to_owned();
            fault(&dir.join(path), ErrorKind::Unreadable, found)
        }
        ArchiveError::Invalid { reason } => fault(dir, ErrorKind::BadFile, reason.clone()),
    }
}

fn io_error(action: &'static str, path: &Path, source: io::Error) -> ArchiveError {
    ArchiveError::Io { action, path: path.to_owned(), source }
}

fn unreadable(error: &io::Error) -> String {
    format!("an entry that cannot be read: {error}")
}

fn fault(file: &Path, kind: ErrorKind, found: String) -> Box<ConfigError> {
    let location = SourceLocation { key: String::new(), line: None };
    let expected = "readable files, directories, and links inside the task";
    Box::new(location.error(file, kind, found, expected))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directory_unreadable_is_reported_as_entry() {
        let dir = Path::new("/tasks/x/environment");
        let denied = io_error("list", &dir.join("data"), io::ErrorKind::PermissionDenied.into());
        let fault = pack_fault(dir, &denied);
        assert_eq!(fault.file, dir.join("data"));
        assert_eq!(fault.kind, ErrorKind::Unreadable);
        assert_eq!(fault.found, "an entry that cannot be read: permission denied");
    }
}
