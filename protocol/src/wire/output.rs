//! Output of trials that run: requests of a user to the worker of a trial, from any host. A worker
//! sends output only in answer to a request.

use serde::{Deserialize, Serialize};

use super::trial_control::{TrialControlReceipt, TrialControlRequest};
use crate::id::{ExecId, ItemId, RunId, WorkerId};

/// A request for output of a trial.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputRequest {
    /// Run.
    pub run: RunId,
    /// Trial.
    pub item: ItemId,
    /// The execution that the position is in. Another one is read from its beginning.
    #[serde(default)]
    pub exec: Option<ExecId>,
    /// The position.
    pub output_after: OutputCursor,
    /// Most bytes of the file in the answer, if fewer than usual fit into a message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_bytes: Option<u64>,
}

/// A position in the output of an execution.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputCursor {
    /// Number of a capture in the order of their beginnings, from 0.
    pub capture: u32,
    /// Bytes of its standard output and standard error that were read.
    pub offsets: [u64; 2],
}

/// A piece of output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputPiece {
    /// Path of the file below the trial's directory.
    pub path: String,
    /// The text, at most [`crate::limits::LIVE_OUTPUT_BYTES`] of the file. Bytes that are not UTF-8
    /// are replaced.
    pub text: String,
    /// The position after it.
    pub next: OutputCursor,
}

/// The answer to a request for output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputAnswer {
    /// Trial.
    pub item: ItemId,
    /// Execution.
    pub exec: ExecId,
    /// Worker.
    pub worker: WorkerId,
    /// The next piece; `None` if there is nothing new.
    pub piece: Option<OutputPiece>,
}

/// A request of a user to the worker of a trial.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum TrialRequest {
    /// For output.
    Output(OutputRequest),
    /// For a control.
    Control(TrialControlRequest),
}

/// The answer to a request of a user.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum TrialAnswer {
    /// Output.
    Output(OutputAnswer),
    /// The receipt of a control.
    Control(TrialControlReceipt),
}

impl TrialRequest {
    /// Run and trial.
    pub const fn target(&self) -> (RunId, ItemId) {
        match self {
            Self::Output(request) => (request.run, request.item),
            Self::Control(request) => (request.run, request.item),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::ControlAction;

    #[test]
    fn requests_of_users_are_told_apart() {
        let (run, item) = (RunId::from_bytes([1; 16]), ItemId::from_bytes([2; 16]));
        let output_after = OutputCursor { capture: 3, offsets: [1, 2] };
        let control = TrialControlRequest {
            run,
            item,
            action: ControlAction::Stop,
            label: None,
            requested_by: "someone".to_owned(),
            timeout_ms: 1,
            grace_ms: 1,
        };
        let requests = [
            TrialRequest::Output(OutputRequest {
                run,
                item,
                exec: None,
                output_after,
                max_bytes: Some(1),
            }),
            TrialRequest::Control(control.clone()),
        ];
        for request in requests {
            let text = serde_json::to_string(&request).expect("JSON");
            assert_eq!(serde_json::from_str::<TrialRequest>(&text).expect(&text), request);
        }
        // Workers of earlier versions know controls alone.
        let text = serde_json::to_string(&control).expect("JSON");
        let read = serde_json::from_str::<TrialRequest>(&text).expect("a request");
        assert_eq!(read, TrialRequest::Control(control));
    }
}
