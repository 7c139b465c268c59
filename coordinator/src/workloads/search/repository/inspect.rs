//! Read-only view of a repository that another process may own.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use rollout_store::git::BareRepository;

use super::bundles::BundleIndex;
use super::{BARE, DIRECTORY, RepositoryError, restore};
use crate::workloads::search::validate::CommitLookup;

/// The references and commits of a search's repository.
#[derive(Debug, Clone, Default)]
pub struct RepositoryInspector {
    /// Commits by the whole names of their references.
    references: BTreeMap<String, String>,
    /// Commits whose files exist.
    commits: BTreeSet<String>,
    /// Why nothing can be looked up.
    damage: Option<String>,
}

impl RepositoryInspector {
    /// Reads the repository of the search in a directory; a missing one is empty.
    ///
    /// # Errors
    /// [`RepositoryError`] if git fails.
    pub async fn open(run: &Path) -> Result<Self, RepositoryError> {
        let path = run.join(DIRECTORY).join(BARE);
        if !path.is_dir() {
            return Ok(Self::default());
        }
        let run = &run.canonicalize().map_err(|e| RepositoryError::io("resolve", run, e))?;
        let path = run.join(DIRECTORY).join(BARE);
        if let Ok(index) = BundleIndex::read(run)
            && let Some(damage) = restore::find_damage(run, &index).await?
        {
            let damage = format!("{damage}; `rollout repair` makes the repository again");
            return Ok(Self { damage: Some(damage), ..Self::default() });
        }
        let bare = BareRepository::from_dir(path.clone());
        let of_git = |source| RepositoryError::Git { path: path.clone(), source };
        // References are listed even if their commits are missing.
        let listed = bare.git().call(["for-each-ref", "--format=%(refname)"]).run_line().await;
        let mut references = BTreeMap::new();
        for name in listed.map_err(of_git)?.lines().filter(|name| !name.is_empty()) {
            if let Some(commit) = bare.reference(name).await.map_err(of_git)? {
                references.insert(name.to_owned(), commit);
            }
        }
        let mut commits = BTreeSet::new();
        for commit in references.values() {
            // The files of a commit exist if git can list them.
            if !commits.contains(commit) && bare.tree(commit).await.is_ok() {
                commits.insert(commit.clone());
            }
        }
        Ok(Self { references, commits, damage: None })
    }
}

impl CommitLookup for RepositoryInspector {
    fn is_reachable(&self, reference: &str, commit: &str) -> Result<bool, String> {
        if let Some(damage) = &self.damage {
            return Err(damage.clone());
        }
        let found = self.references.get(&format!("refs/{reference}"));
        Ok(found.is_some_and(|found| found == commit) && self.commits.contains(commit))
    }
}
