//! Packing of task parts that are not cached.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use rollout_base::confined::{ConfinedDir, leads_outside};
use rollout_environment::dockerignore::Dockerignore;
use rollout_protocol::blob::{BlobRef, MediaType};
use rollout_protocol::digest::Digest;
use rollout_protocol::limits::INSTRUCTION_BYTES;
use rollout_protocol::spec::task::TaskSpec;
use rollout_store::archive::{self, ArchiveError, ArchiveLimits, FilterDecision};
use rustix::fs::FileType;

use super::harborignore::{self, Harborignore};
use super::pack_cache::PackCache;
use super::upload_entries::is_read;
use super::{DatasetTask, fingerprint, instruction, trajectory};
use crate::config::{ConfigError, ErrorKind, SourceLocation, outside_task, trajectory_file};

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
    WorkdirFiles,
    VerifierContext(usize),
    VerifierWorkdirFiles(usize),
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
        let read = instruction::read(&task.dir, &step.instruction, format);
        read.map_err(|error| instruction_fault(&task.dir.join(&step.instruction), &error))
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
        let read = trajectory_file::read_valid_of_task(&task.dir, &file);
        let read = read.map(|bytes| Some(Bytes::from(bytes)));
        read.map_err(|why| fault(&task.dir.join(&file), ErrorKind::Unreadable, why))
    });
    let trajectories = trajectories.collect::<Result<_, _>>()?;
    let parts = parts.collect::<Result<_, _>>()?;
    Ok(LoadedTaskFiles { instructions, trajectories, parts })
}

