//! Entries of a directory that a run of its tasks reads: those that are sent to a server.

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::path::{Component, Path};
use std::{fs, io};

use super::discover::{TASK_FILE, discover, is_task};
use super::layout::{ENVIRONMENT_DIR, STEPS_DIR};
use super::upload_ignore::UploadIgnore;
use super::{INSTRUCTION_FILE, harborignore, trajectory};

/// Entries of a task that planning and packing read. The Python client has the same list.
const READ_ENTRIES: [&str; 8] = [
    TASK_FILE,
    INSTRUCTION_FILE,
    trajectory::FILE_NAME,
    harborignore::FILE_NAME,
    ENVIRONMENT_DIR,
    "solution",
    "tests",
    STEPS_DIR,
];

/// A repository, which is sent only inside of what a run packs.
const REPOSITORY: &str = ".git";

/// Whether a path in a task belongs to what planning and packing read.
pub(super) fn is_read(path: &Path) -> bool {
    let first = path.components().next();
    first.is_some_and(|first| READ_ENTRIES.iter().any(|entry| first.as_os_str() == *entry))
}

/// The entries of a directory that are sent.
#[derive(Debug)]
pub(crate) enum UploadEntries {
    /// Those of one task.
    Task(TaskEntries),
    /// Those of the tasks of a dataset, by name.
    Dataset(HashMap<OsString, TaskEntries>),
    /// All: there is no task, or one behind a link. The tasks have these names.
    All(HashSet<OsString>),
}

/// The entries of one task that are sent.
#[derive(Debug)]
pub(crate) enum TaskEntries {
    /// Those that are read, without ignored files.
    Read(UploadIgnore),
    /// All: links may lead from those that are read to others.
    All,
}

impl UploadEntries {
    /// The entries of `directory`, whose path has no links. Blocks.
    ///
    /// # Errors
    /// It cannot be listed.
    pub(crate) fn of(directory: &Path) -> io::Result<Self> {
        if is_task(directory) {
            return Ok(Self::Task(TaskEntries::of(directory)?));
        }
        let tasks = discover(directory)?.tasks;
        let is_link = |task: &Path| task.symlink_metadata().is_ok_and(|found| found.is_symlink());
        let name_of = |task: &Path| task.file_name().unwrap_or_default().to_owned();
        if tasks.is_empty() || tasks.iter().any(|task| is_link(task)) {
            return Ok(Self::All(tasks.iter().map(|task| name_of(task)).collect()));
        }
        let entries = tasks
            .iter()
            .map(|task| -> io::Result<_> { Ok((name_of(task), TaskEntries::of(task)?)) });
        Ok(Self::Dataset(entries.collect::<io::Result<_>>()?))
    }

    /// Whether a path in the directory is sent. Callers do not ask for those below one that is not.
    pub(crate) fn include(&self, path: &Path, is_dir: bool) -> bool {
        let mut parts = path.components();
        match self {
            Self::Task(task) => task.include(path, is_dir),
            Self::Dataset(tasks) => match parts.next() {
                None => true,
                Some(name) => {
                    let task = tasks.get(name.as_os_str());
                    task.is_some_and(|task| task.include(parts.as_path(), is_dir))
                }
            },
            Self::All(tasks) => {
                if path.file_name() != Some(OsStr::new(REPOSITORY)) {
                    return true;
                }
                let is_of_task = parts.next().is_some_and(|name| tasks.contains(name.as_os_str()));
                is_of_task && parts.count() >= 2
            }
        }
    }
}

