//! Trials: names and specs by reference.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::digest::{Digest, DigestHasher};
use crate::id::ItemId;

/// The name of a trial; its [`ItemId`] is the digest of this.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TrialName {
    /// Agent.
    pub agent: String,
    /// Dataset.
    pub dataset: String,
    /// Task within the dataset.
    pub task: String,
    /// Number of the sample of (agent, task), from 1.
    pub attempt: u32,
}

impl TrialName {
    /// The trial's key.
    pub fn item(&self) -> ItemId {
        ItemId::for_trial(&self.agent, &self.dataset, &self.task, self.attempt)
    }
}

impl fmt::Display for TrialName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}__{}", self.agent, self.dataset, self.task, self.attempt)
    }
}

/// The spec of a trial, by reference: three documents in the blob store that many trials share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TrialRef {
    /// Digest of a [`TrialSettings`](super::settings::TrialSettings) document.
    pub settings: Digest,
    /// Digest of an [`AgentSpec`](super::agent::AgentSpec) document.
    pub agent: Digest,
    /// Digest of a [`TaskSpec`](super::task::TaskSpec) document.
    pub task: Digest,
    /// Number of the sample, from 1.
    pub attempt: u32,
}

impl TrialRef {
    /// The digest of everything the trial runs under. A result settles its item only if it was made
    /// under the item's current digest.
    pub fn digest(&self) -> Digest {
        let mut hasher = DigestHasher::default();
        hasher.update(b"trial");
        hasher.update(self.settings.as_bytes());
        hasher.update(self.agent.as_bytes());
        hasher.update(self.task.as_bytes());
        hasher.update(&self.attempt.to_be_bytes());
        hasher.finish()
    }
}
