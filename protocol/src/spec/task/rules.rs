//! How a task's scripts are judged: by the format of its files, unless the job says otherwise.

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
    /// The word used in files and on the terminal.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Rollout => "rollout",
            Self::Harbor => "harbor",
        }
    }
}

impl fmt::Display for TaskFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What outcomes of a task's scripts mean.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScriptRules {
    /// What the exit code of the test script means.
    pub test_exit: TestExit,
    /// What follows an agent that failed or ran out of time.
    pub after_agent_error: AfterAgentError,
}

impl ScriptRules {
    /// The rules of a format.
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

/// What the exit code of the test script means.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TestExit {
    /// A code other than 0 is a failure of the verifier, whatever reward there is.
    #[default]
    MustBeZero,
    /// Nothing: only the reward counts.
    Ignored,
}

/// What follows an agent that failed or ran out of time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AfterAgentError {
    /// The end of the trial, without a reward.
    #[default]
    EndTrial,
    /// Verification all the same; the error is kept beside the reward.
    Verify,
}

/// How the rewards of several steps become the task's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StepStrategy {
    /// The mean over the steps that were verified, key by key; a number that one lacks counts as 0.
    #[default]
    Mean,
    /// Those of the last step that ran.
    Final,
}
