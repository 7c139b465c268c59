//! Files of a task's tests and solutions that `.harborignore` leaves out of a run: they are not sent.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rollout_base::confined::{ConfinedDir, ConfinedKind};

use super::harborignore::{self, Harborignore};
use super::layout::{COMPOSE_FILES, SOLUTION_FILES, STEPS_DIR, TESTS_FILES};

/// Parts of a task, and of a step, to which `.harborignore` applies, with the files that planning looks
/// at. These are always sent. The Python client has the same rules.
const PARTS: [(&str, [&str; 2]); 2] = [("tests", TESTS_FILES), ("solution", SOLUTION_FILES)];

/// Files that make a part a build context, to which `.harborignore` does not apply.
const BUILD_FILES: [&str; 3] = ["Dockerfile", COMPOSE_FILES[0], COMPOSE_FILES[1]];

/// Largest `.harborignore` that is applied to an upload. A larger one may have patterns that are too
/// large for a run, which the Python client could not tell.
const IGNORE_BYTES: u64 = 64 * 1024;

/// The files of a task that are not sent.
#[derive(Debug)]
pub(crate) struct UploadIgnore {
    /// The rules of its parts, by their paths in it. All files of other parts are sent.
    parts: HashMap<PathBuf, PartRules>,
}

#[derive(Debug)]
struct PartRules {
    ignore: Harborignore,
    /// Files that are sent although a pattern matches.
    looked_at: [&'static str; 2],
}

impl UploadIgnore {
    /// Reads the rules of a task of which no entry is a link, or has one below it that leads up. Blocks.
    ///
    /// # Errors
    /// The task cannot be listed.
    pub(super) fn read(task: &Path) -> io::Result<Self> {
        let root = ConfinedDir::open(task)?;
        let mut parts = HashMap::new();
        for step in std::iter::once(PathBuf::new()).chain(steps(task)?) {
            for (name, looked_at) in PARTS {
                let part = step.join(name);
                if let Some(ignore) = patterns(&root, &part, looked_at) {
                    parts.insert(part, PartRules { ignore, looked_at });
                }
            }
        }
        Ok(Self { parts })
    }

    /// Whether a path in the task is left out. Callers do not ask for those below one that is.
    pub(super) fn excludes(&self, path: &Path, is_dir: bool) -> bool {
        let mut parts = path.ancestors().skip(1);
        let Some((part, rules)) = parts.find_map(|part| Some((part, self.parts.get(part)?))) else {
            return false;
        };
        let inner = path.strip_prefix(part).ok().and_then(Path::to_str);
        inner.is_some_and(|inner| {
            !rules.looked_at.contains(&inner) && rules.ignore.excludes(inner, is_dir)
        })
    }
}

/// The directories of steps, by their paths in the task. None if a link may lead from one into another
/// or into a part: a file that one path leaves out may be needed by another one.
fn steps(task: &Path) -> io::Result<Vec<PathBuf>> {
    let directory = task.join(STEPS_DIR);
    let mut steps = Vec::new();
    if !directory.is_dir() {
        return Ok(steps);
    }
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_symlink() || (kind.is_dir() && has_link(&entry.path())?) {
            return Ok(Vec::new());
        }
        // The names of steps are UTF-8.
        if kind.is_dir() && entry.file_name().to_str().is_some() {
            steps.push(Path::new(STEPS_DIR).join(entry.file_name()));
        }
    }
    Ok(steps)
}

