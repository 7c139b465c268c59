//! Types of artifacts.

use serde::{Deserialize, Serialize};

/// Type of an artifact.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ArtifactType {
    /// Changes of a directory that a trial worked in.
    WorkspaceDiff,
    /// Captured output, or collected log files.
    Log,
    /// Events of a harness.
    Trace,
    /// Anything else, including types that this version does not know.
    #[default]
    #[serde(other)]
    Custom,
}

impl ArtifactType {
    /// Whether it is [`Custom`](Self::Custom).
    pub const fn is_custom(&self) -> bool {
        matches!(self, Self::Custom)
    }
}
