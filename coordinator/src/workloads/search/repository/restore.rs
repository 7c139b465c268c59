//! Making the repository of a search, first or again: from the bundles of its commits.

use std::path::{Path, PathBuf};

use rollout_base::{durable, supervise};
use rollout_protocol::spec::eval::CommitBundle;
use rollout_store::BlobStore;
use rollout_store::git::{BareRepository, GitError, RepositoryDamage};

use super::bundles::BundleIndex;
use super::{
    BARE, DIRECTORY, ROOT_REFERENCE, RepositoryError, SearchRepository, checkout_records, cleanup,
};

/// Name of an unfinished repository.
const UNFINISHED: &str = "new-bare";

/// Finds damage of the repository below a run's directory. A missing one is damaged.
pub(super) async fn find_damage(
    run: &Path,
    index: &BundleIndex,
) -> Result<Option<RepositoryDamage>, RepositoryError> {
    let bare = BareRepository::from_dir(run.join(DIRECTORY).join(BARE));
    let found = bare.find_damage(&index.root().commit).await;
    found.map_err(|source| RepositoryError::Git { path: bare.dir().to_owned(), source })
}

/// Makes the repository again, with the root only: the other commits follow when they are needed.
pub(super) async fn restore(
    run: &Path,
    index: &BundleIndex,
    store: &dyn BlobStore,
) -> Result<(), RepositoryError> {
    let home = make_home(run).await?;
    let file = home.join("root.bundle");
    cleanup::remove(&file).await?;
    store.get_file(&index.root().blob.digest, &file).await?;
    build(&home, index.root(), &file).await
}

/// Creates the directory of the repository.
pub(super) async fn make_home(run: &Path) -> Result<PathBuf, RepositoryError> {
    let home = run.join(DIRECTORY);
    let to = home.clone();
    let made = supervise::blocking(move || durable::create_directory(&to)).await;
    made.map_err(|error| RepositoryError::io("create", &home, error))?;
    Ok(home)
}

/// Builds the repository from the bundle of its root, a file that is removed afterwards. It
/// replaces the former one when it is complete and durable.
pub(super) async fn build(
    home: &Path,
    root: &CommitBundle,
    file: &Path,
) -> Result<(), RepositoryError> {
    let (unfinished, bare) = (home.join(UNFINISHED), home.join(BARE));
    remove_unfinished(home).await?;
    let make = async {
        BareRepository::create(&unfinished, root, file, ROOT_REFERENCE).await?.sync().await
    };
    let made: Result<(), GitError> = make.await;
    made.map_err(|source| RepositoryError::Git { path: home.to_owned(), source })?;
    cleanup::remove(file).await?;
    cleanup::remove(&bare).await?;
    let (to, within) = (bare.clone(), home.to_owned());
    let moved = supervise::blocking(move || {
        std::fs::rename(unfinished, to)?;
        durable::sync_directory(&within)
    });
    moved.await.map_err(|error| RepositoryError::io("create", &bare, error))
}

/// Removes a repository that a killed process did not finish.
pub(super) async fn remove_unfinished(home: &Path) -> Result<(), RepositoryError> {
    let unfinished = home.join(UNFINISHED);
    cleanup::end_orphans(&unfinished).await?;
    cleanup::remove(&unfinished).await
}

impl SearchRepository {
    /// Describes what is damaged in the repository of a search and in its checkouts. Changes
    /// nothing.
    ///
    /// # Errors
    /// [`RepositoryError`]; [`RepositoryError::Unusable`] if there is no index of its commits.
    pub async fn damages(run: &Path) -> Result<Vec<String>, RepositoryError> {
        let run = run.canonicalize().map_err(|e| RepositoryError::io("resolve", run, e))?;
        let index = BundleIndex::read(&run)?;
        if let Some(damage) = find_damage(&run, &index).await? {
            return Ok(vec![format!("the repository, as {damage}")]);
        }
        let bare = BareRepository::from_dir(run.join(DIRECTORY).join(BARE));
        checkout_records::describe_damaged(&run, &bare).await
    }
}
