//! Lookup of the commit that a task was read from, by reading the repository's files. No program
//! runs, so a repository's configuration cannot run code.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use rollout_base::confined::{ConfinedDir, ConfinedKind, leads_outside};
use rollout_base::regular_file;

use crate::config::SourceBounds;

/// Longest chain of symbolic references followed.
const MAX_REFERENCE_DEPTH: usize = 5;

/// Largest file of a repository that is read: packed references of huge repositories fit.
const FILE_BYTES: u64 = 64 * 1024 * 1024;

/// Files of a git directory that name other directories with parts of the repository.
const LEADS: [&str; 3] = ["commondir", "objects/info/alternates", "objects/info/http-alternates"];

/// A file of an uploaded repository that leads to another directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RepositoryElsewhere(pub(super) PathBuf);

type FoundCommit = Result<Option<String>, RepositoryElsewhere>;

/// Commits by directory, each repository read once.
#[derive(Debug, Default)]
pub(super) struct CheckedOutCommits {
    by_dir: HashMap<PathBuf, FoundCommit>,
}

impl CheckedOutCommits {
    /// The commit checked out in the repository around `dir`, which is given without links; `None` if
    /// there is no repository, none that may be used, no commit yet, or a repository that cannot be read.
    ///
    /// # Errors
    /// [`RepositoryElsewhere`] for an upload whose repository is not in it.
    pub(super) fn find(&mut self, dir: &Path, bounds: &SourceBounds) -> FoundCommit {
        match RepositoryFiles::open(bounds) {
            Some(files) => self.find_enclosing(dir, &files),
            None => Ok(None),
        }
    }

    fn find_enclosing(&mut self, dir: &Path, files: &RepositoryFiles) -> FoundCommit {
        if let Some(known) = self.by_dir.get(dir) {
            return known.clone();
        }
        let commit = match files.git_dir(dir) {
            Ok(Some(git_dir)) => Ok(files.head(&git_dir)),
            Ok(None) => match dir.parent() {
                Some(parent) if files.has(parent) => self.find_enclosing(parent, files),
                // The repository around a directory of the operator is the operator's, too.
                Some(parent) if !files.is_upload() => {
                    self.find_enclosing(parent, &RepositoryFiles::Host)
                }
                _ => Ok(None),
            },
            Err(elsewhere) => Err(elsewhere),
        };
        self.by_dir.insert(dir.to_owned(), commit.clone());
        commit
    }
}

/// The commit checked out in the repository around a directory of this host, if there is one.
pub(crate) fn checked_out_commit(dir: &Path) -> Option<String> {
    let real = fs::canonicalize(dir).ok()?;
    CheckedOutCommits::default().find(&real, &SourceBounds::Host).ok().flatten()
}

/// Files of repositories within bounds.
enum RepositoryFiles {
    Host,
    Below { root: ConfinedDir, is_upload: bool },
}

impl RepositoryFiles {
    fn open(bounds: &SourceBounds) -> Option<Self> {
        let (root, is_upload) = match bounds {
            SourceBounds::Host => return Some(Self::Host),
            SourceBounds::Listed(root) => (root, false),
            SourceBounds::Upload(root) => (root, true),
        };
        Some(Self::Below { root: ConfinedDir::open(root).ok()?, is_upload })
    }

    /// Whether a directory is within the bounds.
    fn has(&self, dir: &Path) -> bool {
        match self {
            Self::Host => true,
            Self::Below { root, .. } => dir.starts_with(root.path()),
        }
    }

    fn is_upload(&self) -> bool {
        matches!(self, Self::Below { is_upload: true, .. })
    }

    fn kind(&self, path: &Path) -> std::io::Result<Option<ConfinedKind>> {
        match self {
            Self::Host => Ok(fs::metadata(path).ok().map(|metadata| match metadata.is_dir() {
                true => ConfinedKind::Directory,
                false => ConfinedKind::File(metadata.len()),
            })),
            Self::Below { root, .. } => root.kind(path),
        }
    }

    fn read(&self, file: &Path) -> Option<String> {
        match self {
            Self::Host => regular_file::read_text(file, FILE_BYTES),
            Self::Below { root, .. } => root.read_text(file, FILE_BYTES),
        }
        .ok()
    }

    /// The git directory of a repository with its root at `dir`. Worktrees and submodules have a file
    /// there with its path.
    fn git_dir(&self, dir: &Path) -> Result<Option<PathBuf>, RepositoryElsewhere> {
        let dot_git = dir.join(".git");
        let is_upload = self.is_upload();
        let git_dir = match self.kind(&dot_git) {
            Ok(Some(ConfinedKind::Directory)) => {
                let mut leads = LEADS.iter().map(|lead| dot_git.join(lead));
                let is_there = |lead: &PathBuf| !matches!(self.kind(lead), Ok(None));
                if is_upload && let Some(lead) = leads.find(is_there) {
                    return Err(RepositoryElsewhere(lead));
                }
                Some(dot_git)
            }
            Ok(Some(_)) if is_upload => return Err(RepositoryElsewhere(dot_git)),
            Err(error) if is_upload && leads_outside(&error) => {
                return Err(RepositoryElsewhere(dot_git));
            }
            Ok(Some(_)) => self
                .read(&dot_git)
                .and_then(|text| Some(dir.join(text.trim_end().strip_prefix("gitdir: ")?))),
            Ok(None) | Err(_) => None,
        };
        let has_head = |git_dir: &PathBuf| {
            matches!(self.kind(&git_dir.join("HEAD")), Ok(Some(ConfinedKind::File(_))))
        };
        Ok(git_dir.filter(has_head))
    }

