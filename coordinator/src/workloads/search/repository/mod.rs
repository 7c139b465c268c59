//! The git repository of a search and the user's repository that it starts from.
//!
//! * [`SourceRepository`] is only read: clean state, revisions, files of the root. It may be a
//!   directory inside a repository: then the root is a commit of that directory alone. Its files
//!   change only when its user applies the changes of a node ([`SourceRepository::apply`]).
//! * [`SearchRepository`] belongs to the search. It is bare, in `repository/` below the run's
//!   directory. It has the root without its history, the imported candidates, and the nodes'
//!   checkouts as worktrees. No git command ever runs in a checkout: checkouts are made from
//!   outside, inspected through the records in the git repository, and removed as directories.
//! * Commits travel to workers as bundles in the blob store; `bundles.json` lists them. The evals on
//!   a node use the bundle of its candidate.
//! * The repository and the checkouts are durable before anything relies on them. A damaged or
//!   missing one is made again from the bundles when the repository is opened.
//!
//! # Call order
//! 1. A new run: [`SourceRepository::open`], [`SourceRepository::check_clean`] and
//!    [`SourceRepository::resolve`], then [`SearchRepository::create`]. A resumed one:
//!    [`SearchRepository::open`], or `create` again if there is no manifest.
//! 2. Whenever the manifest changes the desired state: [`SearchRepository::reconcile`]. It makes
//!    missing objects, removes surplus ones, and returns failed removals for the search's retry
//!    queue. It may be repeated at any time.
//! 3. When a retry is due: [`SearchRepository::remove`].
//! 4. An eval on a node: [`SearchRepository::spec`] of the node's commit goes into its
//!    [`EvalSpec`](rollout_protocol::spec::eval::EvalSpec).
//! 5. The context pack of a node: [`SearchRepository::diff`].
//! 6. A record with a candidate: [`SearchRepository::import`] before the eval is settled; only then
//!    may the manifest name the commit. A refused candidate fails the eval.

mod bundles;
mod checkout_records;
mod checkouts;
mod cleanup;
mod diff;
mod import;
mod inspect;
mod patch;
mod references;
mod restore;
mod source_repo;
mod subdirectory;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use rollout_base::shown_path::shown;
use rollout_protocol::limits;
use rollout_protocol::spec::eval::RepositorySpec;
use rollout_store::git::{self, BareRepository, GitError};
use rollout_store::{BlobStore, StoreError};

use self::bundles::BundleIndex;
use super::driver::{DesiredRepositoryState, FailedRemoval};

pub use self::inspect::RepositoryInspector;
pub use self::patch::SearchChanges;
pub use self::source_repo::SourceRepository;

/// Directory of the repository, below the run's directory.
const DIRECTORY: &str = "repository";

/// The bare repository inside it.
const BARE: &str = "bare";

/// Name of the root's reference inside the repository, independent of the manifest.
const ROOT_REFERENCE: &str = "refs/rollout/root";

/// The repository of a search. One process owns it at a time: the owner of the run.
#[derive(Debug)]
pub struct SearchRepository {
    /// The run's directory, with links resolved.
    run: PathBuf,
    tree: String,
    bare: BareRepository,
    store: Arc<dyn BlobStore>,
    bundles: Mutex<BundleIndex>,
}

