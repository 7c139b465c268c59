//! Commands: what a user asks the coordinator of a run for, from anywhere. Every command is answered
//! with a receipt.

use serde::{Deserialize, Serialize};

use super::control::StopLevel;

/// What is asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum RunCommand {
    /// End trials for good: they settle as cancelled.
    Cancel {
        /// Which ones.
        selection: TrialSelection,
    },
    /// Stop the sitting, as a signal to the coordinator would. The run can be gone on with.
    Stop {
        /// How hard.
        level: StopLevel,
    },
}

/// Trials by name. What is absent selects everything.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrialSelection {
    /// Agent.
    #[serde(default)]
    pub agent: Option<String>,
    /// Dataset.
    #[serde(default)]
    pub dataset: Option<String>,
    /// Task.
    #[serde(default)]
    pub task: Option<String>,
    /// Attempt, from 1.
    #[serde(default)]
    pub attempt: Option<u32>,
}

/// What became of a command. Given when it is journalled: it takes effect whatever dies then.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandReceipt {
    /// Trials that the command names.
    pub named: u64,
    /// Of these, trials that had a result already, which stands.
    pub settled: u64,
    /// Of these, trials that the command ends.
    pub ended: u64,
    /// Why nothing was done, if nothing was.
    #[serde(default)]
    pub refused: Option<String>,
}