    fn head(&self, git_dir: &Path) -> Option<String> {
        // A worktree has its own HEAD and shares the references.
        let common = match self.read(&git_dir.join("commondir")) {
            Some(common) => git_dir.join(common.trim_end()),
            None => git_dir.to_owned(),
        };
        let mut text = self.read(&git_dir.join("HEAD"))?;
        for _ in 0..MAX_REFERENCE_DEPTH {
            let Some(name) = text.trim_end().strip_prefix("ref: ") else {
                return commit(text.trim_end());
            };
            if !is_reference(name) {
                return None;
            }
            let loose = self.read(&git_dir.join(name)).or_else(|| self.read(&common.join(name)));
            text = match loose {
                Some(text) => text,
                None => return self.packed(&common, name),
            };
        }
        None
    }

    fn packed(&self, common: &Path, name: &str) -> Option<String> {
        let text = self.read(&common.join("packed-refs"))?;
        let mut pairs = text.lines().filter_map(|line| line.split_once(' '));
        pairs.find(|(_, reference)| *reference == name).and_then(|(id, _)| commit(id))
    }
}

fn is_reference(name: &str) -> bool {
    name.starts_with("refs/") && !name.split('/').any(|part| matches!(part, "" | "." | ".."))
}

fn commit(text: &str) -> Option<String> {
    let is_id = matches!(text.len(), 40 | 64) && text.bytes().all(|b| b.is_ascii_hexdigit());
    is_id.then(|| text.to_ascii_lowercase())
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
        let root = &root.path().canonicalize().expect("a path");
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
        let listed = SourceBounds::Listed(root.clone());
        for bounds in [SourceBounds::Host, listed] {
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
                let found = commits.find(&root.join(dir), &bounds).expect("no upload");
                assert_eq!(found.as_deref(), expected, "{dir}");
            }
            assert_eq!(commits.find(&root.join("absent"), &bounds), Ok(None));
        }
    }

    #[test]
    fn repository_of_a_listed_directory_does_not_lead_out_of_it() {
        let root = tempfile::tempdir().expect("a directory");
        let root = &root.path().canonicalize().expect("a path");
        write(root, ".git/HEAD", &format!("{ONE}\n"));
        write(root, "set/task/file", "");
        write(root, "other/HEAD", &format!("{TWO}\n"));
        write(root, "other/refs/heads/main", &format!("{TWO}\n"));
        write(root, "set/tree/.git", &format!("gitdir: {}/other\n", root.display()));
        write(root, "set/shared/.git/HEAD", "ref: refs/heads/main\n");
        write(root, "set/shared/.git/commondir", "../../../other\n");
        let set = || root.join("set");
        for (dir, in_host, in_listed) in [
            ("set", Some(ONE), Some(ONE)),
            ("set/task", Some(ONE), Some(ONE)),
            ("set/tree", Some(TWO), Some(ONE)),
            ("set/shared", Some(TWO), None),
        ] {
            for (bounds, expected) in
                [(SourceBounds::Host, in_host), (SourceBounds::Listed(set()), in_listed)]
            {
                let mut commits = CheckedOutCommits::default();
                let found = commits.find(&root.join(dir), &bounds).expect("no upload");
                assert_eq!(found.as_deref(), expected, "{dir} {bounds:?}");
            }
        }
        // The repository around an upload is that of the server.
        let found = CheckedOutCommits::default().find(&set(), &SourceBounds::Upload(set()));
        assert_eq!(found, Ok(None));
    }

    #[test]
    fn repository_of_an_upload_that_leads_elsewhere_is_refused() {
        for (path, text) in [
            (".git", "gitdir: ../other/.git\n"),
            (".git", "gitdir: repository\n"),
            (".git/commondir", "../..\n"),
            (".git/objects/info/alternates", "/srv/repository/objects\n"),
        ] {
            let root = tempfile::tempdir().expect("a directory");
            let root = &root.path().canonicalize().expect("a path");
            write(root, "upload/repository/HEAD", &format!("{ONE}\n"));
            write(root, &format!("upload/{path}"), text);
            if path != ".git" {
                write(root, "upload/.git/HEAD", &format!("{ONE}\n"));
            }
            fs::create_dir_all(root.join("upload/task")).expect("made");
            let bounds = SourceBounds::Upload(root.join("upload"));
            let found = CheckedOutCommits::default().find(&root.join("upload/task"), &bounds);
            let lead = root.join("upload").join(path);
            assert_eq!(found, Err(RepositoryElsewhere(lead)), "{path}");
        }
    }
}
