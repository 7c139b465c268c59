//! References of the search, reconciled with the desired state.

use std::collections::{BTreeMap, BTreeSet};

use rollout_store::git::{GitError, is_commit};

use super::{FailedRemoval, RepositoryError, SearchRepository};
use crate::workloads::search::manifest::CleanupKind;

impl SearchRepository {
    /// Common prefix of all references of the search.
    fn namespace(&self) -> String {
        format!("refs/tree/{}/", self.tree)
    }

    /// The full name of a reference of the search.
    pub(super) fn full_name(&self, name: &str) -> Result<String, RepositoryError> {
        let full = if name.starts_with("refs/") { name.to_owned() } else { format!("refs/{name}") };
        let bad = |reason| RepositoryError::BadName { name: name.to_owned(), reason };
        match full.strip_prefix(&self.namespace()) {
            None => Err(bad("it is not below `refs/tree/` and the name of the search")),
            Some(rest) if rest.is_empty() || !rest.bytes().all(|b| b.is_ascii_alphanumeric()) => {
                Err(bad("only letters and digits are allowed"))
            }
            Some(_) => Ok(full),
        }
    }

    /// The existing references of the search.
    pub(super) async fn references(&self) -> Result<BTreeMap<String, String>, RepositoryError> {
        let format = "--format=%(objectname) %(refname)";
        let listed =
            self.bare.git().call(["for-each-ref", format, &self.namespace()]).run_line().await;
        let listed = listed.map_err(|error| self.git_failure(error))?;
        let pairs = listed.lines().filter_map(|line| line.split_once(' '));
        Ok(pairs.map(|(commit, name)| (name.to_owned(), commit.to_owned())).collect())
    }

    /// Makes missing references and removes surplus ones: all at once, or else one by one, so that
    /// a failed removal does not prevent the others. Removes nothing before everything is made.
    pub(super) async fn reconcile_references(
        &self,
        wanted: &BTreeMap<String, String>,
        deferred: &BTreeSet<String>,
    ) -> Result<Vec<FailedRemoval>, RepositoryError> {
        let mut full = BTreeMap::new();
        for (name, commit) in wanted {
            if !is_commit(commit) {
                return Err(RepositoryError::Unknown { commit: commit.clone() });
            }
            full.insert(self.full_name(name)?, commit);
        }
        let existing = self.references().await?;
        let missing = full.iter().filter(|(name, commit)| existing.get(*name) != Some(**commit));
        let missing: Vec<(&String, &&String)> = missing.collect();
        let surplus = existing.keys().filter(|name| !full.contains_key(*name));
        let surplus: Vec<&String> = surplus.filter(|name| !deferred.contains(*name)).collect();
        if missing.is_empty() && surplus.is_empty() {
            return Ok(Vec::new());
        }
        for (_, commit) in &missing {
            self.ensure_objects(commit).await?;
        }
        let made = missing.iter().map(|(name, commit)| format!("update {name} {commit}\n"));
        let gone = surplus.iter().map(|name| format!("delete {name}\n"));
        let all = made.clone().chain(gone).collect::<String>();
        match self.update_references(&all).await {
            Ok(()) => return Ok(Vec::new()),
            Err(GitError::Failed { .. }) => {}
            Err(error) => return Err(self.git_failure(error)),
        }
        self.update_references(&made.collect::<String>())
            .await
            .map_err(|error| self.git_failure(error))?;
        let mut failed = Vec::new();
        for name in surplus {
            if let Err(error) = self.remove_reference(name).await {
                let (path, reason) = (name.clone(), error.chain());
                failed.push(FailedRemoval { kind: CleanupKind::Branch, path, reason });
            }
        }
        Ok(failed)
    }

    async fn update_references(&self, commands: &str) -> Result<(), GitError> {
        if commands.is_empty() {
            return Ok(());
        }
        self.bare.git().call(["update-ref", "--stdin"]).input(commands).run().await.map(drop)
    }

    /// Removes a reference of the search; a missing one is no error.
    pub(super) async fn remove_reference(&self, name: &str) -> Result<(), RepositoryError> {
        let removed = self.update_references(&format!("delete {name}\n")).await;
        removed.map_err(|error| self.git_failure(error))
    }
}