/// Whether an entry of a directory is a link.
fn has_link(directory: &Path) -> io::Result<bool> {
    for entry in fs::read_dir(directory)? {
        if entry?.file_type()?.is_symlink() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The patterns for the files of a part; `None` if all are sent.
fn patterns(root: &ConfinedDir, part: &Path, looked_at: [&str; 2]) -> Option<Harborignore> {
    let directory = root.path().join(part);
    let is_there = |file: &&str| directory.join(file).symlink_metadata().is_ok();
    // The file behind the link is looked at, too.
    let is_link = |file: &&str| directory.join(file).is_symlink();
    if !directory.is_dir() || BUILD_FILES.iter().any(is_there) || looked_at.iter().any(is_link) {
        return None;
    }
    let is_large = |file: &Path| match root.kind(file) {
        Ok(Some(ConfinedKind::File(size))) => size > IGNORE_BYTES,
        _ => false,
    };
    let name = Path::new(harborignore::FILE_NAME);
    if is_large(name) || is_large(&part.join(name)) {
        return None;
    }
    // The run reports a file that cannot be read.
    Harborignore::read(root, part).ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use tempfile::TempDir;

    use super::*;

    fn task(files: &[(&str, &str)]) -> TempDir {
        let root = tempfile::tempdir().expect("a directory");
        for (file, text) in files {
            let path = root.path().join(file);
            fs::create_dir_all(path.parent().expect("below the root")).expect("made");
            fs::write(path, text).expect("written");
        }
        root
    }

    #[track_caller]
    fn assert_excluded(task: &TempDir, expected: &[(&str, bool)]) {
        let ignore = UploadIgnore::read(task.path()).expect("readable");
        for (path, is_excluded) in expected {
            assert_eq!(ignore.excludes(Path::new(path), false), *is_excluded, "{path}");
        }
    }

    #[test]
    fn upload_without_ignored_files_keeps_what_planning_looks_at() {
        let task = task(&[
            (".harborignore", "*\n"),
            ("tests/.harborignore", "!kept\n"),
            ("solution/x", ""),
            ("steps/one/tests/x", ""),
        ]);
        let expected = [
            ("tests/x", true),
            ("tests/kept", false),
            ("tests/test.sh", false),
            ("tests/.harborignore", false),
            ("tests/solve.sh", true),
            ("solution/solve.sh", false),
            ("solution/test.sh", true),
            ("solution/deep/solve.sh", true),
            ("steps/one/tests/x", true),
            ("steps/one/tests/test.sh", false),
            ("steps/one/instruction.md", false),
            ("steps/one/workdir/tests/x", false),
            ("environment/x", false),
            ("tests", false),
            ("instruction.md", false),
        ];
        assert_excluded(&task, &expected);
    }

    #[test]
    fn upload_of_build_context_keeps_ignored_files() {
        for file in BUILD_FILES {
            let own = format!("tests/{file}");
            let task = task(&[(".harborignore", "x\n"), (&own, ""), ("solution/x", "")]);
            assert_excluded(&task, &[("tests/x", false), ("solution/x", true)]);
        }
    }

    #[test]
    fn upload_with_links_that_may_lead_to_ignored_files_keeps_them() {
        let files = [(".harborignore", "x\n"), ("tests/x", ""), ("steps/one/tests/x", "")];
        let expected = |of_tests, of_step| [("tests/x", of_tests), ("steps/one/tests/x", of_step)];
        for (target, link, expected) in [
            ("x", "tests/other", expected(true, true)),
            ("x", "tests/test.sh", expected(false, true)),
            ("x", "steps/one/tests/test.sh", expected(true, false)),
            ("one", "steps/two", expected(true, false)),
            ("tests/x", "steps/one/instruction.md", expected(true, false)),
        ] {
            let task = task(&files);
            symlink(target, task.path().join(link)).expect("linked");
            assert_excluded(&task, &expected);
        }
    }

    #[test]
    fn upload_with_unusable_patterns_keeps_all_files() {
        let large = format!("x\n{}", "#".repeat(64 * 1024));
        for own in [("tests/.harborignore", large.as_str()), ("tests/.harborignore/file", "")] {
            let task = task(&[(".harborignore", "x\n"), own, ("solution/x", "")]);
            assert_excluded(&task, &[("tests/x", false), ("solution/x", true)]);
        }
    }
}
