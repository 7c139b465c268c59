//! Agents.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::template::Template;

/// An agent definition; its digest is part of what a trial runs under.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentSpec {
    /// Name, also the directory of its results.
    pub name: String,
    /// What it does.
    pub kind: AgentKind,
    /// Variables for install, execute and verification scripts; values unexpanded.
    #[serde(default)]
    pub env: BTreeMap<String, Template>,
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
