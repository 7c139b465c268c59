//! The user's repository, or a directory inside it. A search never changes it, and no checkout is made
//! from it directly.

use std::path::{Path, PathBuf};

use rollout_protocol::blob::MediaType;
use rollout_protocol::limits;
use rollout_protocol::spec::eval::CommitBundle;
use rollout_store::BlobStore;
use rollout_store::git::{Git, GitError, bundle, is_commit};

use super::RepositoryError;
use super::subdirectory::Subdirectory;

/// The user's repository, or a directory inside it.
#[derive(Debug, Clone)]
pub struct SourceRepository {
    git: Git,
    /// Its work tree, unless it is bare.
    top: Option<PathBuf>,
    part: Option<Subdirectory>,
}

impl SourceRepository {
    /// Opens the repository at a directory. A directory inside a repository counts as a repository
    /// of its own without history.
    ///
    /// # Errors
    /// [`RepositoryError::Unusable`] if there is none; errors of git.
    pub async fn open(dir: &Path) -> Result<Self, RepositoryError> {
        let unusable = |reason: &str| RepositoryError::Unusable {
            path: dir.to_owned(),
            reason: reason.to_owned(),
        };
        let dir = dir.canonicalize().map_err(|_| unusable("no such directory"))?;
        let git = Git::user_repository(&dir);
        let asked = git.call(["rev-parse", "--is-bare-repository", "--is-inside-work-tree"]);
        let top = match asked.run_line().await {
            Ok(answer) if answer.starts_with("true") => None,
            Ok(answer) if answer.ends_with("true") => {
                let top = git.call(["rev-parse", "--show-toplevel"]).run_line().await;
                Some(PathBuf::from(top.map_err(|source| git_error(&dir, source))?))
            }
            Ok(_) => return Err(unusable("it is inside a git directory")),
            Err(GitError::Failed { said, .. }) => return Err(unusable(&said)),
            Err(source) => return Err(git_error(&dir, source)),
        };
        let part = Subdirectory::from_git(&git).await?;
        let git = part.as_ref().map_or(git, Subdirectory::git);
        Ok(Self { git, top, part })
    }

    /// Its directory.
    pub(super) fn dir(&self) -> &Path {
        self.git.dir()
    }

    /// Its work tree, unless it is bare.
    pub(super) fn top(&self) -> Option<&Path> {
        self.top.as_deref()
    }

    /// The directory inside its repository, relative to the top.
    pub(super) fn prefix(&self) -> Option<&str> {
        self.part.as_ref().map(Subdirectory::prefix)
    }

    /// Refuses uncommitted changes below the directory: the search would not contain them.
    /// Untracked files count; ignored files and files below `except` do not.
    ///
    /// # Errors
    /// [`RepositoryError::Dirty`]; errors of git.
    pub async fn check_clean(&self, except: &[PathBuf]) -> Result<(), RepositoryError> {
        let Some(top) = &self.top else { return Ok(()) };
        let args = ["status", "--porcelain=v1", "-z", "--no-renames", "--untracked-files=all"];
        let call = self.git.call(args).args(["--ignore-submodules=none", "--", "."]);
        let listed = call.run().await.map_err(|source| git_error(top, source))?;
        let except: Vec<PathBuf> = except
            .iter()
            .map(|path| path.canonicalize().unwrap_or_else(|_| path.clone()))
            .collect();
        for entry in listed.split(|byte| *byte == 0).filter(|entry| entry.len() > 3) {
            let shown = String::from_utf8_lossy(&entry[3..]).into_owned();
            if except.iter().any(|path| top.join(&shown).starts_with(path)) {
                continue;
            }
            return Err(RepositoryError::Dirty { path: top.clone(), first: shown });
        }
        Ok(())
    }

    /// Resolves a revision to a commit. For a directory inside a repository it is a commit of that
    /// directory at the revision: equal files give equal commits, whatever is beside them.
    ///
    /// # Errors
    /// [`RepositoryError::Unusable`] if there is none; errors of git.
    pub async fn resolve(&self, revision: &str) -> Result<String, RepositoryError> {
        let path = self.git.dir();
        let wanted = format!("{revision}^{{commit}}");
        let args = ["rev-parse", "--verify", "--quiet", "--end-of-options", &wanted];
        let commit = match self.git.call(args).run_line().await {
            Ok(commit) if is_commit(&commit) => commit,
            Ok(_) | Err(GitError::Failed { .. }) => {
                let reason = format!("`{revision}` is not a commit of the repository");
                return Err(RepositoryError::Unusable { path: path.to_owned(), reason });
            }
            Err(source) => return Err(git_error(path, source)),
        };
        let Some(part) = &self.part else { return Ok(commit) };
        let made = part.commit(&commit).await?;
        made.ok_or_else(|| RepositoryError::Unusable {
            path: path.to_owned(),
            reason: format!("no such directory in `{revision}`"),
        })
    }

    /// Writes a commit without its history to a new file and stores the file.
    pub(super) async fn export(
        &self,
        commit: &str,
        to: &Path,
        store: &dyn BlobStore,
    ) -> Result<CommitBundle, RepositoryError> {
        if let Some(part) = &self.part {
            part.ensure(commit).await?;
        }
        let written = bundle::write(&self.git, commit, None, to, limits::ROOT_BUNDLE_BYTES).await;
        written.map_err(|source| git_error(self.git.dir(), source))?;
        let blob = store.put_file(to, MediaType::Bytes).await?;
        Ok(CommitBundle { commit: commit.to_owned(), parent: None, blob })
    }
}

pub(super) fn git_error(path: &Path, source: GitError) -> RepositoryError {
    RepositoryError::Git { path: path.to_owned(), source }
}
