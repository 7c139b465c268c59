//! Writing of a build context's files and of uploads into a sandbox's tree.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use rollout_environment::build_context::{self, ContextEntry, ContextKind};
use rollout_environment::dockerignore::Dockerignore;
use rollout_environment::{Failure, FailureKind, Upload};
use rollout_store::archive::{self, ArchiveError};

use super::failure;
use super::host_view::HostView;
use super::tree::{SandboxTree, relative};
use crate::dockerfile::{CopyInstruction, RecipeStep, SandboxRecipe, matching};

/// Bytes at the start of a file that identify an archive.
const MAGIC_BYTES: usize = 512;

/// A tree, and the parts of the host that hide some of it.
#[derive(Debug, Clone, Copy)]
pub(super) struct SandboxTreeWriter<'a> {
    pub(super) tree: &'a SandboxTree,
    pub(super) host: &'a HostView,
}

impl SandboxTreeWriter<'_> {
    /// Applies uploads in order.
    pub(super) fn apply_uploads(self, uploads: Vec<Upload>) -> Result<(), Failure> {
        for upload in uploads {
            match upload {
                Upload::FreshDir { path } => {
                    let to = self.resolve_target(&path)?;
                    self.tree.fresh_dir(&to).map_err(|e| write_failure(&path, e))?;
                }
                Upload::Dir { path } => {
                    let to = self.resolve_target(&path)?;
                    self.tree.dir(&to).map_err(|e| write_failure(&path, e))?;
                }
                Upload::File { path, bytes, executable } => {
                    let to = self.resolve_target(&path)?;
                    let mode = if executable { 0o755 } else { 0o644 };
                    self.tree
                        .file(&to, &mut &bytes[..], mode)
                        .map_err(|e| write_failure(&path, e))?;
                }
                Upload::Archive { path, tar } => {
                    let to = self.resolve_target(&path)?;
                    let fill = |dir: &Path| unpack(&tar, dir);
                    self.tree.filled_dir(&to, fill).map_err(|e| write_failure(&path, e))?;
                }
                Upload::Merge { path, tar } => self.merge(&path, &tar)?,
            }
        }
        Ok(())
    }

    /// Applies the steps of a Dockerfile. Instructions that turn out to be unsupported here are
    /// skipped when `lenient`.
    pub(super) fn apply_recipe(
        self,
        recipe: &SandboxRecipe,
        context: &Path,
        lenient: bool,
    ) -> Result<(), Failure> {
        let mut entries = None;
        for step in &recipe.steps {
            match step {
                RecipeStep::Dir(path) => {
                    let to = relative(path).unwrap_or_default();
                    self.tree.make_dirs(&to).map_err(|e| write_failure(path, e))?;
                }
                RecipeStep::Copy(copy) => {
                    if entries.is_none() {
                        entries = Some(list(context)?);
                    }
                    self.apply_copy(
                        copy,
                        entries.as_deref().unwrap_or_default(),
                        context,
                        lenient,
                    )?;
                }
            }
        }
        Ok(())
    }

    /// Makes the working directory of scripts.
    pub(super) fn make_workdir(self, path: &str) -> Result<(), Failure> {
        let Some(to) = relative(path) else {
            let text = format!("the working directory `{path}` is not an absolute path");
            return Err(Failure::new(FailureKind::Refused, text));
        };
        if self.host.hidden_by(&to).is_some() && !Path::new(path).is_dir() {
            // Fails and names the directory of the host that hides it.
            self.resolve_target(path)?;
        }
        self.tree.make_dirs(&to).map(drop).map_err(|e| write_failure(path, e))
    }

    fn apply_copy(
        self,
        copy: &CopyInstruction,
        entries: &[ContextEntry],
        context: &Path,
        lenient: bool,
    ) -> Result<(), Failure> {
        let target = relative(&copy.target).unwrap_or_default();
        let is_dir = copy.target.ends_with('/') || self.tree.is_dir(&target);
        for source in &copy.sources {
            let refuse = |what: &str| {
                let name = if copy.add { "ADD" } else { "COPY" };
                let text = format!("Dockerfile line {}: {name}: `{source}` {what}", copy.line);
                Failure::new(FailureKind::Refused, text)
            };
            let found = matching(entries, source, is_dir)
                .ok_or_else(|| refuse("is not in the build context"))?;
            self.tree
                .make_dirs(if is_dir { &target } else { parent(&target) })
                .map_err(|e| write_failure(&copy.target, e))?;
            for (entry, below) in found {
                let from = context.join(&entry.path);
                let top_file = copy.add && !below.contains('/');
                let looked_at = top_file && entry.kind != ContextKind::Dir;
                if looked_at && is_archive(&from).map_err(|e| write_failure(&copy.target, e))? {
                    if lenient {
                        continue;
                    }
                    return Err(refuse("is an archive, which ADD would extract; use COPY"));
                }
                let to = if below.is_empty() { target.clone() } else { target.join(&below) };
                self.copy_entry(entry, &from, &to, copy.mode)
                    .map_err(|e| write_failure(&copy.target, e))?;
            }
        }
        Ok(())
    }

    fn copy_entry(
        self,
        entry: &ContextEntry,
        from: &Path,
        to: &Path,
        mode: Option<u32>,
    ) -> io::Result<()> {
        match &entry.kind {
            ContextKind::Dir => {
                let dir = self.tree.make_dirs(to)?;
                let mode = mode.map(rustix::fs::Mode::from_raw_mode);
                Ok(mode.map_or(Ok(()), |mode| rustix::fs::fchmod(&dir, mode))?)
            }
            ContextKind::File { executable } => {
                let mode = mode.unwrap_or(if *executable { 0o755 } else { 0o644 });
                self.tree.file(to, &mut File::open(from)?, mode)
            }
            ContextKind::Link { target } => self.tree.link(to, target),
        }
    }

    /// Puts the members of a deterministic archive below a directory, each replacing an existing
    /// entry.
    fn merge(self, path: &str, tar: &Path) -> Result<(), Failure> {
        let put = |staged: &Path, entries: Vec<PathBuf>| {
            for entry in entries {
                let name = format!("{}/{}", path.trim_end_matches('/'), entry.display());
                let to = self.resolve_target(&name)?;
                let from = staged.join(&entry);
                self.tree.merge(&from, &to).map_err(|e| write_failure(&name, e))?;
            }
            Ok(())
        };
        let staged =
            self.tree.staged_dir(|dir| unpack(tar, dir)).map_err(|e| write_failure(path, e))?;
        let entries = below(&staged).map_err(|e| write_failure(path, e));
        let placed = entries.and_then(|entries| put(&staged, entries));
        // Only empty directories are left in it.
        let _removed = std::fs::remove_dir_all(&staged);
        placed
    }

    /// The path of an upload in the tree.
    fn resolve_target(self, path: &str) -> Result<PathBuf, Failure> {
        let refuse = |what: String| Failure::new(FailureKind::Refused, what);
        let to = relative(path).filter(|to| to.file_name().is_some());
        let to = to.ok_or_else(|| refuse(format!("`{path}` is not a valid upload path")))?;
        match self.host.hidden_by(&to) {
            None => Ok(to),
            Some(by) => Err(refuse(format!(
                "`{path}`: {} is the host's own and read-only in a process sandbox",
                by.display()
            ))),
        }
    }
}