/// The error of packing the files of a task, which a run would have. Archives are written below
/// `scratch`, and removed. Blocks.
///
/// # Errors
/// The archives cannot be written.
pub(crate) fn check(task: &DatasetTask, scratch: &Path) -> io::Result<Option<ConfigError>> {
    match read(task, scratch, None, false) {
        Ok(files) => {
            let mut archives = files.parts.iter().filter_map(|part| part.archive.as_ref());
            archives.try_for_each(fs::remove_file).map(|()| None)
        }
        Err(PackError::Task(error)) => Ok(Some(*error)),
        Err(PackError::Scratch(error)) => Err(io::Error::other(error)),
    }
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
    let files = one(&task.parts.workdir_files);
    let mut wanted = vec![
        (one(&task.parts.context), own, PartSlot::Context),
        (files.clone(), IgnoreRules::Nothing, PartSlot::WorkdirFiles),
    ];
    for (at, step) in task.parts.steps.iter().enumerate() {
        let own = context(&step.verifier_compose);
        wanted.push((one(&step.verifier_context), own, PartSlot::VerifierContext(at)));
        if step.verifier_shares_image {
            let slot = PartSlot::VerifierWorkdirFiles(at);
            wanted.push((files.clone(), IgnoreRules::Nothing, slot));
        }
        wanted.push((one(&step.solution), harbor, PartSlot::Solution(at)));
        wanted.push((step.tests.clone(), harbor, PartSlot::Tests(at)));
        wanted.push((one(&step.workdir), IgnoreRules::Nothing, PartSlot::Workdir(at)));
    }
    let mut index: HashMap<PartSource, usize> = HashMap::new();
    let mut sources: Vec<(PartSource, Vec<PartSlot>)> = Vec::new();
    for (dirs, ignore, slot) in wanted.into_iter().filter(|(dirs, ..)| !dirs.is_empty()) {
        debug_assert!(dirs.iter().all(|dir| is_read(dir)), "an upload lacks one of {dirs:?}");
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
                PartSlot::WorkdirFiles => spec.environment.workdir_files = blob,
                PartSlot::VerifierContext(at) => {
                    let own = spec.steps[at].verifier.environment.as_mut();
                    own.expect("only such steps have the part").context = blob;
                }
                PartSlot::VerifierWorkdirFiles(at) => {
                    let own = spec.steps[at].verifier.environment.as_mut();
                    own.expect("only such steps have the part").workdir_files = blob;
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
        let root = ConfinedDir::open(&task.dir).ok()?;
        let is_harbor = self.ignore == IgnoreRules::Harbor;
        let own = is_harbor.then(|| PathBuf::from(harborignore::FILE_NAME));
        let entries = self.dirs.iter().cloned().chain(own);
        // The files behind a link, not the link.
        let entries = entries.map(|entry| match root.resolve(&entry) {
            Ok(real) => real.strip_prefix(root.path()).map_or(real.clone(), Path::to_owned),
            Err(_) => entry,
        });
        let entries: Vec<PathBuf> = entries.collect();
        let entries = entries.iter().map(PathBuf::as_path);
        fingerprint::compute(root.path(), entries, &self.name())
    }

    fn pack(&self, task: &DatasetTask, archive: &Path) -> Result<BlobRef, PackError> {
        let root = ConfinedDir::open(&task.dir);
        let root =
            root.map_err(|error| fault(&task.dir, ErrorKind::Unreadable, unreadable(&error)))?;
        let [dir] = self.dirs.as_slice() else { return self.pack_merged(task, &root, archive) };
        let part = self.part(task, &root, dir)?;
        pack(&part.directory, &task.dir.join(dir), archive, &part.filter)
    }

    /// Packs several directories merged into one.
    fn pack_merged(
        &self,
        task: &DatasetTask,
        root: &ConfinedDir,
        archive: &Path,
    ) -> Result<BlobRef, PackError> {
        let mut merged = archive.as_os_str().to_owned();
        merged.push(".merged");
        let merged = PathBuf::from(merged);
        for dir in &self.dirs {
            let part = self.part(task, root, dir)?;
            let from = task.dir.join(dir);
            let overlay = DirectoryMerge { from: &from, to: &merged, filter: &part.filter };
            let failed = |error| pack_error(&from, archive, error);
            overlay.directory(&part.directory, Path::new("")).map_err(failed)?;
        }
        let directory = ConfinedDir::open(&merged);
        let directory =
            directory.map_err(|error| PackError::Scratch(io_error("list", &merged, error)))?;
        let packed = pack(&directory, &merged, archive, &|_, _| FilterDecision::Include);
        // Anything left is removed with the scratch directory.
        let _removed = fs::remove_dir_all(&merged);
        packed
    }

    /// A directory of the task, with the rules for its files.
    fn part(
        &self,
        task: &DatasetTask,
        root: &ConfinedDir,
        dir: &Path,
    ) -> Result<PartDirectory, Box<ConfigError>> {
        let full = task.dir.join(dir);
        let directory = root.directory(dir).map_err(|error| {
            if leads_outside(&error) {
                return Box::new(outside_task(&full));
            }
            fault(&full, ErrorKind::Unreadable, unreadable(&error))
        })?;
        let bad = |dir: &Path, name: &str| {
            let file = dir.join(name);
            move |error: io::Error| fault(&file, ignore_fault(&error), unreadable(&error))
        };
        let filter: Box<PackFilter> = match self.ignore {
            IgnoreRules::Nothing => Box::new(|_, _| FilterDecision::Include),
            IgnoreRules::Docker => {
                let ignore = Dockerignore::read(directory.path());
                let ignore = ignore.map_err(bad(&full, ".dockerignore"))?;
                Box::new(move |path, is_dir| filter_ignored(&ignore, path, is_dir))
            }
            IgnoreRules::Harbor => {
                let ignore = Harborignore::read(root, dir);
                let ignore = ignore.map_err(bad(&task.dir, harborignore::FILE_NAME))?;
                Box::new(move |path, is_dir| match path.to_str() {
                    Some(text) if ignore.excludes(text, is_dir) => FilterDecision::Exclude,
                    _ => FilterDecision::Include,
                })
            }
        };
        Ok(PartDirectory { directory, filter })
    }
}

/// Decides whether a path is packed.
type PackFilter = dyn Fn(&Path, bool) -> FilterDecision;

/// An open directory of a task, with the rules for its files.
struct PartDirectory {
    directory: ConfinedDir,
    filter: Box<PackFilter>,
}

/// A directory merged over another.
struct DirectoryMerge<'a> {
    /// Its path, for messages.
    from: &'a Path,
    to: &'a Path,
    filter: &'a PackFilter,
}

