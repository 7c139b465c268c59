//! The index of commit bundles in the blob store.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;

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

    pub(super) fn read(home: &Path) -> Result<Self, RepositoryError> {
        let path = home.join(FILE);
        let unusable = |reason: String| RepositoryError::Unusable { path: home.to_owned(), reason };
        let text = match std::fs::read(&path) {
            Ok(text) if text.len() as u64 <= limits::DOCUMENT_BYTES => text,
            Ok(_) => return Err(unusable(format!("{FILE} is too large"))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(unusable("it is incomplete".to_owned()));
            }
            Err(error) => return Err(RepositoryError::io("read", &path, error)),
        };
        serde_json::from_slice(&text).map_err(|error| unusable(format!("{FILE}: {error}")))
    }

    /// Replaces the file. It is durable on return.
    pub(super) fn write(&self, home: &Path) -> Result<(), RepositoryError> {
        let (path, partial) = (home.join(FILE), home.join(format!("{FILE}.partial")));
        let text = serde_json::to_vec_pretty(self).expect("a bundle index always serializes");
        let written = || {
            let mut file = File::create(&partial)?;
            file.write_all(&text)?;
            file.sync_all()?;
            std::fs::rename(&partial, &path)?;
            File::open(home)?.sync_all()
        };
        written().map_err(|error: io::Error| RepositoryError::io("write", &path, error))
    }
}
