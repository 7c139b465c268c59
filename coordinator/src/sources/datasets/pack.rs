//! Packs the parts of a task, unless they are known.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use rollout_protocol::blob::{BlobRef, MediaType};
use rollout_protocol::digest::Digest;
use rollout_protocol::limits::INSTRUCTION_BYTES;
use rollout_protocol::spec::task::TaskSpec;
use rollout_worker::archive::{self, ArchiveError, FilterDecision, ArchiveLimits};
use rollout_worker::environment::dockerignore::Dockerignore;

use super::harborignore::{self, Harborignore};
use super::known::KnownParts;
use super::{Task, fingerprint, instruction};
use crate::config::{ConfigError, ErrorKind, Spot};

/// The files of a task, read.
pub(super) struct Files {
    /// The instruction of each step.
    pub(super) instructions: Vec<Vec<u8>>,
    /// The other parts, each once.
    pub(super) parts: Vec<Part>,
}

/// A part of a task.
pub(super) struct Part {
    source: Source,
    /// Where its blob belongs.
    slots: Vec<Slot>,
    /// What it was when it was packed, if that is certain.
    fingerprint: Option<Digest>,
    /// Its blob.
    pub(super) blob: BlobRef,
    /// The archive; nothing when the part was packed before.
    pub(super) archive: Option<PathBuf>,
}

/// What a part is made of.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Source {
    /// Directories of the task, later ones over earlier ones.
    dirs: Vec<PathBuf>,
    ignore: Ignore,
}

/// What decides which files are left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Ignore {
    /// Nothing: all are packed.
    Nothing,
    /// `.dockerignore`.
    Docker,
    /// `.harborignore`.
    Harbor,
}

/// Where a part belongs in the document of its task.
#[derive(Debug, Clone, Copy)]
enum Slot {
    Context,
    VerifierContext(usize),
    Solution(usize),
    Tests(usize),
    Workdir(usize),
}

/// Reads and packs the files of a task; archives go below `scratch`. Parts that are `known` are not
/// packed again.
///
/// # Errors
/// The first fault of its files.
pub(super) fn read(
    task: &Task,
    scratch: &Path,
    known: Option<&KnownParts>,
) -> Result<Files, Box<ConfigError>> {
    let format = task.file.format.format;
    let instructions = task.parts.steps.iter().map(|step| {
        let file = task.dir.join(&step.instruction);
        instruction::read(&file, format).map_err(|error| instruction_fault(&file, &error))
    });
    let instructions = instructions.collect::<Result<_, _>>()?;
    let sources = sources(task).into_iter().enumerate();
    let parts = sources.map(|(index, (source, slots))| {
        let archive = scratch.with_extension(index.to_string());
        part(task, source, slots, archive, known)
    });
    Ok(Files { instructions, parts: parts.collect::<Result<_, _>>()? })
}

/// What the task's parts are made of, and where each belongs.
fn sources(task: &Task) -> Vec<(Source, Vec<Slot>)> {
    let ours = Ignore::Harbor;
    let one = |dir: &Option<PathBuf>| dir.iter().cloned().collect::<Vec<_>>();
    // What a build would not see may still be what services are made of.
    let context = |compose: &Option<String>| match compose {
        Some(_) => Ignore::Nothing,
        None => Ignore::Docker,
    };
    let own = context(&task.parts.compose);
    let mut wanted = vec![(one(&task.parts.context), own, Slot::Context)];
    for (at, step) in task.parts.steps.iter().enumerate() {
        let own = context(&step.verifier_compose);
        wanted.push((one(&step.verifier_context), own, Slot::VerifierContext(at)));
        wanted.push((one(&step.solution), ours, Slot::Solution(at)));
        wanted.push((step.tests.clone(), ours, Slot::Tests(at)));
        wanted.push((one(&step.workdir), Ignore::Nothing, Slot::Workdir(at)));
    }
    let mut index: HashMap<Source, usize> = HashMap::new();
    let mut sources: Vec<(Source, Vec<Slot>)> = Vec::new();
    for (dirs, ignore, slot) in wanted.into_iter().filter(|(dirs, ..)| !dirs.is_empty()) {
        let source = Source { dirs, ignore };
        let at = *index.entry(source.clone()).or_insert_with(|| {
            sources.push((source, Vec::new()));
            sources.len() - 1
        });
        sources[at].1.push(slot);
    }
    sources
}

