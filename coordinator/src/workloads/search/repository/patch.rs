//! The changes of a node as a patch, and their way into the user's repository.

use std::path::Path;

use rollout_protocol::limits;
use rollout_store::git::{BareRepository, Git, is_commit};

use super::source_repo::git_error;
use super::{BARE, DIRECTORY, RepositoryError, SourceRepository};

/// Options of every comparison. They override any configuration: no external program, no conversion
/// and no colour.
const COMPARE: [&str; 6] =
    ["diff-tree", "-r", "--no-ext-diff", "--no-textconv", "--no-color", "--no-renames"];

/// Options of a patch that applies to files, also to those that are no text.
const PATCH: [&str; 3] = ["--patch", "--binary", "--full-index"];

/// Width limits of the list of changed files.
const STAT: [&str; 1] = ["--stat=80,60,200"];

/// Changes between two commits of a search, read from its directory, which another process may own.
#[derive(Debug)]
pub struct SearchChanges {
    bare: BareRepository,
    from: String,
    to: String,
}

impl SearchChanges {
    /// The changes from one commit to another of the search in a directory.
    ///
    /// # Errors
    /// [`RepositoryError`] if there is no repository, or a commit is no id of one.
    pub fn open(run: &Path, from: &str, to: &str) -> Result<Self, RepositoryError> {
        for commit in [from, to] {
            if !is_commit(commit) {
                return Err(RepositoryError::Unknown { commit: commit.to_owned() });
            }
        }
        // Git runs in other directories than this process.
        let path = run.join(DIRECTORY).join(BARE);
        let path = path.canonicalize().map_err(|e| RepositoryError::io("resolve", &path, e))?;
        let bare = BareRepository::from_dir(path);
        Ok(Self { bare, from: from.to_owned(), to: to.to_owned() })
    }

    /// The changes as a patch.
    ///
    /// # Errors
    /// [`RepositoryError`].
    pub async fn patch(&self) -> Result<Vec<u8>, RepositoryError> {
        self.compare(&PATCH).await
    }

    /// The changed files, with the number of changed lines of each.
    ///
    /// # Errors
    /// [`RepositoryError`].
    pub async fn files(&self) -> Result<String, RepositoryError> {
        let listed = self.compare(&STAT).await?;
        Ok(String::from_utf8_lossy(&listed).into_owned())
    }

    async fn compare(&self, form: &[&str]) -> Result<Vec<u8>, RepositoryError> {
        let call = self.bare.git().call(COMPARE).args(form).args([
            self.from.as_str(),
            self.to.as_str(),
            "--",
        ]);
        let compared = call.max_bytes(limits::CANDIDATE_BUNDLE_BYTES).run().await;
        compared.map_err(|source| git_error(self.bare.dir(), source))
    }
}

impl SourceRepository {
    /// Changes the files of the directory as a patch says, all of them or none. Nothing is staged or
    /// committed.
    ///
    /// # Errors
    /// [`RepositoryError::Unusable`] for a repository without files; errors of git, such as files that
    /// differ from those of the patch.
    pub async fn apply(&self, patch: Vec<u8>) -> Result<(), RepositoryError> {
        let Some(top) = self.top() else {
            let reason = "it is bare, so there are no files to change".to_owned();
            return Err(RepositoryError::Unusable { path: self.dir().to_owned(), reason });
        };
        // Paths of a patch that git made are those from the top.
        let git = Git::user_repository(top);
        let mut call = git.call(["apply", "--whitespace=nowarn"]);
        if let Some(prefix) = self.prefix() {
            call = call.args([format!("--directory={prefix}")]);
        }
        let applied = call.args(["-"]).input(patch).run().await;
        applied.map(drop).map_err(|source| git_error(top, source))
    }
}
