//! Durable writing of files and directories.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use rollout_base::durable;
use rollout_base::shown_path::shown;
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
    durable::sync_directory(path).map_err(FileError::with_context("sync", path))
}

/// Makes a directory and everything below it durable.
pub(crate) fn sync_tree(root: &Path) -> Result<(), FileError> {
    durable::sync_tree(root).map_err(FileError::with_context("sync", root))
}

/// Removes the file or directory at `path`, if it exists.
pub(crate) fn remove(path: &Path) -> Result<(), FileError> {
    let removed = rollout_base::fs_remove::remove_blocking(path);
    removed.map_err(|source| FileError { action: "remove", path: path.to_owned(), source })
}
