//! Controls of harnesses that run: requests of a user to the worker of a trial, from any host. The
//! worker that runs the trial answers each of them with a receipt.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::harness::{ControlAction, ControlRequest, HarnessControl, IntegrationLevel};
use crate::id::{ExecId, ItemId, RunId, WorkerId};
use crate::phase::Phase;

/// A request for a control of one trial.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrialControlRequest {
    /// Run.
    pub run: RunId,
    /// Trial.
    pub item: ItemId,
    /// The action.
    pub action: ControlAction,
    /// Name of a checkpoint, or another label.
    #[serde(default)]
    pub label: Option<String>,
    /// The requester.
    pub requested_by: String,
    /// Longest wait for the acknowledgement, milliseconds.
    pub timeout_ms: u64,
    /// How long after this wait a command that ignored `stop` may still run, milliseconds.
    pub grace_ms: u64,
}

impl TrialControlRequest {
    /// The control itself.
    pub fn into_control(self) -> ControlRequest {
        ControlRequest {
            action: self.action,
            label: self.label,
            requested_by: self.requested_by,
            timeout: Duration::from_millis(self.timeout_ms),
            grace: Duration::from_millis(self.grace_ms),
        }
    }
}

/// The answer to a request for a control.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrialControlReceipt {
    /// Trial.
    pub item: ItemId,
    /// Execution.
    pub exec: ExecId,
    /// Worker.
    pub worker: WorkerId,
    /// The requested action.
    pub action: ControlAction,
    /// The result of the request.
    #[serde(flatten)]
    pub result: TrialControlResult,
}

/// The result of a request for a control.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "result", rename_all = "snake_case")]
pub enum TrialControlResult {
    /// The harness acknowledged the control.
    Acknowledged {
        /// The control.
        control: HarnessControl,
    },
    /// The harness did not acknowledge the control in time, or it ended before.
    Unacknowledged {
        /// The control.
        control: HarnessControl,
        /// Whether the agent's command ended during the wait.
        command_ended: bool,
    },
    /// The agent cannot acknowledge controls; none was written.
    UnsupportedForIntegrationLevel {
        /// Level of its harness; absent if the agent has none.
        level: Option<IntegrationLevel>,
    },
    /// The trial is in another phase than its agent's command; nothing was written.
    NotInCommand {
        /// The phase.
        phase: Phase,
    },
    /// The control was refused, or it could not be written.
    Refused {
        /// The reason.
        reason: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trial_control_receipt_round_trips_with_result_inside() {
        let receipt = TrialControlReceipt {
            item: ItemId::from_bytes([1; 16]),
            exec: ExecId::from_bytes([2; 16]),
            worker: "w".parse().expect("a token"),
            action: ControlAction::Stop,
            result: TrialControlResult::NotInCommand { phase: Phase::Verification },
        };
        let value = serde_json::to_value(&receipt).expect("JSON");
        assert_eq!(value["result"], "not_in_command");
        assert_eq!(value["phase"], "verification");
        let read: TrialControlReceipt = serde_json::from_value(value).expect("a receipt");
        assert_eq!(read, receipt);
    }
}
