//! Removals in the repository of a search.

use std::io;
use std::path::{Component, Path, PathBuf};

use rollout_base::{fs_remove, supervise};

use super::{RepositoryError, SearchRepository};
use crate::workloads::search::manifest::{CleanupKind, DeferredCleanup};

impl SearchRepository {
    /// Retries a removal that failed in [`SearchRepository::reconcile`]; a missing object is no
    /// error.
    ///
    /// # Errors
    /// [`RepositoryError`].
    pub async fn remove(&self, item: &DeferredCleanup) -> Result<(), RepositoryError> {
        let bad = |reason| RepositoryError::BadName { name: item.path.clone(), reason };
        match item.kind {
            CleanupKind::Worktree => self.remove_checkout(&item.path).await,
            CleanupKind::Branch => self.remove_reference(&self.full_name(&item.path)?).await,
            CleanupKind::Dir => {
                let path = Path::new(&item.path);
                let is_plain = path.components().all(|part| matches!(part, Component::Normal(_)));
                if !is_plain || path.components().count() < 2 {
                    return Err(bad("it is not below a directory of the run"));
                }
                remove(&self.run.join(path)).await
            }
        }
    }
}

/// Removes a file or directory that may be missing.
pub(super) async fn remove(path: &Path) -> Result<(), RepositoryError> {
    let removed = fs_remove::remove(path).await;
    removed.map_err(|error| RepositoryError::io("remove", path, error))
}

/// Ends git processes that outlived a killed owner.
pub(super) async fn end_orphans(bare: &Path) -> Result<(), RepositoryError> {
    let ended = rollout_store::git::end_orphans(bare).await;
    ended.map_err(|error| RepositoryError::io("end orphaned git processes of", bare, error))
}

/// Removes lock files and partial packs of killed git processes. No other process uses the
/// repository.
pub(super) async fn remove_locks(bare: &Path) -> Result<(), RepositoryError> {
    let (dir, packs, shown) = (bare.to_owned(), bare.join("objects/pack"), bare.to_owned());
    let removed = supervise::blocking(move || {
        let mut dirs = vec![(dir, true)];
        while let Some((dir, is_top)) = dirs.pop() {
            for entry in std::fs::read_dir(dir)? {
                let entry = entry?;
                let path: PathBuf = entry.path();
                let is_objects = is_top && entry.file_name() == "objects";
                if entry.file_type()?.is_dir() {
                    if !is_objects {
                        dirs.push((path, false));
                    }
                } else if path.extension().is_some_and(|extension| extension == "lock") {
                    std::fs::remove_file(path)?;
                }
            }
        }
        for entry in std::fs::read_dir(packs)? {
            let entry = entry?;
            if entry.file_name().as_encoded_bytes().starts_with(b"tmp_") {
                std::fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    });
    removed.await.map_err(|error: io::Error| RepositoryError::io("clean", &shown, error))
}
