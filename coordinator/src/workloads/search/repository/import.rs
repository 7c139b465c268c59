//! Import of candidates: exactly one new commit on the node on which the idea was tried, without
//! anything that a candidate must not contain.

use std::collections::BTreeSet;

use rollout_protocol::limits;
use rollout_protocol::spec::eval::CommitBundle;
use rollout_store::git::{GitError, TreeEntry, bundle, names};

use super::{RepositoryError, SearchRepository, cleanup};

/// Mode of a submodule.
const SUBMODULE_MODE: u32 = 0o160_000;

/// Modes of files.
const FILE_MODES: [u32; 4] = [0o100_644, 0o100_755, 0o120_000, SUBMODULE_MODE];

impl SearchRepository {
    /// Imports a candidate of an idea that was tried on `parent`. Afterwards
    /// [`SearchRepository::spec`] knows it, and references may point to it. May be repeated.
    ///
    /// # Errors
    /// [`RepositoryError::Refused`] if it is not a valid candidate. Any other error does not
    /// concern the candidate and may pass if [`RepositoryError::is_transient`].
    pub async fn import(
        &self,
        parent: &str,
        candidate: &CommitBundle,
    ) -> Result<(), RepositoryError> {
        let refused =
            |reason: String| RepositoryError::Refused { commit: candidate.commit.clone(), reason };
        if candidate.parent.as_deref() != Some(parent) {
            return Err(refused(format!("its parent is not {parent}")));
        }
        self.spec(parent)?;
        if self.bundles().has(candidate) {
            return self.ensure_objects(&candidate.commit).await;
        }
        self.ensure_objects(parent).await?;
        match self.fetch(candidate, limits::CANDIDATE_BUNDLE_BYTES).await {
            Err(RepositoryError::Git { source, .. }) if source.is_refusal() => {
                return Err(refused(source.to_string()));
            }
            fetched => fetched?,
        }
        let parents =
            self.bare.parents(&candidate.commit).await.map_err(|e| self.git_failure(e))?;
        if parents != [parent] {
            return Err(refused(format!("its parents are {parents:?}")));
        }
        if let Some(reason) = self.find_tree_fault(parent, &candidate.commit).await? {
            return Err(refused(reason));
        }
        let mut bundles = self.bundles();
        bundles.add(candidate.clone());
        bundles.write(&self.run)
    }

    /// Finds a fault in the tree of a candidate.
    async fn find_tree_fault(
        &self,
        parent: &str,
        commit: &str,
    ) -> Result<Option<String>, RepositoryError> {
        let before = self.bare.tree(parent).await.map_err(|error| self.git_failure(error))?;
        let after = self.bare.tree(commit).await.map_err(|error| self.git_failure(error))?;
        let known: BTreeSet<(u32, &str, &[u8])> = before.iter().map(key).collect();
        if after.len() as u64 > limits::CHECKOUT_ENTRIES {
            return Ok(Some(format!("it has {} files", after.len())));
        }
        let bytes: u64 = after.iter().filter_map(|entry| entry.size_bytes).sum();
        if bytes > limits::CHECKOUT_BYTES {
            return Ok(Some(format!("its files have {bytes} bytes")));
        }
        let new = after.iter().filter(|entry| !known.contains(&key(entry)));
        Ok(new.filter_map(entry_fault).next())
    }

    /// Fetches the objects of a commit; those of its parent must exist.
    pub(super) async fn fetch(
        &self,
        bundle: &CommitBundle,
        max_bytes: u64,
    ) -> Result<(), RepositoryError> {
        let size_bytes = bundle.blob.size_bytes;
        if size_bytes > max_bytes {
            let reason = format!("it has {size_bytes} bytes, at most {max_bytes} are accepted");
            return Err(RepositoryError::Refused { commit: bundle.commit.clone(), reason });
        }
        let home = self.run.join(super::DIRECTORY);
        let file = home.join(format!("{}.bundle", bundle.blob.digest.hex()));
        cleanup::remove(&file).await?;
        self.store.get_file(&bundle.blob.digest, &file).await?;
        // Git accepts a commit only if a reference reaches everything it needs.
        let names = [bundle.parent.as_ref(), Some(&bundle.commit)];
        let names = names.map(|commit| format!("refs/incoming/{}", commit.map_or("", |c| c)));
        let fetched = self.fetch_bundle(bundle, &file, &names).await;
        for name in &names {
            let _absent = self.bare.git().call(["update-ref", "-d", name]).run().await;
        }
        cleanup::remove(&file).await?;
        fetched.map_err(|error| self.git_failure(error))
    }

    async fn fetch_bundle(
        &self,
        commit_bundle: &CommitBundle,
        file: &std::path::Path,
        [before, name]: &[String; 2],
    ) -> Result<(), GitError> {
        if let Some(parent) = &commit_bundle.parent {
            self.bare.git().call(["update-ref", before, parent]).run().await?;
        }
        bundle::read(&self.bare, file, commit_bundle, name, true).await
    }
}

fn key(entry: &TreeEntry) -> (u32, &str, &[u8]) {
    (entry.mode, &entry.object, &entry.path)
}

/// Finds a fault in a file that the parent does not have.
fn entry_fault(entry: &TreeEntry) -> Option<String> {
    let path = String::from_utf8_lossy(&entry.path);
    if !names::is_safe(&entry.path) {
        return Some(format!("{path:?} is not a valid path for a commit"));
    }
    if !FILE_MODES.contains(&entry.mode) || entry.mode == SUBMODULE_MODE {
        return Some(format!("{path:?} has mode {:o}", entry.mode));
    }
    let large = entry.size_bytes.filter(|bytes| *bytes > limits::CANDIDATE_FILE_BYTES);
    large.map(|bytes| format!("{path:?} has {bytes} bytes"))
}
