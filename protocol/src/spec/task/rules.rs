//! Rules that interpret the results of a task's scripts: by the format of its files, unless the job
//! overrides them.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The format of a task's files.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskFormat {
    /// Rollout's own.
    #[default]
    Rollout,
    /// Harbor's.
    Harbor,
}

impl TaskFormat {
    /// The name used in files and on the terminal.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Rollout => "rollout",
            Self::Harbor => "harbor",
        }
    }

    /// The other format.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::Rollout => Self::Harbor,
            Self::Harbor => Self::Rollout,
        }
    }
}

impl fmt::Display for TaskFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How the results of a task's scripts are interpreted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScriptRules {
    /// Meaning of the test script's exit code.
    pub test_exit: TestExit,
    /// Action after an agent failed or timed out.
    pub after_agent_error: AfterAgentError,
}

impl ScriptRules {
    /// The default rules of a format.
    pub const fn for_format(format: TaskFormat) -> Self {
        match format {
            TaskFormat::Rollout => Self {
                test_exit: TestExit::MustBeZero,
                after_agent_error: AfterAgentError::EndTrial,
            },
            TaskFormat::Harbor => {
                Self { test_exit: TestExit::Ignored, after_agent_error: AfterAgentError::Verify }
            }
        }
    }
}

/// Meaning of the test script's exit code.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TestExit {
    /// A code other than 0 is a failure of the verifier, even if there is a reward.
    #[default]
    MustBeZero,
    /// Ignored: only the reward counts.
    Ignored,
}

/// Action after an agent failed or timed out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AfterAgentError {
    /// End the trial, without a reward.
    #[default]
    EndTrial,
    /// Verify nevertheless; the error is kept next to the reward.
    Verify,
}

/// How a task's rewards are computed from those of several steps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StepStrategy {
    /// The mean over the verified steps, key by key; a missing number counts as 0.
    #[default]
    Mean,
    /// The rewards of the last step that ran.
    Final,
}
