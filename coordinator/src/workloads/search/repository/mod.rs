//! The repository of a search: what the user's has at the root, and what came of it.
//!
//! * [`SourceRepository`] is only read: whether it is clean, what a revision is, the root's files. It may
//!   be a directory inside a repository: then the root is a commit of that directory alone.
//! * [`SearchRepository`] is ours, bare, in `repository/` below the run's directory. It has the root
//!   without its history, the candidates that were taken in, and the nodes' checkouts as worktrees.
//!   No git command ever runs in a checkout: they are made from outside, looked at through what our
//!   repository knows of them, and removed as directories.
//! * Commits travel to workers as bundles in the blob store; `repository/bundles.json` says which.
//!   A candidate's own bundle is what its children's evals use.
//!
//! # For whoever runs searches
//! 1. A new run: [`SourceRepository::open`], [`SourceRepository::check_clean`] and
//!    [`SourceRepository::resolve`], then [`SearchRepository::create`]. A resumed one: [`SearchRepository::open`],
//!    or `create` again when that says that there is none.
//! 2. Whenever the search asks for it: [`SearchRepository::reconcile`]. It makes what is missing, removes what
//!    is too much, and gives what could not be removed, for the search's queue. It may be repeated
//!    at any time.
//! 3. When the queue says so: [`SearchRepository::remove`].
//! 4. An eval of a node: [`SearchRepository::spec`] of the node's commit goes into its
//!    [`EvalSpec`](rollout_protocol::spec::eval::EvalSpec).
//! 5. What a generator of ideas is told of a node: [`SearchRepository::diff`].
//! 6. A record with a candidate: [`SearchRepository::import`] before the eval is settled; only then may
//!    the manifest name the commit. A candidate that is refused makes the eval a failed one.

mod bundles;
mod checkouts;
mod cleanup;
mod diff;
mod import;
mod inspect;
mod references;
mod source_repo;
mod subdirectory;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use rollout_protocol::limits;
use rollout_protocol::spec::eval::RepositorySpec;
use rollout_worker::git::{self, BareRepository, GitError};
use rollout_worker::store::{BlobStore, StoreError};

use self::bundles::BundleIndex;
use super::driver::{DesiredRepositoryState, FailedRemoval};

pub use self::inspect::RepositoryInspector;
pub use self::source_repo::SourceRepository;

/// Directory of the repository below the run's.
const DIRECTORY: &str = "repository";

/// The bare repository inside it.
const BARE: &str = "bare";

/// Name of the root's reference, whatever the search calls it.
const ROOT_REFERENCE: &str = "refs/rollout/root";

/// The repository of a search. One process at a time has it: the owner of the run.
#[derive(Debug)]
pub struct SearchRepository {
    /// The run's directory, without links.
    run: PathBuf,
    tree: String,
    bare: BareRepository,
    store: Arc<dyn BlobStore>,
    bundles: Mutex<BundleIndex>,
}

/// What went wrong with a repository.
#[derive(Debug, thiserror::Error)]
pub enum RepositoryError {
    /// Git.
    #[error("the repository at {path}")]
    Git {
        /// Where.
        path: PathBuf,
        /// What.
        #[source]
        source: GitError,
    },
    /// The user's repository has changes that no commit has.
    #[error("{path} has changes that are not committed: {first} …; commit or stash them first")]
    Dirty {
        /// The repository.
        path: PathBuf,
        /// The first of the changes.
        first: String,
    },
    /// There is no such repository or revision.
    #[error("{path}: {reason}")]
    Unusable {
        /// The repository.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// A commit that the search knows nothing of.
    #[error("commit {commit} is not one of this search")]
    Unknown {
        /// The commit.
        commit: String,
    },
    /// A candidate that is not what a candidate has to be.
    #[error("candidate {commit} is refused: {reason}")]
    Refused {
        /// The candidate.
        commit: String,
        /// Why.
        reason: String,
    },
    /// A name or path that is not the search's own.
    #[error("`{name}` cannot be kept: {reason}")]
    BadName {
        /// The name of a reference, or a path.
        name: String,
        /// Why not.
        reason: &'static str,
    },
    /// The blob store.
    #[error("commits in the blob store")]
    Store(#[from] StoreError),
    /// The local disk.
    #[error("{action} {path}")]
    Disk {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
}

impl RepositoryError {
    fn io(action: &'static str, path: &Path, source: impl Into<io::Error>) -> Self {
        Self::Disk { action, path: path.to_owned(), source: source.into() }
    }

    /// Whether the same may well succeed when it is done again: this host or the blob store failed,
    /// and nothing is wrong with what it was about.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Git { source, .. } => source.is_transient(),
            Self::Store(source) => source.is_transient(),
            Self::Disk { source, .. } => git::is_transient_io(source),
            Self::Dirty { .. }
            | Self::Unusable { .. }
            | Self::Unknown { .. }
            | Self::Refused { .. }
            | Self::BadName { .. } => false,
        }
    }

    /// The message with the chain of causes.
    pub fn chain(&self) -> String {
        rollout_worker::backoff::error_chain(self)
    }
}

impl SearchRepository {
    /// Makes the repository of a new search called `tree`, in its run's directory, and stores the
    /// root. What an earlier call that did not end has left is made anew.
    ///
    /// # Errors
    /// [`RepositoryError`].
    pub async fn create(
        run: &Path,
        tree: &str,
        user: &SourceRepository,
        root: &str,
        store: Arc<dyn BlobStore>,
    ) -> Result<Self, RepositoryError> {
        let home = run.join(DIRECTORY);
        cleanup::end_orphans(&home.join(BARE)).await?;
        cleanup::remove(&home).await?;
        let made = tokio::fs::create_dir_all(&home).await;
        made.map_err(|error| RepositoryError::io("creating", &home, error))?;
        // Git is called in other directories than this process is in.
        let home = home.canonicalize().map_err(|e| RepositoryError::io("resolving", &home, e))?;
        let file = home.join("root.bundle");
        let root = user.export(root, &file, store.as_ref()).await?;
        let bare = BareRepository::create(&home.join(BARE), &root, &file, ROOT_REFERENCE).await;
        bare.map_err(|source| RepositoryError::Git { path: home.clone(), source })?;
        cleanup::remove(&file).await?;
        // Whoever finds this finds the rest complete.
        BundleIndex::new(root).write(&home)?;
        Self::open(run, tree, store).await
    }

