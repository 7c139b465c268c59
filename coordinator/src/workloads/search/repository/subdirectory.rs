//! Commits of a directory inside the user's repository.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rollout_store::git::{CommitIdentity, Git, GitError};

use super::RepositoryError;
use super::source_repo::git_error;

/// Fixed time of subdirectory commits, so that equal files give equal commits.
const COMMIT_IDENTITY: CommitIdentity = CommitIdentity { seconds: 0 };

/// Message of subdirectory commits.
const COMMIT_MESSAGE: &str = "The files at the root of the search\n";

/// Number of commits searched for one that has the files of a known subdirectory commit.
const MAX_SEARCHED_COMMITS: usize = 10_000;

/// A directory of the user's repository. Its commits are written to a temporary object directory:
/// the user's repository stays unchanged.
#[derive(Debug, Clone)]
pub(super) struct Subdirectory {
    git: Git,
    /// The directory, relative to the top of the repository.
    prefix: String,
    _objects: Arc<tempfile::TempDir>,
}

impl Subdirectory {
    /// The subdirectory in which a `git` runs; `None` at the top of a repository.
    pub(super) async fn from_git(git: &Git) -> Result<Option<Self>, RepositoryError> {
        let dir = git.dir();
        let failed = |source| git_error(dir, source);
        let prefix = git.call(["rev-parse", "--show-prefix"]).run_line().await.map_err(failed)?;
        let prefix = prefix.trim_end_matches('/').to_owned();
        if prefix.is_empty() {
            return Ok(None);
        }
        let args = ["rev-parse", "--path-format=absolute", "--git-path", "objects"];
        let user_objects = PathBuf::from(git.call(args).run_line().await.map_err(failed)?);
        let objects = create_object_directory(&user_objects)
            .map_err(|e| RepositoryError::io("prepare a temporary object directory for", dir, e))?;
        let git = git.clone().with_objects(objects.path());
        Ok(Some(Self { git, prefix, _objects: Arc::new(objects) }))
    }

    /// The git to call on the repository; it also finds the commits of the subdirectory.
    pub(super) fn git(&self) -> Git {
        self.git.clone()
    }

    /// The directory, relative to the top of the repository.
    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The subdirectory's commit for a commit of the repository; `None` if that has no such
    /// directory.
    pub(super) async fn commit(&self, of: &str) -> Result<Option<String>, RepositoryError> {
        let tree = format!("{of}:{}", self.prefix);
        let args = ["rev-parse", "--verify", "--quiet", "--end-of-options", &tree];
        let tree = match self.git.call(args).run_line().await {
            Ok(tree) => tree,
            Err(GitError::Failed { .. }) => return Ok(None),
            Err(source) => return Err(git_error(self.git.dir(), source)),
        };
        // The user's configuration could add a header.
        let args = ["-c", "i18n.commitEncoding=utf-8", "commit-tree", &tree];
        match COMMIT_IDENTITY.sign(self.git.call(args).input(COMMIT_MESSAGE)).run_line().await {
            Ok(commit) => Ok(Some(commit)),
            // The path is a file in that commit.
            Err(GitError::Failed { .. }) => Ok(None),
            Err(source) => Err(git_error(self.git.dir(), source)),
        }
    }

    /// Makes sure that a commit of the subdirectory exists. Another process may have made it when
    /// the repository was at another commit.
    pub(super) async fn ensure(&self, commit: &str) -> Result<(), RepositoryError> {
        let failed = |source| git_error(self.git.dir(), source);
        match self.git.call(["cat-file", "-e", commit]).run().await {
            Ok(_) => return Ok(()),
            Err(GitError::Failed { .. }) => {}
            Err(source) => return Err(failed(source)),
        }
        let past = format!("--max-count={MAX_SEARCHED_COMMITS}");
        let args = ["rev-list", &past, "--all", "HEAD", "--", "."];
        let past = self.git.call(args).run_line().await.map_err(failed)?;
        for one in past.lines() {
            if self.commit(one).await?.as_deref() == Some(commit) {
                return Ok(());
            }
        }
        let reason = format!("none of its commits has the files of {commit} in this directory");
        Err(RepositoryError::Unusable { path: self.git.dir().to_owned(), reason })
    }
}

/// Creates an object directory with another one as its alternate.
fn create_object_directory(alternate: &Path) -> std::io::Result<tempfile::TempDir> {
    let objects = tempfile::tempdir()?;
    std::fs::create_dir(objects.path().join("info"))?;
    let mut line = alternate.as_os_str().as_encoded_bytes().to_vec();
    line.push(b'\n');
    std::fs::write(objects.path().join("info/alternates"), line)?;
    Ok(objects)
}
