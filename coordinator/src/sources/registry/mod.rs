//! Remote sources of tasks: registries and git repositories.
//!
//! A *registry* is a JSON file that names datasets; the tasks of a dataset are directories of git
//! repositories, each at a commit or at HEAD. Fetched contents are kept in a cache, a directory for
//! every address and commit, filled by one clone for everything requested of that commit. A commit
//! never changes, so cached contents need no network.
//!
//! # Invariants
//! * An entry with its final name in the cache is complete: the process that holds the lock creates
//!   it under another name and renames it.
//! * Nothing of a repository is executed or applied: no hook, no filter, no configuration, no
//!   submodule.
//! * For a document of somebody else, nothing of this user is used, and only public addresses and
//!   listed hosts are asked, also after redirects (`guard`, `remote`).
//! * What was fetched with the credentials of this user is in another part of the cache than what was
//!   fetched without, and is not read for those who may not use them (`cache::CacheScope`).
//! * Heads are queried whenever the repository answers; otherwise the last known commit is used,
//!   with a warning.

mod abbreviations;
mod cache;
mod clone;
mod disk_bound;
mod fetch;
mod git;
mod guard;
mod heads;
mod http;
mod index;
mod lfs;
mod lfs_download;
mod origin;
mod prune;
mod remote;
mod version;

use std::path::PathBuf;

use rollout_base::shown_path::shown;

pub use fetch::{
    FetchRequest, FetchResults, FetchTarget, FetchedCheckout, FetchedDirectory, fetch,
};
pub use index::{DatasetEntry, IndexError, RegistryIndex, RegistryText, TaskEntry, read};
pub use origin::{Origin, Revision};
pub use prune::{FetchedCommit, PrunedCommits, prune};

/// Suggested fix for a registry or a repository that is not delivered.
const FETCH_HINT: &str = "check the address, or use `-p DIR` for tasks on this disk";

/// Suggested fix for a name that may be the beginning of a commit's id.
const LOOKUP_HINT: &str =
    "try again when the repository answers, or write a branch, a tag or the whole id of a commit";

/// Suggested fix for a repository that its server does not give to this host.
const DENIED_HINT: &str =
    "check the address, and whether the repository is public or `git` has credentials for it";

/// Suggested fix for a repository that is too large.
const SIZE_HINT: &str = "move the tasks to a smaller repository, or name fewer of them with `path`";

/// Suggested fix for a host that lacks something.
const HOST_HINT: &str = "try again when this host has it";

/// Suggested fix for a repository that may not be fetched.
const LIST_HINT: &str = "ask the operator of the server to list the host with `--allow-git-host`";

