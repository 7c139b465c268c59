//! Model calls of a run's trials: the state that its coordinator sets, and the counts of workers.

use serde::{Deserialize, Serialize};

use crate::id::RunId;

/// The state of a run's model calls.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelCallState {
    /// Whether no new call may be sent to a model server.
    pub paused: bool,
    /// Version of the policy that the model servers have.
    pub policy_version: u64,
}

/// The model calls of a run at one worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunModelCalls {
    /// The run.
    pub run: RunId,
    /// The state that the worker applies.
    pub state: ModelCallState,
    /// Calls that were sent and have not ended.
    pub in_flight: u32,
    /// Calls that a pause keeps back.
    pub held: u32,
}
