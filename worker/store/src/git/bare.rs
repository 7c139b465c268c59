//! Bare repositories that Rollout makes.

use std::path::{Path, PathBuf};

use rollout_base::fs_make::make_directory;
use rollout_base::supervise;
use rollout_protocol::spec::eval::CommitBundle;

use super::{Git, GitCall, GitError, bundle, is_commit};

/// Attributes of every path in these repositories, whatever the repository itself says: plain
/// bytes. Nothing is converted, and no filter applies, in either direction.
const GIT_ATTRIBUTES: &str = "* -text -eol -ident -filter -working-tree-encoding\n";

/// Directories above that of a repository which may be missing: `repositories/mirrors` in that of a worker,
/// which must not appear again in part when something removed it.
const DIRECTORIES_ABOVE: u32 = 2;

/// A bare repository made by Rollout.
#[derive(Debug, Clone)]
pub struct BareRepository {
    git: Git,
}

/// Author and time of a commit: fixed, so that equal content gives equal commits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommitIdentity {
    /// Seconds since 1970.
    pub seconds: u64,
}

/// A file of a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TreeEntry {
    /// `100644`, `100755`, `120000` (a symbolic link) or `160000` (another repository's commit).
    pub mode: u32,
    /// Object name of its content.
    pub object: String,
    /// Size in bytes; `None` for another repository's commit.
    pub size_bytes: Option<u64>,
    /// Its path, which need not be UTF-8.
    pub path: Vec<u8>,
}

impl BareRepository {
    /// The repository in a directory filled by [`BareRepository::create`].
    pub fn from_dir(dir: impl Into<PathBuf>) -> Self {
        Self { git: Git::own_repository(dir) }
    }

    /// Creates a repository in a new directory and imports the root commit from a file, which is
    /// not checked: it belongs to the user. `name` refers to it.
    ///
    /// # Errors
    /// [`GitError`]; the directory is unusable then.
    pub async fn create(
        dir: &Path,
        root: &CommitBundle,
        file: &Path,
        name: &str,
    ) -> Result<Self, GitError> {
        if !is_commit(&root.commit) || root.parent.is_some() {
            let reason = "it is not the bundle of a root commit".to_owned();
            return Err(GitError::BadBundle { path: file.to_owned(), reason });
        }
        let new = dir.to_owned();
        let made = supervise::blocking(move || make_directory(&new, DIRECTORIES_ABOVE)).await;
        made.map_err(|error| GitError::io("create", dir, error))?;
        let bare = Self::from_dir(dir);
        let format = if root.commit.len() == 64 { "sha256" } else { "sha1" };
        let format = format!("--object-format={format}");
        bare.git.call(["init", "-q", "--bare", "--template=", &format]).run().await?;
        let info = dir.join("info");
        let files = [
            (info.join("attributes"), GIT_ATTRIBUTES.to_owned()),
            // Its parents are absent and not needed.
            (dir.join("shallow"), format!("{}\n", root.commit)),
        ];
        let write = move || {
            make_directory(&info, 0).map_err(|error| GitError::io("create", &info, error))?;
            files.into_iter().try_for_each(|(path, content)| {
                let written = std::fs::write(&path, content);
                written.map_err(|error| GitError::io("write", path, error))
            })
        };
        supervise::blocking(write).await?;
        bundle::read(&bare, file, root, name, false).await?;
        Ok(bare)
    }

    /// The git interface of the repository.
    pub const fn git(&self) -> &Git {
        &self.git
    }

    /// Its directory.
    pub fn dir(&self) -> &Path {
        self.git.dir()
    }

    /// The commit that a reference names; `None` if there is no such reference.
    ///
    /// # Errors
    /// [`GitError`].
    pub async fn reference(&self, name: &str) -> Result<Option<String>, GitError> {
        let args = ["rev-parse", "--verify", "--quiet", "--end-of-options", name];
        match self.git.call(args).run_line().await {
            Ok(commit) => Ok(Some(commit)),
            Err(GitError::Failed { code: Some(1), .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Parents of a commit.
    ///
    /// # Errors
    /// [`GitError`].
    pub async fn parents(&self, commit: &str) -> Result<Vec<String>, GitError> {
        let shown =
            self.git.call(["rev-list", "--parents", "--max-count=1", commit]).run_line().await?;
        Ok(shown.split(' ').skip(1).map(str::to_owned).collect())
    }

    /// Time of a commit, seconds since 1970.
    ///
    /// # Errors
    /// [`GitError`].
    pub async fn seconds(&self, commit: &str) -> Result<u64, GitError> {
        let args = ["log", "-1", "--no-show-signature", "--format=%ct", commit];
        let shown = self.git.call(args).run_line().await?;
        let unexpected = || GitError::Unexpected { what: "log".to_owned(), answer: shown.clone() };
        shown.parse().map_err(|_| unexpected())
    }

    /// The files of a commit, by path.
    ///
    /// # Errors
    /// [`GitError`].
    pub async fn tree(&self, commit: &str) -> Result<Vec<TreeEntry>, GitError> {
        let listed =
            self.git.call(["ls-tree", "-r", "-z", "-l", "--full-tree", commit]).run().await?;
        let entries = listed.split(|byte| *byte == 0).filter(|entry| !entry.is_empty());
        entries
            .map(|entry| {
                parse_entry(entry).ok_or_else(|| {
                    let answer = String::from_utf8_lossy(entry).into_owned();
                    GitError::Unexpected { what: "ls-tree".to_owned(), answer }
                })
            })
            .collect()
    }

    /// Writes the files of a commit to an empty directory. `index` is a file that must not exist;
    /// it becomes the index of the directory.
    ///
    /// # Errors
    /// [`GitError`].
    pub async fn export(&self, commit: &str, to: &Path, index: &Path) -> Result<(), GitError> {
        self.git.call(["read-tree", commit]).index(index).run().await?;
        let out = self.git.call(["checkout-index", "-a", "-q"]);
        out.index(index).work_tree(to).run().await?;
        Ok(())
    }

    /// Creates a commit of a tree; equal arguments give equal commits.
    ///
    /// # Errors
    /// [`GitError`].
    pub async fn commit(
        &self,
        tree: &str,
        parent: &str,
        message: &str,
        identity: CommitIdentity,
    ) -> Result<String, GitError> {
        let call = self.git.call(["commit-tree", "-p", parent, tree]).input(message);
        identity.sign(call).run_line().await
    }
}

impl CommitIdentity {
    /// Sets this identity for all commits of a call.
    pub fn sign(self, mut call: GitCall<'_>) -> GitCall<'_> {
        let date = format!("@{} +0000", self.seconds);
        for name in ["GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME"] {
            call = call.variable(name, "rollout");
        }
        for name in ["GIT_AUTHOR_EMAIL", "GIT_COMMITTER_EMAIL"] {
            call = call.variable(name, "rollout@localhost");
        }
        for name in ["GIT_AUTHOR_DATE", "GIT_COMMITTER_DATE"] {
            call = call.variable(name, date.clone());
        }
        call
    }
}

fn parse_entry(entry: &[u8]) -> Option<TreeEntry> {
    let tab = entry.iter().position(|byte| *byte == b'\t')?;
    let mut words = std::str::from_utf8(&entry[..tab]).ok()?.split_ascii_whitespace();
    let mode = u32::from_str_radix(words.next()?, 8).ok()?;
    let (_kind, object, size) = (words.next()?, words.next()?, words.next()?);
    let (object, size_bytes) = (object.to_owned(), size.parse().ok());
    Some(TreeEntry { mode, object, size_bytes, path: entry[tab + 1..].to_vec() })
}