/// Error of fetching from a repository.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FetchError {
    /// Git cannot be started.
    #[error("cannot start the program `git`: {0}")]
    NoGit(String),
    /// The repository does not answer.
    #[error("cannot fetch the repository {url}: {said}")]
    Unreachable {
        /// Address, without password.
        url: String,
        /// The end of git's output.
        said: String,
    },
    /// Its server answers that it has no such repository, or its address has an unknown scheme.
    #[error("cannot fetch the repository {url}: {said}")]
    NoRepository {
        /// Address, without password.
        url: String,
        /// The end of git's output.
        said: String,
    },
    /// Its server gives another answer in place of the repository: it wants other credentials, or shows a page.
    #[error("cannot fetch the repository {url}: {said}")]
    Denied {
        /// Address, without password.
        url: String,
        /// The end of git's output.
        said: String,
    },
    /// This host lacks something that a fetch needs, such as open files.
    #[error("cannot fetch the repository {url}: {reason}")]
    Host {
        /// Address, without password.
        url: String,
        /// The system's error.
        reason: String,
    },
    /// The fetch was ended: its run was cancelled, or its time is over.
    #[error("cannot fetch the repository {url}: its fetch was ended")]
    Cancelled {
        /// Address, without password.
        url: String,
    },
    /// It brings more than one fetch for a user of a server may.
    #[error(
        "cannot fetch the repository {url}: it has more than {max_bytes} bytes of objects, of files, or of \
         Git LFS files, the limit of a fetch on a server"
    )]
    TooLarge {
        /// Address, without password.
        url: String,
        /// The limit.
        max_bytes: u64,
    },
    /// A host of it has no address. Told as [`Self::Refused`].
    #[error("cannot fetch the repository {url}: {reason}")]
    Unresolved {
        /// Address, without password.
        url: String,
        /// The reason of a refusal.
        reason: String,
    },
    /// The repository may not be fetched.
    #[error("cannot fetch the repository {url}: {reason}")]
    Refused {
        /// Address, without password.
        url: String,
        /// The reason.
        reason: String,
    },
    /// The repository has no such branch or tag.
    #[error("`{reference}`, which is not a branch or tag of {url}{}", near.as_ref().map(|n| format!(" (did you mean `{n}`?)")).unwrap_or_default())]
    UnknownReference {
        /// Address.
        url: String,
        /// The name as written.
        reference: String,
        /// A similar name, if there is one.
        near: Option<String>,
    },
    /// The repository has no such branch or tag, and its commits, one of which could have an id that begins
    /// so, cannot be fetched.
    #[error(
        "cannot fetch the repository {url}, in which `{reference}` is not a branch or tag and may be the id \
         of a commit: {said}"
    )]
    UnknownCommits {
        /// Address, without password.
        url: String,
        /// The name as written.
        reference: String,
        /// The end of git's output.
        said: String,
    },
    /// The repository has no such commit.
    #[error("the commit {commit}, which is not in {url}")]
    MissingCommit {
        /// Address.
        url: String,
        /// The id as written.
        commit: String,
    },
    /// Several commits of the repository have ids that begin so.
    #[error("the commit {commit}, which is ambiguous: ids of several commits in {url} begin so")]
    AmbiguousCommit {
        /// Address.
        url: String,
        /// The abbreviated id.
        commit: String,
    },
    /// The commit has no such directory.
    #[error("the directory `{path}`, which is not in {url} at {commit}{}", near.as_ref().map(|n| format!(" (did you mean `{n}`?)")).unwrap_or_default())]
    MissingPath {
        /// Address.
        url: String,
        /// Commit.
        commit: String,
        /// The path as written.
        path: String,
        /// A similar path, if there is one.
        near: Option<String>,
    },
    /// Another git operation failed.
    #[error("cannot check out {url} at {commit}: {said}")]
    Git {
        /// Address.
        url: String,
        /// Commit.
        commit: String,
        /// The end of git's output.
        said: String,
    },
    /// The cache cannot be used.
    #[error("cannot use the cache {}: {reason}", shown(path))]
    Cache {
        /// File or directory.
        path: PathBuf,
        /// The system's error.
        reason: String,
    },
}

impl FetchError {
    /// Whether the repository was read and lacks what was asked for, or has several. Otherwise the fetch failed.
    pub fn is_missing(&self) -> bool {
        matches!(
            self,
            Self::UnknownReference { .. }
                | Self::MissingCommit { .. }
                | Self::AmbiguousCommit { .. }
                | Self::MissingPath { .. }
        )
    }

    /// Whether it settles its task for good, so that the other tasks of a job run without it: the server
    /// answered, and has no such content. An outage, a fault of this host or its credentials, and a fetch
    /// that was ended or refused decide nothing about a task.
    pub fn is_of_its_task(&self) -> bool {
        self.is_missing() || matches!(self, Self::NoRepository { .. })
    }

    /// Whether the repository may answer later, so that its last known content is used until then.
    fn is_outage(&self) -> bool {
        matches!(
            self,
            Self::NoGit(_)
                | Self::Unreachable { .. }
                | Self::Unresolved { .. }
                | Self::UnknownCommits { .. }
        )
    }

    /// The error of a lookup of a commit by the beginning of its id: an outage decides nothing about the
    /// name, which may be misspelled or abbreviated.
    fn of_lookup(self, reference: &str) -> Self {
        match self {
            Self::Unreachable { url, said } => {
                Self::UnknownCommits { url, reference: reference.to_owned(), said }
            }
            other => other,
        }
    }

    /// Suggested fix.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::NoGit(_) => Some("install `git`".to_owned()),
            Self::Unreachable { .. } | Self::NoRepository { .. } => Some(FETCH_HINT.to_owned()),
            Self::UnknownCommits { .. } => Some(LOOKUP_HINT.to_owned()),
            Self::Denied { .. } => Some(DENIED_HINT.to_owned()),
            Self::Host { .. } => Some(HOST_HINT.to_owned()),
            Self::TooLarge { .. } => Some(SIZE_HINT.to_owned()),
            Self::Refused { .. } | Self::Unresolved { .. } => Some(LIST_HINT.to_owned()),
            _ => None,
        }
    }
}