fn part(
    task: &Task,
    source: Source,
    slots: Vec<Slot>,
    archive: PathBuf,
    known: Option<&KnownParts>,
) -> Result<Part, Box<ConfigError>> {
    let found = source.fingerprint(task);
    let known = known
        .zip(found)
        .and_then(|(known, found)| known.find(&task.dir, &source.name(), &found.digest));
    let fingerprint = found.filter(|found| found.settled).map(|found| found.digest);
    let (blob, archive) = match known {
        Some(blob) => (blob, None),
        None => (source.pack(task, &archive)?, Some(archive)),
    };
    Ok(Part { source, slots, fingerprint, blob, archive })
}

impl Part {
    /// Packs the part, which was known but is not where it should be.
    pub(super) fn pack(mut self, task: &Task, archive: PathBuf) -> Result<Self, Box<ConfigError>> {
        self.blob = self.source.pack(task, &archive)?;
        self.archive = Some(archive);
        Ok(self)
    }

    /// Notes the part, which is stored, for those who come later.
    pub(super) fn note(&self, task: &Path, known: &KnownParts) {
        if let (Some(fingerprint), Some(_)) = (self.fingerprint, &self.archive) {
            known.note(task, &self.source.name(), fingerprint, &self.blob);
        }
    }

    /// Puts its blob where it belongs.
    pub(super) fn place(&self, spec: &mut TaskSpec) {
        for slot in &self.slots {
            let blob = Some(self.blob.clone());
            match *slot {
                Slot::Context => spec.environment.context = blob,
                Slot::VerifierContext(at) => {
                    let own = spec.steps[at].verifier.environment.as_mut();
                    own.expect("only such steps have the part").context = blob;
                }
                Slot::Solution(at) => spec.steps[at].files.solution = blob,
                Slot::Tests(at) => spec.steps[at].files.tests = blob,
                Slot::Workdir(at) => spec.steps[at].files.workdir = blob,
            }
        }
    }
}

impl Source {
    /// A name for it within its task.
    fn name(&self) -> String {
        let dirs: Vec<_> = self.dirs.iter().map(|dir| dir.display().to_string()).collect();
        format!("{:?} {}", self.ignore, dirs.join(" "))
    }

    fn fingerprint(&self, task: &Task) -> Option<fingerprint::Fingerprint> {
        let root = Path::new(harborignore::FILE_NAME);
        let root = (self.ignore == Ignore::Harbor).then_some(root);
        let entries = self.dirs.iter().map(PathBuf::as_path).chain(root);
        fingerprint::of(&task.dir, entries, &self.name())
    }

    fn pack(&self, task: &Task, archive: &Path) -> Result<BlobRef, Box<ConfigError>> {
        let [dir] = self.dirs.as_slice() else { return self.pack_merged(task, archive) };
        let filter = self.filter(&task.dir, dir)?;
        pack(&task.dir.join(dir), archive, &filter)
    }

    /// Packs what several directories come to when they are laid over one another.
    fn pack_merged(&self, task: &Task, archive: &Path) -> Result<BlobRef, Box<ConfigError>> {
        let mut merged = archive.as_os_str().to_owned();
        merged.push(".merged");
        let merged = PathBuf::from(merged);
        let failed = |dir: &Path| {
            let dir = task.dir.join(dir);
            move |error: std::io::Error| fault(&dir, ErrorKind::Unreadable, error.to_string())
        };
        for dir in &self.dirs {
            let filter = self.filter(&task.dir, dir)?;
            let overlay = Overlay { from: &task.dir.join(dir), to: &merged, filter: &filter };
            overlay.directory(Path::new("")).map_err(failed(dir))?;
        }
        let packed = pack(&merged, archive, &|_, _| FilterDecision::Yes);
        // What is left goes with the scratch directory.
        let _removed = fs::remove_dir_all(&merged);
        packed
    }

