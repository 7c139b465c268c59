//! Discovery of task directories.

use std::io;
use std::path::{Path, PathBuf};

/// The file that makes a directory a task.
pub(crate) const TASK_FILE: &str = "task.toml";

/// Contents of a dataset's path.
#[derive(Debug, PartialEq)]
pub(super) struct Discovery {
    /// Name of the dataset; `None` if the directory's name is not UTF-8.
    pub(super) name: Option<String>,
    /// Directories of tasks, by name.
    pub(super) tasks: Vec<PathBuf>,
    /// Directories that are not tasks, by name.
    pub(super) skipped: Vec<PathBuf>,
}

/// Finds tasks at `path`: the path itself, or its direct subdirectories.
pub(super) fn discover(path: &Path) -> io::Result<Discovery> {
    // `.` and `..` are named after the directory that they refer to.
    let real = std::fs::canonicalize(path)?;
    let name_of = |dir: Option<&Path>| {
        dir.and_then(Path::file_name).and_then(|name| name.to_str()).map(str::to_owned)
    };
    if is_task(&real) {
        let name = name_of(real.parent());
        return Ok(Discovery { name, tasks: vec![real], skipped: Vec::new() });
    }
    let mut found =
        Discovery { name: name_of(Some(&real)), tasks: Vec::new(), skipped: Vec::new() };
    for entry in std::fs::read_dir(path)? {
        let entry = entry?;
        let dir = entry.path();
        let hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
        if hidden || !dir.is_dir() {
            continue;
        }
        let list = if is_task(&dir) { &mut found.tasks } else { &mut found.skipped };
        list.push(dir);
    }
    found.tasks.sort_unstable();
    found.skipped.sort_unstable();
    Ok(found)
}

/// Whether a directory is a task.
pub(super) fn is_task(dir: &Path) -> bool {
    dir.join(TASK_FILE).symlink_metadata().is_ok()
}
