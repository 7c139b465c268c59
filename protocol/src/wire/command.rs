//! Commands: requests of a user to the coordinator of a run, from any host. Every command is
//! answered with a receipt.

use serde::{Deserialize, Serialize};

/// A command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum RunCommand {
    /// Cancel trials permanently: they settle as cancelled.
    Cancel {
        /// The trials.
        selection: TrialSelection,
    },
    /// Begin no more trials; running ones go on.
    Pause,
    /// End a pause.
    Continue,
}

/// Trials by name. Absent fields select everything.
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

/// Result of a command. Sent once the command is journalled: it takes effect even if a process dies
/// then.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandReceipt {
    /// Trials that the command names; for a pause and its end, those without a result.
    pub named: u64,
    /// Of these, trials that already had a result, which is kept.
    pub settled: u64,
    /// Of these, trials that the command cancels.
    pub ended: u64,
    /// For a pause, trials of which an execution goes on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running: Option<u64>,
    /// Why the command was refused, if it was.
    #[serde(default)]
    pub refused: Option<String>,
}
