//! Checkouts of nodes: worktrees of the search's repository, at commits that never change. A
//! checkout at the wrong commit, a damaged or an unfinished one is made again. No checkout is ever
//! moved.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path};

use rollout_base::{durable, supervise};

use super::checkout_records::{COMPLETE_MARK, CheckoutRecord, list};
use super::{FailedRemoval, RepositoryError, SearchRepository, cleanup};
use crate::workloads::search::driver::DesiredRepositoryState;
use crate::workloads::search::manifest::CleanupKind;

/// Directories of the run with checkouts: those of nodes, and those of kept candidates.
const CHECKOUT_DIRECTORIES: [&str; 2] = ["wt", "cand"];

impl SearchRepository {
    pub(super) async fn reconcile_checkouts(
        &self,
        DesiredRepositoryState { worktrees: wanted, candidates, .. }: &DesiredRepositoryState,
        deferred: &BTreeSet<String>,
    ) -> Result<Vec<FailedRemoval>, RepositoryError> {
        for path in wanted.keys() {
            check_path(path)?;
        }
        let known = self.known_checkouts()?;
        let is_right = |path: &String, commit: &String| {
            known.get(path).and_then(|known| known.commit.as_ref()) == Some(commit)
        };
        let there: BTreeSet<String> =
            known.keys().cloned().chain(self.found_checkouts()?).collect();
        let stays = |path: &String| {
            wanted.contains_key(path) || candidates.contains(path) || deferred.contains(path)
        };
        let mut left = Vec::new();
        for path in there.iter().filter(|path| !stays(path)) {
            if let Err(error) = self.remove_checkout(path).await {
                let (path, reason) = (path.clone(), error.chain());
                left.push(FailedRemoval { kind: CleanupKind::Worktree, path, reason });
            }
        }
        for (path, commit) in wanted.iter().filter(|(path, commit)| !is_right(path, commit)) {
            self.remove_checkout(path).await?;
            self.make_checkout(path, commit).await?;
        }
        Ok(left)
    }

    async fn make_checkout(&self, path: &str, commit: &str) -> Result<(), RepositoryError> {
        self.ensure_objects(commit).await?;
        let to = self.run.join(path);
        let above = to.parent().unwrap_or(&self.run);
        let place = above.to_owned();
        let made = supervise::blocking(move || durable::create_directory(&place)).await;
        made.map_err(|error| RepositoryError::io("create", above, error))?;
        let call = self.bare.git().call(["worktree", "add", "-f", "--detach", "--"]);
        let added = call.args([to.as_os_str()]).args([commit]).run().await;
        added.map_err(|error| self.git_failure(error))?;
        let Some(CheckoutRecord { admin, .. }) = self.known_checkouts()?.remove(path) else {
            return Err(RepositoryError::io("find", &to, std::io::ErrorKind::NotFound));
        };
        let checkout = to.clone();
        let marked = supervise::blocking(move || mark_complete(&checkout, &admin)).await;
        marked.map_err(|error| RepositoryError::io("complete", &to, error))
    }

    /// Removes a checkout as a directory, then its record in the git repository.
    pub(super) async fn remove_checkout(&self, path: &str) -> Result<(), RepositoryError> {
        check_path(path)?;
        let known = self.known_checkouts()?.remove(path);
        if let Some(CheckoutRecord { admin, .. }) = &known {
            // From here on it is incomplete, whatever happens.
            cleanup::remove(&admin.join(COMPLETE_MARK)).await?;
        }
        cleanup::remove(&self.run.join(path)).await?;
        if let Some(CheckoutRecord { admin, .. }) = &known {
            cleanup::remove(admin).await?;
        }
        Ok(())
    }

    /// Forgets the checkouts that are not complete, and those with lost files: they are made again.
    /// Git fails on some of their records.
    pub(super) async fn forget_damaged_checkouts(&self) -> Result<(), RepositoryError> {
        let mut complete = Vec::new();
        for (path, CheckoutRecord { admin, commit, .. }) in self.known_checkouts()? {
            match commit {
                Some(commit) => complete.push((path, admin, commit)),
                None => cleanup::remove(&admin).await?,
            }
        }
        for (path, admin, commit) in complete {
            if let Some(lost) = self.find_lost_file(&path, &commit).await? {
                tracing::warn!("{path} lacks the content of {lost}; the checkout is made again");
                cleanup::remove(&admin).await?;
            }
        }
        Ok(())
    }

    /// The checkouts that the git repository knows, by path below the run's directory. Nothing is
    /// read from the checkouts themselves.
    fn known_checkouts(&self) -> Result<BTreeMap<String, CheckoutRecord>, RepositoryError> {
        let mut known = BTreeMap::new();
        for record in CheckoutRecord::list(&self.run, self.bare.dir())? {
            match record.path.clone().filter(|path| check_path(path).is_ok()) {
                Some(path) => {
                    known.insert(path, record);
                }
                // A crash came before git recorded its path.
                None => rollout_base::fs_remove::remove_blocking(&record.admin)
                    .map_err(|error| RepositoryError::io("remove", &record.admin, error))?,
            }
        }
        Ok(known)
    }

    /// Directories that may be checkouts.
    fn found_checkouts(&self) -> Result<Vec<String>, RepositoryError> {
        let mut found = Vec::new();
        for place in CHECKOUT_DIRECTORIES {
            for path in list(&self.run.join(place))? {
                let name = path.file_name().and_then(|name| name.to_str());
                found.extend(name.map(|name| format!("{place}/{name}")));
            }
        }
        Ok(found)
    }
}

/// Marks a checkout as complete. The mark means that everything is on disk.
fn mark_complete(checkout: &Path, admin: &Path) -> std::io::Result<()> {
    for made in [checkout, admin] {
        durable::sync_tree(made)?;
        durable::sync_directory(made.parent().unwrap_or(made))?;
    }
    let mark = admin.join(COMPLETE_MARK);
    std::fs::write(&mark, b"")?;
    durable::sync_file(&mark)
}

/// Refuses any path that is not directly below a checkout directory: no checkout is inside another.
pub(super) fn check_path(path: &str) -> Result<(), RepositoryError> {
    let components: Vec<Component<'_>> = Path::new(path).components().collect();
    match components[..] {
        [Component::Normal(place), Component::Normal(_)]
            if CHECKOUT_DIRECTORIES.iter().any(|known| place == *known) =>
        {
            Ok(())
        }
        _ => Err(RepositoryError::BadName {
            name: path.to_owned(),
            reason: "a checkout must be directly below `wt` or `cand`",
        }),
    }
}
