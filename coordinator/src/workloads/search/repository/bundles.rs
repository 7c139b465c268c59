//! The index of commit bundles in the blob store. The repository can be made again from it, so it
//! is a file of the run's directory, beside the repository.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use rollout_base::durable;
use rollout_engine::atomic_file;
use rollout_protocol::limits;
use rollout_protocol::spec::eval::{CommitBundle, RepositorySpec};
use serde::{Deserialize, Serialize};

use super::RepositoryError;

/// Name of the index file.
const FILE: &str = "bundles.json";

/// The commits of a search that are in the blob store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct BundleIndex {
    root: CommitBundle,
    /// Bundles by commit; each names its parent.
    commits: BTreeMap<String, CommitBundle>,
}

impl BundleIndex {
    pub(super) const fn new(root: CommitBundle) -> Self {
        Self { root, commits: BTreeMap::new() }
    }

    pub(super) const fn root(&self) -> &CommitBundle {
        &self.root
    }

    /// Whether this exact bundle is indexed.
    pub(super) fn has(&self, bundle: &CommitBundle) -> bool {
        self.commits.get(&bundle.commit) == Some(bundle)
    }

    /// Adds a bundle whose parent is indexed.
    pub(super) fn add(&mut self, bundle: CommitBundle) {
        self.commits.insert(bundle.commit.clone(), bundle);
    }

    /// Lists the bundles that a worker needs for a commit.
    pub(super) fn spec(&self, commit: &str) -> Option<RepositorySpec> {
        let (mut chain, mut next) = (Vec::new(), commit);
        while next != self.root.commit {
            let bundle = self.commits.get(next)?;
            chain.push(bundle.clone());
            next = bundle.parent.as_deref()?;
        }
        chain.reverse();
        Some(RepositorySpec { root: self.root.clone(), chain })
    }

    /// Reads the index of a search.
    pub(super) fn read(run: &Path) -> Result<Self, RepositoryError> {
        let unusable = |reason: String| RepositoryError::Unusable { path: run.to_owned(), reason };
        let [path, earlier] = [run.join(FILE), earlier_path(run)];
        let path = if path.exists() { path } else { earlier };
        let text = match std::fs::read(&path) {
            Ok(text) if text.len() as u64 <= limits::DOCUMENT_BYTES => text,
            Ok(_) => return Err(unusable(format!("{FILE} is too large"))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(unusable(format!("the search has no {FILE}")));
            }
            Err(error) => return Err(RepositoryError::io("read", &path, error)),
        };
        serde_json::from_slice(&text).map_err(|error| unusable(format!("{FILE}: {error}")))
    }

    /// Moves the index of an earlier version to its place, and reads it.
    pub(super) fn open(run: &Path) -> Result<Self, RepositoryError> {
        let [path, earlier] = [run.join(FILE), earlier_path(run)];
        if !path.exists() && earlier.exists() {
            let moved = std::fs::rename(&earlier, &path);
            let moved = moved.and_then(|()| durable::sync_directory(run));
            moved.map_err(|error| RepositoryError::io("move", &earlier, error))?;
        }
        Self::read(run)
    }

    /// Replaces the file. It is durable on return.
    pub(super) fn write(&self, run: &Path) -> Result<(), RepositoryError> {
        let path = run.join(FILE);
        let text = serde_json::to_vec_pretty(self).expect("a bundle index always serializes");
        let written = atomic_file::replace(&path, &text);
        written.map_err(|error| RepositoryError::io("write", &path, error))
    }
}

/// The path of earlier versions: inside the repository's directory, and lost with it.
fn earlier_path(run: &Path) -> PathBuf {
    run.join(super::DIRECTORY).join(FILE)
}
