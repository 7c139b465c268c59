//! The phases of a try.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The phase that a try is in, or in which something happened to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Waiting for a slot.
    Queued,
    /// Image build or pull, start, first copies.
    EnvironmentSetup,
    /// The agent's install script.
    AgentSetup,
    /// The agent's execute script.
    AgentExecution,
    /// The task's test script.
    Verification,
    /// `/logs`, outputs, cost.
    Collection,
    /// Stop, then preserve or destroy.
    Teardown,
}

impl Phase {
    /// Every phase, in order.
    pub const ALL: [Self; 7] = [
        Self::Queued,
        Self::EnvironmentSetup,
        Self::AgentSetup,
        Self::AgentExecution,
        Self::Verification,
        Self::Collection,
        Self::Teardown,
    ];

    /// The name used in documents and on the terminal.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::EnvironmentSetup => "environment_setup",
            Self::AgentSetup => "agent_setup",
            Self::AgentExecution => "agent_execution",
            Self::Verification => "verification",
            Self::Collection => "collection",
            Self::Teardown => "teardown",
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
