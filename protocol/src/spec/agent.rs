//! Agents.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::template::Template;

/// An agent definition; its digest is part of what a trial runs under.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AgentSpec {
    /// Name, also the directory of its results.
    pub name: String,
    /// What it does.
    pub kind: AgentKind,
    /// Variables for install, execute and verification scripts; values unexpanded.
    #[serde(default)]
    pub env: BTreeMap<String, Template>,
    /// Time limits that differ from the tasks'.
    #[serde(default, skip_serializing_if = "AgentLimits::are_none")]
    pub limits: AgentLimits,
}

/// Time limits of an agent in place of its tasks', seconds; the job's multipliers are in them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct AgentLimits {
    /// Of its install script.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub install_sec: Option<f64>,
    /// Of its execute script.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub execute_sec: Option<f64>,
    /// Ceiling of the execute script's, whoever sets it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub execute_max_sec: Option<f64>,
}

impl AgentLimits {
    fn are_none(&self) -> bool {
        *self == Self::default()
    }

    /// Time limit of the execute script for a task that gives it `task`; none when absent.
    pub fn execute(&self, task: Option<f64>) -> Option<f64> {
        match (self.execute_sec.or(task), self.execute_max_sec) {
            (Some(limit), Some(most)) => Some(limit.min(most)),
            (limit, most) => limit.or(most),
        }
    }
}

/// What an agent does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum AgentKind {
    /// Copies the task's `solution/` to `/oracle` and runs `bash /oracle/solve.sh`.
    Oracle,
    /// Does nothing: the reward of an untouched environment.
    Nop,
    /// Scripts from the job file.
    Script {
        /// Run first; a non-zero code ends the trial.
        install: Option<String>,
        /// The attempt itself.
        execute: Option<String>,
    },
}
