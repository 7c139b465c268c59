//! Checkouts of nodes: worktrees of the search's repository, at commits that never change. A
//! checkout at the wrong commit or an unfinished one is made again. No checkout is ever moved.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use super::{FailedRemoval, RepositoryError, SearchRepository, cleanup};
use crate::workloads::search::driver::DesiredRepositoryState;
use crate::workloads::search::manifest::CleanupKind;

/// Directories of the run with checkouts: those of nodes, and those of kept candidates.
const CHECKOUT_DIRECTORIES: [&str; 2] = ["wt", "cand"];

/// Marker of a complete checkout, in its directory in the git repository.
const COMPLETE_MARK: &str = "rollout-complete";

/// A checkout that the git repository knows.
#[derive(Debug)]
struct KnownCheckout {
    /// Its directory below `worktrees` in the git repository.
    admin: PathBuf,
    /// The commit if the checkout is complete.
    commit: Option<String>,
}

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
            let found = known.get(path).and_then(|known| known.commit.as_ref());
            found == Some(commit) && self.run.join(path).join(".git").is_file()
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
        let made = tokio::fs::create_dir_all(above).await;
        made.map_err(|error| RepositoryError::io("create", above, error))?;
        let call = self.bare.git().call(["worktree", "add", "-f", "--detach", "--"]);
        let added = call.args([to.as_os_str()]).args([commit]).run().await;
        added.map_err(|error| self.git_failure(error))?;
        let Some(KnownCheckout { admin, .. }) = self.known_checkouts()?.remove(path) else {
            return Err(RepositoryError::io("find", &to, std::io::ErrorKind::NotFound));
        };
        let mark = admin.join(COMPLETE_MARK);
        std::fs::write(&mark, b"").map_err(|error| RepositoryError::io("write", &mark, error))
    }

    /// Removes a checkout as a directory, then its record in the git repository.
    pub(super) async fn remove_checkout(&self, path: &str) -> Result<(), RepositoryError> {
        check_path(path)?;
        let known = self.known_checkouts()?.remove(path);
        if let Some(KnownCheckout { admin, .. }) = &known {
            // From here on it is incomplete, whatever happens.
            cleanup::remove(&admin.join(COMPLETE_MARK)).await?;
        }
        cleanup::remove(&self.run.join(path)).await?;
        if let Some(KnownCheckout { admin, .. }) = &known {
            cleanup::remove(admin).await?;
        }
        Ok(())
    }

    /// The checkouts that the git repository knows, by path below the run's directory. Nothing is
    /// read from the checkouts themselves.
    fn known_checkouts(&self) -> Result<BTreeMap<String, KnownCheckout>, RepositoryError> {
        let dir = self.bare.dir().join("worktrees");
        let mut known = BTreeMap::new();
        for admin in list(&dir)? {
            let home = std::fs::read_to_string(admin.join("gitdir")).unwrap_or_default();
            let home = Path::new(home.trim_end()).parent();
            let path = home.and_then(|home| home.strip_prefix(&self.run).ok()?.to_str());
            let head = std::fs::read_to_string(admin.join("HEAD")).unwrap_or_default();
            let commit =
                Some(head.trim_end().to_owned()).filter(|_| admin.join(COMPLETE_MARK).exists());
            match path.filter(|path| check_path(path).is_ok()) {
                Some(path) => {
                    known.insert(path.to_owned(), KnownCheckout { admin, commit });
                }
                // A crash came before git recorded its path.
                None => rollout_worker::fs_remove::remove_blocking(&admin)
                    .map_err(|error| RepositoryError::io("remove", &admin, error))?,
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

/// Lists a directory that may be missing.
fn list(dir: &Path) -> Result<Vec<PathBuf>, RepositoryError> {
    let failed = |error| RepositoryError::io("list", dir, error);
    match std::fs::read_dir(dir) {
        Ok(entries) => entries.map(|entry| Ok(entry.map_err(failed)?.path())).collect(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(failed(error)),
    }
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
