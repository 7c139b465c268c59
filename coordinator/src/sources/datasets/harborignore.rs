//! `.harborignore`: files of `tests/` and `solution/` to leave out. Patterns are those of
//! `.gitignore`. A file at the root of the task applies to the whole task, one in a part to that
//! part; the last matching pattern wins, and the part's file overrides the root's.

use std::io;
use std::path::Path;

use ignore::gitignore::{Gitignore, GitignoreBuilder};
use rollout_base::confined::ConfinedDir;
use rollout_base::glob;

/// The file name.
pub(super) const FILE_NAME: &str = ".harborignore";

/// Largest file that is read.
const FILE_BYTES: u64 = 1024 * 1024;

/// Patterns for the files of one part of a task.
#[derive(Debug, Clone)]
pub(super) struct Harborignore {
    /// Patterns of the task's file, matched against paths from the root of the task.
    task: Gitignore,
    /// Patterns of the part's file, matched against paths in the part.
    part: Gitignore,
    /// The part's path in the task, with a trailing slash.
    prefix: String,
}

impl Harborignore {
    /// Reads the patterns for the files of `part` of a task. Absent files have none.
    ///
    /// # Errors
    /// If a file cannot be read, or its patterns are too large.
    pub(super) fn read(task: &ConfinedDir, part: &Path) -> io::Result<Self> {
        let inner = parse(&text(task, &part.join(FILE_NAME))?)?;
        let task = parse(&text(task, Path::new(FILE_NAME))?)?;
        Ok(Self { task, part: inner, prefix: format!("{}/", part.display()) })
    }

    /// Whether `path`, relative to the part, is left out. Callers do not descend into directories
    /// that are left out, so their contents are not matched.
    pub(super) fn excludes(&self, path: &str, is_dir: bool) -> bool {
        let nearer = self.part.matched(path, is_dir);
        nearer.or(self.task.matched(format!("{}{path}", self.prefix), is_dir)).is_ignore()
    }
}

fn text(task: &ConfinedDir, file: &Path) -> io::Result<String> {
    match task.read(file, FILE_BYTES) {
        Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        Err(error) => Err(error),
    }
}

/// Parses the patterns of a file. An invalid line matches nothing, as in git.
fn parse(text: &str) -> io::Result<Gitignore> {
    let mut builder = GitignoreBuilder::new("");
    for line in text.trim_start_matches('\u{feff}').lines() {
        let line = glob::for_globset(line, true);
        if let Err(error) = builder.add_line(None, &line) {
            tracing::debug!(line, %error, "invalid pattern ignored");
        }
    }
    builder.build().map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn excluded(text: &str, path: &str, is_dir: bool) -> bool {
        let ignore = Harborignore {
            task: Gitignore::empty(),
            part: parse(text).expect("patterns"),
            prefix: "tests/".to_owned(),
        };
        // As a directory walk does: excluded directories are not entered.
        let parents = path.match_indices('/').map(|(at, _)| &path[..at]);
        parents.into_iter().any(|dir| ignore.excludes(dir, true)) || ignore.excludes(path, is_dir)
    }

    /// The tests of the Python client read the same cases.
    #[test]
    fn harborignore_pattern_matches_as_in_python_client() {
        let document = include_str!("../../../../tests/fixtures/harborignore.json");
        let document: serde_json::Value = serde_json::from_str(document).expect("JSON");
        let cases: Vec<(String, String, bool)> =
            serde_json::from_value(document["matches"].clone()).expect("cases");
        for (text, path, expected) in &cases {
            assert_eq!(excluded(text, path, false), *expected, "{text:?} on {path:?}");
        }
    }

    #[test]
    fn harborignore_pattern_too_large_is_error() {
        let text = format!("a\n{}\n", "?".repeat(900_000));
        assert_eq!(parse(&text).expect_err("too large").kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn harborignore_in_part_overrides_that_of_task() {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::create_dir(dir.path().join("tests")).expect("made");
        let write = |file: &str, text: &str| std::fs::write(dir.path().join(file), text);
        write(FILE_NAME, "/tests/a\n/b\n*.tmp\n").expect("written");
        write("tests/.harborignore", "!keep.tmp\n/c\n").expect("written");
        let task = ConfinedDir::open(dir.path()).expect("a directory");
        let ignore = Harborignore::read(&task, Path::new("tests")).expect("read");
        for (path, expected) in
            [("a", true), ("b", false), ("c", true), ("x.tmp", true), ("keep.tmp", false)]
        {
            assert_eq!(ignore.excludes(path, false), expected, "{path}");
        }
    }
}
