//! A directory of the user's repository as a commit of its own.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rollout_worker::git::{Git, GitError, CommitIdentity};

use super::RepositoryError;
use super::users::of_git;

/// When commits of parts were made: fixed, so that equal files give equal commits.
const MADE: CommitIdentity = CommitIdentity { seconds: 0 };

/// What commits of parts say.
const MESSAGE: &str = "The files at the root of the search\n";

/// Commits looked through for one that had the files of a part.
const PAST: usize = 10_000;

/// A directory of the user's repository. Its commits are made in a directory of ours: the user's
/// repository stays as it is.
#[derive(Debug, Clone)]
pub(super) struct Part {
    git: Git,
    /// The directory, from the top of the repository.
    prefix: String,
    _objects: Arc<tempfile::TempDir>,
}

impl Part {
    /// The part that the directory of a `git` is; nothing when that is a whole repository.
    pub(super) async fn of(git: &Git) -> Result<Option<Self>, RepositoryError> {
        let dir = git.dir();
        let asked = |source| of_git(dir, source);
        let prefix = git.call(["rev-parse", "--show-prefix"]).run_line().await.map_err(asked)?;
        let prefix = prefix.trim_end_matches('/').to_owned();
        if prefix.is_empty() {
            return Ok(None);
        }
        let args = ["rev-parse", "--path-format=absolute", "--git-path", "objects"];
        let theirs = PathBuf::from(git.call(args).run_line().await.map_err(asked)?);
        let objects = scratch(&theirs).map_err(|e| RepositoryError::disk("preparing", dir, e))?;
        let git = git.clone().with_objects(objects.path());
        Ok(Some(Self { git, prefix, _objects: Arc::new(objects) }))
    }

    /// The git to call on the repository: it finds the commits of the part, too.
    pub(super) fn git(&self) -> Git {
        self.git.clone()
    }

    /// The part's commit, as a commit of the repository has its files; nothing when that has none.
    pub(super) async fn commit(&self, of: &str) -> Result<Option<String>, RepositoryError> {
        let tree = format!("{of}:{}", self.prefix);
        let args = ["rev-parse", "--verify", "--quiet", "--end-of-options", &tree];
        let tree = match self.git.call(args).run_line().await {
            Ok(tree) => tree,
            Err(GitError::Failed { .. }) => return Ok(None),
            Err(source) => return Err(of_git(self.git.dir(), source)),
        };
        // The user's configuration could add a header.
        let args = ["-c", "i18n.commitEncoding=utf-8", "commit-tree", &tree];
        match MADE.sign(self.git.call(args).input(MESSAGE)).run_line().await {
            Ok(commit) => Ok(Some(commit)),
            // It was a file then.
            Err(GitError::Failed { .. }) => Ok(None),
            Err(source) => Err(of_git(self.git.dir(), source)),
        }
    }

    /// Makes sure that a commit of the part is there, which another process may have made when the
    /// repository was at another commit.
    pub(super) async fn ensure(&self, commit: &str) -> Result<(), RepositoryError> {
        let failed = |source| of_git(self.git.dir(), source);
        match self.git.call(["cat-file", "-e", commit]).run().await {
            Ok(_) => return Ok(()),
            Err(GitError::Failed { .. }) => {}
            Err(source) => return Err(failed(source)),
        }
        let past = format!("--max-count={PAST}");
        let args = ["rev-list", &past, "--all", "HEAD", "--", "."];
        let past = self.git.call(args).run_line().await.map_err(failed)?;
        for one in past.lines() {
            if self.commit(one).await?.as_deref() == Some(commit) {
                return Ok(());
            }
        }
        let reason = format!("none of its commits has the files of {commit} there");
        Err(RepositoryError::Unusable { path: self.git.dir().to_owned(), reason })
    }
}

/// A directory for objects, which finds those of another one.
fn scratch(theirs: &Path) -> std::io::Result<tempfile::TempDir> {
    let objects = tempfile::tempdir()?;
    std::fs::create_dir(objects.path().join("info"))?;
    let mut line = theirs.as_os_str().as_encoded_bytes().to_vec();
    line.push(b'\n');
    std::fs::write(objects.path().join("info/alternates"), line)?;
    Ok(objects)
}
