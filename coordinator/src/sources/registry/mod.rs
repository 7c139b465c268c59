//! Where tasks come from that are not on this disk: registries, and git repositories.
//!
//! A *registry* is a JSON file that names datasets; the tasks of a dataset are directories of git
//! repositories, each at a commit or at the head. What is taken from a repository is kept in a
//! cache, a directory for every address and commit, and made by one clone for all that is asked of
//! that commit. A commit never changes, so what is in the cache needs no network any more.
//!
//! # Invariants
//! * What has its final name in the cache is whole: it was made under another name, by the one
//!   process that had the lock, and renamed.
//! * Nothing of a repository is run or obeyed: no hook, no filter, no configuration, no submodule.
//! * Heads are asked for whenever the repository answers; otherwise the last known one counts, and
//!   that is said.

mod cache;
mod clone;
mod fetch;
mod git;
mod heads;
mod http;
mod index;
mod lfs;
mod origin;
mod version;

use std::path::PathBuf;

pub use fetch::{
    FetchRequest, FetchResults, FetchTarget, FetchedCheckout, FetchedDirectory, fetch,
};
pub use index::{DatasetEntry, IndexError, RegistryIndex, RegistryText, TaskEntry, read};
pub use origin::{Origin, Revision};

/// Why something could not be taken from a repository.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FetchError {
    /// There is no git.
    #[error("the program `git`, which is not there: {0}")]
    NoGit(String),
    /// The repository does not answer.
    #[error("the repository {url}, which cannot be reached: {said}")]
    Unreachable {
        /// Address, without a password.
        url: String,
        /// The end of what git said.
        said: String,
    },
    /// The repository has no such branch or tag.
    #[error("`{reference}`, which is no branch or tag of {url}{}", near.as_ref().map(|n| format!(" (there is `{n}`)")).unwrap_or_default())]
    UnknownReference {
        /// Address.
        url: String,
        /// The name as it was given.
        reference: String,
        /// One with nearly the same name.
        near: Option<String>,
    },
    /// The repository has no such commit.
    #[error("the commit {commit}, which is not in {url}")]
    MissingCommit {
        /// Address.
        url: String,
        /// The id as it was given.
        commit: String,
    },
    /// The commit has no such directory.
    #[error("the directory `{path}`, which is not in {url} at {commit}{}", near.as_ref().map(|n| format!(" (there is `{n}`)")).unwrap_or_default())]
    MissingPath {
        /// Address.
        url: String,
        /// Commit.
        commit: String,
        /// The path as it was given.
        path: String,
        /// One with nearly the same name.
        near: Option<String>,
    },
    /// Git failed at something else.
    #[error("{url} at {commit}, of which git made no copy: {said}")]
    Git {
        /// Address.
        url: String,
        /// Commit.
        commit: String,
        /// The end of what git said.
        said: String,
    },
    /// The cache cannot be used.
    #[error("the cache {}, which cannot be used: {reason}", path.display())]
    Cache {
        /// File or directory.
        path: PathBuf,
        /// The system's error.
        reason: String,
    },
}