impl TaskEntries {
    fn of(task: &Path) -> io::Result<Self> {
        for entry in READ_ENTRIES {
            let path = task.join(entry);
            let kind = match path.symlink_metadata() {
                Ok(found) => found.file_type(),
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            if kind.is_symlink() || (kind.is_dir() && has_link_up(&path)?) {
                return Ok(Self::All);
            }
        }
        Ok(Self::Read(UploadIgnore::read(task)?))
    }

    /// Whether a path in the task is sent.
    fn include(&self, path: &Path, is_dir: bool) -> bool {
        match self {
            Self::Read(ignore) => {
                path == Path::new("") || (is_read(path) && !ignore.excludes(path, is_dir))
            }
            Self::All => path != Path::new(REPOSITORY),
        }
    }
}

/// Whether a link below a directory leads up, and so perhaps to another part of its task.
fn has_link_up(directory: &Path) -> io::Result<bool> {
    let mut directories = vec![directory.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(&directory)? {
            let entry = entry?;
            let kind = entry.file_type()?;
            if kind.is_dir() {
                directories.push(entry.path());
            } else if kind.is_symlink() {
                let target = fs::read_link(entry.path())?;
                if target.components().any(|part| part == Component::ParentDir) {
                    return Ok(true);
                }
            }
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use tempfile::TempDir;

    use super::*;
    use crate::sources::datasets::layout::entries_looked_at;

    fn directory(files: &[&str]) -> TempDir {
        let root = tempfile::tempdir().expect("a directory");
        for file in files {
            let path = root.path().join(file);
            fs::create_dir_all(path.parent().expect("below the root")).expect("made");
            fs::write(path, "").expect("written");
        }
        root
    }

    #[track_caller]
    fn assert_sent(root: &TempDir, expected: &[(&str, bool)]) {
        let entries = UploadEntries::of(root.path()).expect("listed");
        for (path, is_sent) in expected {
            assert_eq!(entries.include(Path::new(path), false), *is_sent, "{path}");
        }
    }

    #[test]
    fn entries_that_planning_looks_at_are_sent() {
        for entry in entries_looked_at().filter(|entry| entry != Path::new("workdir")) {
            assert!(is_read(&entry), "{}", entry.display());
        }
        for entry in [".harborignore", "steps/one/workdir", "task.toml", "solution/a"] {
            assert!(is_read(Path::new(entry)), "{entry}");
        }
    }

    #[test]
    fn only_entries_of_tasks_that_are_read_are_sent() {
        let files =
            ["README.md", "a/task.toml", "a/NOTES.md", "a/extra/data", "a/tests/x", "docs/b"];
        assert_sent(
            &directory(&files),
            &[
                ("", true),
                ("README.md", false),
                ("docs", false),
                (".git", false),
                ("a", true),
                ("a/task.toml", true),
                ("a/NOTES.md", false),
                ("a/extra", false),
                ("a/.git", false),
                ("a/tests/deep/.git", true),
                ("a/environment/.git", true),
            ],
        );
        let task = directory(&["task.toml", "tests/x"]);
        let expected =
            [("", true), ("tests/.git", true), (".git", false), ("b", false), ("steps/s", true)];
        assert_sent(&task, &expected);
    }

    #[test]
    fn task_with_links_between_its_parts_is_sent_whole() {
        let whole =
            [("a/common/x", true), ("a/.git", false), ("a/common/.git", true), ("b", false)];
        let deep = directory(&["a/task.toml", "a/common/x", "a/tests/t", "b"]);
        symlink("x", deep.path().join("a/tests/same")).expect("linked");
        assert_sent(&deep, &[("a/common/x", false)]);
        symlink("../common/x", deep.path().join("a/tests/up")).expect("linked");
        assert_sent(&deep, &whole);
        let entry = directory(&["a/task.toml", "a/common/x", "b"]);
        symlink("common", entry.path().join("a/environment")).expect("linked");
        assert_sent(&entry, &whole);
    }

    #[test]
    fn directory_without_tasks_or_with_links_to_them_is_sent_whole() {
        let baseline = directory(&["baseline.csv", "ideas/1.md"]);
        let expected = [("baseline.csv", true), ("ideas/1.md", true), ("ideas/.git", false)];
        assert_sent(&baseline, &expected);
        let linked = directory(&["a/task.toml", "shared/b/task.toml", "c"]);
        symlink("shared/b", linked.path().join("b")).expect("linked");
        let expected = [("c", true), ("shared/b", true), ("a/.git", false), ("a/x/.git", true)];
        assert_sent(&linked, &expected);
    }
}
