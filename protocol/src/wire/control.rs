//! Control messages: urgent requests of a coordinator to workers. Only hints for speed; the
//! authoritative state is in the journal and in the run's state, which workers watch. The state of
//! model calls and the leases of model servers are repeated while the run has a session.

use serde::{Deserialize, Serialize};

use super::model_calls::ModelCallState;
use super::model_leases::LeaseTable;
use crate::id::{ExecId, RunId};

/// How hard to stop. Ordered: a stop can only be made harder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopLevel {
    /// Executions finish their current phase, collect and tear down.
    Drain,
    /// Executions end at once; their environments are removed.
    Kill,
}

/// A control message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ControlMessage {
    /// Stop every execution of a run.
    StopRun {
        /// Run.
        run: RunId,
        /// How hard.
        level: StopLevel,
    },
    /// Stop one execution: its result is no longer needed.
    StopExecution {
        /// Run.
        run: RunId,
        /// Execution.
        exec: ExecId,
        /// How hard.
        level: StopLevel,
    },
    /// Pause or resume the model calls of a run, and say which policy version the servers have.
    ModelCalls {
        /// Run.
        run: RunId,
        /// The state from now on.
        state: ModelCallState,
    },
    /// Divide the limits of a run's model servers among workers.
    ModelLeases {
        /// Run.
        run: RunId,
        /// The leases from now on.
        table: LeaseTable,
    },
}

impl ControlMessage {
    /// The run that it is about.
    pub const fn run(&self) -> RunId {
        match self {
            Self::StopRun { run, .. }
            | Self::StopExecution { run, .. }
            | Self::ModelCalls { run, .. }
            | Self::ModelLeases { run, .. } => *run,
        }
    }
}