impl DirectoryMerge<'_> {
    fn directory(&self, directory: &ConfinedDir, path: &Path) -> Result<(), ArchiveError> {
        let (from, to) = (self.from.join(path), self.to.join(path));
        if fs::symlink_metadata(&to).is_ok_and(|there| !there.is_dir()) {
            fs::remove_file(&to).map_err(|error| io_error("replace", &to, error))?;
        }
        fs::create_dir_all(&to).map_err(|error| io_error("create", &to, error))?;
        let listing = |error| io_error("list", &from, error);
        for (name, kind) in directory.entries().map_err(listing)? {
            let path = path.join(&name);
            let is_dir = kind == FileType::Directory;
            if (self.filter)(&path, is_dir) == FilterDecision::Exclude {
                continue;
            }
            if is_dir {
                let below = directory.directory(Path::new(&name)).map_err(listing)?;
                self.directory(&below, &path)?;
            } else {
                self.file(directory, &name, &path, kind)?;
            }
        }
        Ok(())
    }

    fn file(
        &self,
        directory: &ConfinedDir,
        name: &OsStr,
        path: &Path,
        kind: FileType,
    ) -> Result<(), ArchiveError> {
        let (from, to) = (self.from.join(path), self.to.join(path));
        let writing = |error| io_error("write", &to, error);
        match fs::symlink_metadata(&to) {
            Ok(there) if there.is_dir() => fs::remove_dir_all(&to).map_err(writing)?,
            Ok(_) => fs::remove_file(&to).map_err(writing)?,
            Err(_) => {}
        }
        let reading = |error| io_error("read", &from, error);
        match kind {
            FileType::Symlink => {
                let target = directory.link(name).map_err(reading)?;
                std::os::unix::fs::symlink(target, &to).map_err(writing)
            }
            FileType::RegularFile => {
                let mut file = directory.file(Path::new(name)).map_err(reading)?;
                let permissions = file.metadata().map_err(reading)?.permissions();
                let mut copy = fs::File::create_new(&to).map_err(writing)?;
                io::copy(&mut file, &mut copy).map_err(writing)?;
                copy.set_permissions(permissions).map_err(writing)
            }
            _ => {
                let reason = "it is neither a file, a directory nor a link";
                Err(ArchiveError::NotPackable { path: path.to_owned(), reason })
            }
        }
    }
}

fn pack(
    directory: &ConfinedDir,
    shown: &Path,
    archive: &Path,
    filter: &PackFilter,
) -> Result<BlobRef, PackError> {
    let packed = archive::pack_directory(directory, archive, ArchiveLimits::BUNDLE, filter);
    let packed = packed.map_err(|error| pack_error(shown, archive, error))?;
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

/// Whether the task is at fault for a file with patterns that cannot be read, or the host.
fn ignore_fault(error: &io::Error) -> ErrorKind {
    use io::ErrorKind::{FileTooLarge, InvalidData, InvalidInput, IsADirectory, NotADirectory};
    let is_of_task = matches!(
        error.kind(),
        FileTooLarge | InvalidData | InvalidInput | IsADirectory | NotADirectory
    );
    if is_of_task || leads_outside(error) { ErrorKind::BadFile } else { ErrorKind::Unreadable }
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
    fn ignore_file_that_the_host_cannot_read_is_no_fault_of_its_task() {
        for (kind, expected) in [
            (io::ErrorKind::InvalidData, ErrorKind::BadFile),
            (io::ErrorKind::IsADirectory, ErrorKind::BadFile),
            (io::ErrorKind::PermissionDenied, ErrorKind::Unreadable),
            (io::ErrorKind::StaleNetworkFileHandle, ErrorKind::Unreadable),
            (io::ErrorKind::Other, ErrorKind::Unreadable),
        ] {
            assert_eq!(ignore_fault(&kind.into()), expected, "{kind:?}");
        }
    }

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