    /// Opens the repository of a search that was begun. What a killed git left is removed.
    ///
    /// # Errors
    /// [`RepositoryError`]; [`RepositoryError::Unusable`] when [`SearchRepository::create`] has not ended
    /// well.
    pub async fn open(
        run: &Path,
        tree: &str,
        store: Arc<dyn BlobStore>,
    ) -> Result<Self, RepositoryError> {
        let run = run.canonicalize().map_err(|e| RepositoryError::io("resolving", run, e))?;
        let home = run.join(DIRECTORY);
        let bundles = Mutex::new(BundleIndex::read(&home)?);
        let bare = BareRepository::from_dir(home.join(BARE));
        cleanup::end_orphans(bare.dir()).await?;
        cleanup::remove_locks(bare.dir()).await?;
        Ok(Self { run, tree: tree.to_owned(), bare, store, bundles })
    }

    /// The root commit.
    pub fn root(&self) -> String {
        self.bundles().root().commit.clone()
    }

    /// How workers come by a commit.
    ///
    /// # Errors
    /// [`RepositoryError::Unknown`].
    pub fn spec(&self, commit: &str) -> Result<RepositorySpec, RepositoryError> {
        let spec = self.bundles().spec(commit);
        spec.ok_or_else(|| RepositoryError::Unknown { commit: commit.to_owned() })
    }

    /// Makes references and checkouts what is wanted, and removes all others of the search but those
    /// in `deferred` and candidates that may stay. Gives what could not be removed.
    ///
    /// # Errors
    /// [`RepositoryError`] when something cannot be made. What was made before stays, and calling
    /// this again goes on.
    pub async fn reconcile(
        &self,
        wanted: &DesiredRepositoryState,
        deferred: &BTreeSet<String>,
    ) -> Result<Vec<FailedRemoval>, RepositoryError> {
        let mut left = self.reconcile_references(&wanted.refs, deferred).await?;
        left.extend(self.reconcile_checkouts(wanted, deferred).await?);
        Ok(left)
    }

    /// The git directory, for whoever wants to look at it.
    pub fn dir(&self) -> &Path {
        self.bare.dir()
    }

    fn bundles(&self) -> std::sync::MutexGuard<'_, BundleIndex> {
        self.bundles.lock().expect("nothing panics while it holds the bundles")
    }

    fn git_failure(&self, source: GitError) -> RepositoryError {
        RepositoryError::Git { path: self.bare.dir().to_owned(), source }
    }

    /// Brings a commit of the search back whose objects are not there, from the blob store.
    async fn ensure_objects(&self, commit: &str) -> Result<(), RepositoryError> {
        let object = format!("{commit}^{{commit}}");
        if self.bare.reference(&object).await.map_err(|e| self.git_failure(e))?.is_some() {
            return Ok(());
        }
        for link in self.spec(commit)?.chain {
            let known = format!("{}^{{commit}}", link.commit);
            if self.bare.reference(&known).await.map_err(|e| self.git_failure(e))?.is_none() {
                self.fetch(&link, limits::CANDIDATE_BUNDLE_BYTES).await?;
            }
        }
        Ok(())
    }
}
