//! Lookup of the commit that a task was read from, by reading the repository's files. No program
//! runs, so a repository's configuration cannot run code.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use rollout_worker::regular_file;

/// Longest chain of symbolic references followed.
const MAX_REFERENCE_DEPTH: usize = 5;

/// Largest file of a repository that is read: packed references of huge repositories fit.
const FILE_BYTES: u64 = 64 * 1024 * 1024;

/// Commits by directory, each repository read once.
#[derive(Debug, Default)]
pub(super) struct CheckedOutCommits {
    by_dir: HashMap<PathBuf, Option<String>>,
}

impl CheckedOutCommits {
    /// The commit checked out in the repository around `dir`; `None` if there is no repository, no
    /// commit yet, or a repository that cannot be read.
    pub(super) fn find(&mut self, dir: &Path) -> Option<String> {
        let real = fs::canonicalize(dir).ok()?;
        self.find_enclosing(&real)
    }

    fn find_enclosing(&mut self, dir: &Path) -> Option<String> {
        if let Some(known) = self.by_dir.get(dir) {
            return known.clone();
        }
        let commit = match git_dir(dir) {
            Some(git_dir) => head(&git_dir),
            None => dir.parent().and_then(|parent| self.find_enclosing(parent)),
        };
        self.by_dir.insert(dir.to_owned(), commit.clone());
        commit
    }
}

/// The commit checked out in the repository around a directory, if there is one.
pub(crate) fn checked_out_commit(dir: &Path) -> Option<String> {
    CheckedOutCommits::default().find(dir)
}

/// The git directory of a repository with its root at `dir`. Worktrees and submodules have a file
/// there with its path.
fn git_dir(dir: &Path) -> Option<PathBuf> {
    let dot_git = dir.join(".git");
    let metadata = fs::metadata(&dot_git).ok()?;
    let git_dir = if metadata.is_dir() {
        dot_git
    } else {
        dir.join(read(&dot_git)?.trim_end().strip_prefix("gitdir: ")?)
    };
    git_dir.join("HEAD").is_file().then_some(git_dir)
}

fn head(git_dir: &Path) -> Option<String> {
    // A worktree has its own HEAD and shares the references.
    let common = match read(&git_dir.join("commondir")) {
        Some(common) => git_dir.join(common.trim_end()),
        None => git_dir.to_owned(),
    };
    let mut text = read(&git_dir.join("HEAD"))?;
    for _ in 0..MAX_REFERENCE_DEPTH {
        let Some(name) = text.trim_end().strip_prefix("ref: ") else {
            return commit(text.trim_end());
        };
        if !is_reference(name) {
            return None;
        }
        let loose = read(&git_dir.join(name)).or_else(|| read(&common.join(name)));
        text = match loose {
            Some(text) => text,
            None => return packed(&common, name),
        };
    }
    None
}

fn packed(common: &Path, name: &str) -> Option<String> {
    let text = read(&common.join("packed-refs"))?;
    let mut pairs = text.lines().filter_map(|line| line.split_once(' '));
    pairs.find(|(_, reference)| *reference == name).and_then(|(id, _)| commit(id))
}

fn is_reference(name: &str) -> bool {
    name.starts_with("refs/") && !name.split('/').any(|part| matches!(part, "" | "." | ".."))
}

fn commit(text: &str) -> Option<String> {
    let is_id = matches!(text.len(), 40 | 64) && text.bytes().all(|b| b.is_ascii_hexdigit());
    is_id.then(|| text.to_ascii_lowercase())
}

fn read(file: &Path) -> Option<String> {
    regular_file::read_text(file, FILE_BYTES).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "1111111111111111111111111111111111111111";
    const TWO: &str = "2222222222222222222222222222222222222222";

    fn write(root: &Path, path: &str, text: &str) {
        let file = root.join(path);
        fs::create_dir_all(file.parent().expect("a parent")).expect("made");
        fs::write(file, text).expect("written");
    }

    #[test]
    fn git_commit_is_found_in_every_repository_layout() {
        let root = tempfile::tempdir().expect("a directory");
        let root = root.path();
        write(root, "loose/.git/HEAD", "ref: refs/heads/main\n");
        write(root, "loose/.git/refs/heads/main", &format!("{ONE}\n"));
        write(root, "detached/.git/HEAD", &format!("{TWO}\n"));
        write(root, "packed/.git/HEAD", "ref: refs/heads/main\n");
        write(
            root,
            "packed/.git/packed-refs",
            &format!(
                "# pack-refs with: peeled\n{ONE} refs/heads/other\n^{ONE}\n{TWO} refs/heads/main\n"
            ),
        );
        write(root, "tree/.git", "gitdir: ../loose/.git/worktrees/tree\n");
        write(root, "loose/.git/worktrees/tree/HEAD", "ref: refs/heads/topic\n");
        write(root, "loose/.git/worktrees/tree/commondir", "../..\n");
        write(root, "loose/.git/refs/heads/topic", &format!("{TWO}\n"));
        write(root, "unborn/.git/HEAD", "ref: refs/heads/main\n");
        write(root, "evil/.git/HEAD", "ref: refs/../../../secret\n");
        write(root, "loop/.git/HEAD", "ref: refs/heads/a\n");
        write(root, "loop/.git/refs/heads/a", "ref: refs/heads/a\n");
        write(root, "broken/.git", "nonsense");
        let mut commits = CheckedOutCommits::default();
        for (dir, expected) in [
            ("loose", Some(ONE)),
            ("loose/deep/below", Some(ONE)),
            ("detached", Some(TWO)),
            ("packed", Some(TWO)),
            ("tree", Some(TWO)),
            ("unborn", None),
            ("evil", None),
            ("loop", None),
        ] {
            fs::create_dir_all(root.join(dir)).expect("made");
            assert_eq!(commits.find(&root.join(dir)).as_deref(), expected, "{dir}");
        }
        assert_eq!(commits.find(&root.join("absent")), None);
    }
}