/// Failure of a repository operation.
#[derive(Debug, thiserror::Error)]
pub enum RepositoryError {
    /// A git command failed.
    #[error("cannot use the repository at {}", shown(path))]
    Git {
        /// The repository.
        path: PathBuf,
        /// The error of git.
        #[source]
        source: GitError,
    },
    /// The user's repository has uncommitted changes.
    #[error("{} has uncommitted changes: {first} …; commit or stash them first", shown(path))]
    Dirty {
        /// The repository.
        path: PathBuf,
        /// The first of the changes.
        first: String,
    },
    /// No such repository or revision.
    #[error("{}: {reason}", shown(path))]
    Unusable {
        /// The repository.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// A commit that the search does not know.
    #[error("commit {commit} does not belong to this search")]
    Unknown {
        /// The commit.
        commit: String,
    },
    /// An invalid candidate.
    #[error("candidate {commit} is refused: {reason}")]
    Refused {
        /// The candidate.
        commit: String,
        /// The reason.
        reason: String,
    },
    /// A name or path outside the search's own namespace.
    #[error("cannot use the name `{name}`: {reason}")]
    BadName {
        /// The name of a reference, or a path.
        name: String,
        /// The reason.
        reason: &'static str,
    },
    /// The blob store failed.
    #[error("cannot access commits in the blob store")]
    Store(#[from] StoreError),
    /// The local disk failed.
    #[error("cannot {action} {}", shown(path))]
    Disk {
        /// The action, an infinitive.
        action: &'static str,
        /// The path.
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

    /// Whether a retry may succeed: this host or the blob store failed, and the operation itself is
    /// valid.
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

    /// The message with its chain of causes.
    pub fn chain(&self) -> String {
        rollout_base::backoff::error_chain(self)
    }
}

impl SearchRepository {
    /// Creates the repository of a new search called `tree` in its run's directory and stores the
    /// root. Replaces the remains of an earlier call that did not complete.
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
        let home = restore::make_home(run).await?;
        // Git runs in other directories than this process.
        let home = home.canonicalize().map_err(|e| RepositoryError::io("resolve", &home, e))?;
        let file = home.join("root.bundle");
        let root = user.export(root, &file, store.as_ref()).await?;
        restore::build(&home, &root, &file).await?;
        BundleIndex::new(root).write(run)?;
        Self::open(run, tree, store).await
    }

    /// Opens the repository of an existing search. Removes the remains of killed git processes, and
    /// makes the repository again if it is damaged or missing.
    ///
    /// # Errors
    /// [`RepositoryError`]; [`RepositoryError::Unusable`] if [`SearchRepository::create`] did not
    /// complete.
    pub async fn open(
        run: &Path,
        tree: &str,
        store: Arc<dyn BlobStore>,
    ) -> Result<Self, RepositoryError> {
        let run = run.canonicalize().map_err(|e| RepositoryError::io("resolve", run, e))?;
        let home = run.join(DIRECTORY);
        let index = BundleIndex::open(&run)?;
        let bare = BareRepository::from_dir(home.join(BARE));
        cleanup::end_orphans(bare.dir()).await?;
        restore::remove_unfinished(&home).await?;
        if let Some(damage) = restore::find_damage(&run, &index).await? {
            tracing::warn!("{damage}; the repository is made again from the blob store");
            restore::restore(&run, &index, store.as_ref()).await?;
        }
        cleanup::remove_locks(bare.dir()).await?;
        let bundles = Mutex::new(index);
        let opened = Self { run, tree: tree.to_owned(), bare, store, bundles };
        opened.forget_damaged_checkouts().await?;
        Ok(opened)
    }

    /// The root commit.
    pub fn root(&self) -> String {
        self.bundles().root().commit.clone()
    }

    /// The bundles from which workers get a commit.
    ///
    /// # Errors
    /// [`RepositoryError::Unknown`].
    pub fn spec(&self, commit: &str) -> Result<RepositorySpec, RepositoryError> {
        let spec = self.bundles().spec(commit);
        spec.ok_or_else(|| RepositoryError::Unknown { commit: commit.to_owned() })
    }

    /// Makes references and checkouts match the desired state. Removes all others of the search
    /// except those in `deferred` and candidates that may stay. Returns failed removals.
    ///
    /// # Errors
    /// [`RepositoryError`] if something cannot be made. Everything made before stays; calling this
    /// again continues.
    pub async fn reconcile(
        &self,
        wanted: &DesiredRepositoryState,
        deferred: &BTreeSet<String>,
    ) -> Result<Vec<FailedRemoval>, RepositoryError> {
        let mut left = self.reconcile_references(&wanted.refs, deferred).await?;
        left.extend(self.reconcile_checkouts(wanted, deferred).await?);
        Ok(left)
    }

    /// The git directory, for inspection.
    pub fn dir(&self) -> &Path {
        self.bare.dir()
    }

    fn bundles(&self) -> std::sync::MutexGuard<'_, BundleIndex> {
        self.bundles.lock().expect("no panic while the bundles are locked")
    }

    fn git_failure(&self, source: GitError) -> RepositoryError {
        RepositoryError::Git { path: self.bare.dir().to_owned(), source }
    }

    /// Restores missing objects of a commit of the search from the blob store.
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
