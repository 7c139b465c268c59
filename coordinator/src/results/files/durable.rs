//! Durable writing of files and directories.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use rollout_worker::shown_path::shown;
use serde::Serialize;

/// A file operation that failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {}", shown(path))]
pub struct FileError {
    /// Action, as a verb.
    pub action: &'static str,
    /// Path.
    pub path: PathBuf,
    /// The system's error.
    #[source]
    pub source: io::Error,
}

impl FileError {
    /// Closure for `map_err`.
    pub(crate) fn with_context(
        action: &'static str,
        path: &Path,
    ) -> impl FnOnce(io::Error) -> Self {
        move |source| Self { action, path: path.to_owned(), source }
    }
}

/// Replaces `path` by the JSON text of `value` atomically: after a crash it has either the old or
/// the new content.
pub(super) fn replace_json(path: &Path, value: &impl Serialize) -> Result<(), FileError> {
    let parent = path.parent().unwrap_or(Path::new("."));
    let mut file = tempfile::Builder::new()
        .prefix(".new-")
        .tempfile_in(parent)
        .map_err(FileError::with_context("create a file in", parent))?;
    write_json(file.as_file_mut(), value)
        .and_then(|()| file.as_file().sync_all())
        .and_then(|()| readable_by_all(file.as_file()))
        .map_err(FileError::with_context("write", path))?;
    file.persist(path)
        .map_err(|error| error.error)
        .map_err(FileError::with_context("replace", path))?;
    sync_dir(parent)
}

/// Writes `value` as pretty-printed JSON and a line end.
pub(crate) fn write_json(file: impl Write, value: &impl Serialize) -> io::Result<()> {
    let mut out = BufWriter::new(file);
    serde_json::to_writer_pretty(&mut out, value)?;
    out.write_all(b"\n")?;
    out.flush()
}

/// Makes a file readable by all: temporary files are private to their owner, results are not.
pub(crate) fn readable_by_all(file: &File) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    file.set_permissions(fs::Permissions::from_mode(0o644))
}

/// Makes the entries of a directory durable.
pub(crate) fn sync_dir(path: &Path) -> Result<(), FileError> {
    File::open(path).and_then(|dir| dir.sync_all()).map_err(FileError::with_context("sync", path))
}

/// Above this many files, one sync of the whole file system is cheaper than one sync per file.
const SYNC_ONE_BY_ONE: usize = 64;

/// Makes a directory and everything below it durable.
pub(crate) fn sync_tree(root: &Path) -> Result<(), FileError> {
    let mut paths = Vec::new();
    list(root, &mut paths)?;
    let open = |path: &Path| File::open(path).map_err(FileError::with_context("open", path));
    if paths.len() > SYNC_ONE_BY_ONE {
        let dir = open(root)?;
        return rustix::fs::syncfs(&dir)
            .map_err(io::Error::from)
            .map_err(FileError::with_context("sync", root));
    }
    for path in paths.iter().rev() {
        open(path)?.sync_all().map_err(FileError::with_context("sync", path))?;
    }
    Ok(())
}

/// Lists `root` and all regular files and directories below it, each directory before its content.
fn list(root: &Path, paths: &mut Vec<PathBuf>) -> Result<(), FileError> {
    paths.push(root.to_owned());
    for entry in fs::read_dir(root).map_err(FileError::with_context("list", root))? {
        let entry = entry.map_err(FileError::with_context("list", root))?;
        let kind = entry.file_type().map_err(FileError::with_context("list", root))?;
        if kind.is_dir() {
            list(&entry.path(), paths)?;
        } else if kind.is_file() {
            paths.push(entry.path());
        }
    }
    Ok(())
}

/// Removes the file or directory at `path`, if it exists.
pub(crate) fn remove(path: &Path) -> Result<(), FileError> {
    let removed = rollout_worker::fs_remove::remove_blocking(path);
    removed.map_err(|source| FileError { action: "remove", path: path.to_owned(), source })
}
