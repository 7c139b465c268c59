//! Control: what a coordinator tells workers at once. A hint for speed; the truth is in the journal
//! and in the run's state, which workers watch.

use serde::{Deserialize, Serialize};

use crate::id::{ExecId, RunId};

/// How hard to stop. Ordered: a stop is only ever made harder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopLevel {
    /// Executions finish their present phase, collect and tear down.
    Drain,
    /// Executions end at once; their environments are removed.
    Kill,
}

/// A command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ControlMessage {
    /// Stop every execution of a run.
    StopRun {
        /// Run.
        run: RunId,
        /// How hard.
        level: StopLevel,
    },
    /// Stop one execution: what it does is not wanted any more.
    StopExecution {
        /// Run.
        run: RunId,
        /// Execution.
        exec: ExecId,
        /// How hard.
        level: StopLevel,
    },
}