/// All entries below a directory that the sandbox cannot see, directories before their content.
fn below(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut open = vec![PathBuf::new()];
    while let Some(at) = open.pop() {
        for entry in std::fs::read_dir(dir.join(&at))? {
            let entry = entry?;
            let path = at.join(entry.file_name());
            if entry.file_type()?.is_dir() {
                open.push(path.clone());
            }
            found.push(path);
        }
    }
    Ok(found)
}

fn parent(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new(""))
}

fn write_failure(path: &str, error: io::Error) -> Failure {
    failure(&format!("put {path} into the sandbox"), error)
}

fn list(context: &Path) -> Result<Vec<ContextEntry>, Failure> {
    let refuse =
        |error| Failure::local(FailureKind::Refused, "cannot read the build context", error);
    let ignore = Dockerignore::read(context).map_err(refuse)?;
    build_context::list(context, &ignore, &[]).map_err(refuse)
}

/// Whether `ADD` would extract a file.
fn is_archive(path: &Path) -> io::Result<bool> {
    use std::io::Read as _;
    let mut magic = Vec::with_capacity(MAGIC_BYTES);
    let read = File::open(path).and_then(|f| f.take(MAGIC_BYTES as u64).read_to_end(&mut magic));
    match read {
        // A link to a path that does not exist here is no archive.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        other => other?,
    };
    let compressed: [&[u8]; 4] =
        [&[0x1f, 0x8b], b"BZh", &[0xfd, b'7', b'z', b'X', b'Z', 0], &[0x28, 0xb5, 0x2f, 0xfd]];
    Ok(compressed.iter().any(|start| magic.starts_with(start))
        || magic.get(257..262) == Some(b"ustar"))
}

/// Extracts a deterministic archive into a directory that the sandbox cannot see. Must be called on
/// a blocking thread of the runtime.
fn unpack(tar: &Path, dir: &Path) -> io::Result<()> {
    let opened = File::open(tar);
    let opened = opened.map_err(|error| io::Error::other(ArchiveError::io("open", tar, error)));
    let source = tokio::fs::File::from_std(opened?);
    let extracted = archive::extract_trusted(source, dir, archive::ArchiveLimits::BUNDLE);
    tokio::runtime::Handle::current().block_on(extracted).map_err(io::Error::other)
}