    fn filter(&self, task: &Path, dir: &Path) -> Result<Box<Filter>, Box<ConfigError>> {
        let bad = |dir: &Path, name: &str| {
            let file = dir.join(name);
            move |error: std::io::Error| fault(&file, ErrorKind::BadFile, error.to_string())
        };
        Ok(match self.ignore {
            Ignore::Nothing => Box::new(|_, _| FilterDecision::Yes),
            Ignore::Docker => {
                let context = task.join(dir);
                let ignore = Dockerignore::read(&context);
                let ignore = ignore.map_err(bad(&context, ".dockerignore"))?;
                Box::new(move |path, is_dir| keep(&ignore, path, is_dir))
            }
            Ignore::Harbor => {
                let ignore = Harborignore::read(task, dir);
                let ignore = ignore.map_err(bad(task, harborignore::FILE_NAME))?;
                Box::new(move |path, is_dir| match path.to_str() {
                    Some(text) if ignore.excludes(text, is_dir) => FilterDecision::No,
                    _ => FilterDecision::Yes,
                })
            }
        })
    }
}

/// Says of a path whether it is packed.
type Filter = dyn Fn(&Path, bool) -> FilterDecision;

/// One directory laid over another.
struct Overlay<'a> {
    from: &'a Path,
    to: &'a Path,
    filter: &'a Filter,
}

impl Overlay<'_> {
    fn directory(&self, path: &Path) -> std::io::Result<()> {
        let target = self.to.join(path);
        if fs::symlink_metadata(&target).is_ok_and(|there| !there.is_dir()) {
            fs::remove_file(&target)?;
        }
        fs::create_dir_all(&target)?;
        for entry in fs::read_dir(self.from.join(path))? {
            let entry = entry?;
            let kind = entry.file_type()?;
            let path = path.join(entry.file_name());
            if (self.filter)(&path, kind.is_dir()) == FilterDecision::No {
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

    fn file(&self, path: &Path, kind: fs::FileType) -> std::io::Result<()> {
        let (from, to) = (self.from.join(path), self.to.join(path));
        match fs::symlink_metadata(&to) {
            Ok(there) if there.is_dir() => fs::remove_dir_all(&to)?,
            Ok(_) => fs::remove_file(&to)?,
            Err(_) => {}
        }
        if kind.is_symlink() {
            return std::os::unix::fs::symlink(fs::read_link(from)?, to);
        }
        if !kind.is_file() {
            let what = "it is neither file, directory nor link";
            return Err(std::io::Error::other(format!("{}: {what}", from.display())));
        }
        fs::copy(from, to).map(|_| ())
    }
}

fn pack(dir: &Path, archive: &Path, filter: &Filter) -> Result<BlobRef, Box<ConfigError>> {
    let packed = archive::pack(dir, archive, ArchiveLimits::BUNDLE, filter);
    let packed = packed.map_err(|error| pack_fault(dir, &error))?;
    let (digest, size_bytes) = (packed.digest, packed.size_bytes);
    Ok(BlobRef { digest, size_bytes, media_type: Some(MediaType::Tar) })
}

/// What a build would not see is no part of a build context, whichever environment runs it.
fn keep(ignore: &Dockerignore, path: &Path, is_dir: bool) -> FilterDecision {
    let Some(text) = path.to_str() else { return FilterDecision::Yes };
    if matches!(text, "Dockerfile" | ".dockerignore") || !ignore.excludes(text) {
        FilterDecision::Yes
    } else if is_dir && ignore.has_exceptions() {
        FilterDecision::IfNotEmpty
    } else {
        FilterDecision::No
    }
}

fn instruction_fault(file: &Path, error: &std::io::Error) -> Box<ConfigError> {
    match error.kind() {
        std::io::ErrorKind::FileTooLarge => {
            fault(file, ErrorKind::TooLarge, format!("more than {INSTRUCTION_BYTES} bytes"))
        }
        _ => fault(file, ErrorKind::Unreadable, error.to_string()),
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
