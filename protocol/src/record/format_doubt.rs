//! Doubt about the verdict of a trial whose task has a guessed format.

use serde::{Deserialize, Serialize};

/// Why a trial could have another verdict if its task were read in the other format. Only trials of
/// tasks whose format is a guess have one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FormatDoubt {
    /// The test script ended with a code other than 0, and left a reward other than 0.
    TestExit,
    /// The agent failed: one format ends the trial then, the other verifies it.
    AgentError,
    /// The formats prefer different reward files, whose rewards differ.
    RewardFiles,
}

impl FormatDoubt {
    /// The name used in documents.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::TestExit => "test_exit",
            Self::AgentError => "agent_error",
            Self::RewardFiles => "reward_files",
        }
    }
}
