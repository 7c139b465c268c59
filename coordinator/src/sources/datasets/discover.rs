//! Finds the directories of tasks.

use std::io;
use std::path::{Path, PathBuf};

/// The file that makes a directory a task.
pub(crate) const TASK_FILE: &str = "task.toml";

/// What a dataset's path holds.
#[derive(Debug, PartialEq)]
pub(super) struct Discovery {
    /// Name of the dataset, unless the directory has none that is text.
    pub(super) name: Option<String>,
    /// Directories of tasks, by name.
    pub(super) tasks: Vec<PathBuf>,
    /// Directories that are not tasks, by name.
    pub(super) skipped: Vec<PathBuf>,
}

/// Looks for tasks at `path`: the path itself, or its direct sub-directories.
pub(super) fn discover(path: &Path) -> io::Result<Discovery> {
    // The name of `.` or `..` is that of the directory behind it.
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

fn is_task(dir: &Path) -> bool {
    dir.join(TASK_FILE).symlink_metadata().is_ok()
}
