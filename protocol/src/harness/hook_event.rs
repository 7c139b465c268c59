//! Events of a harness, `hook_events_v1`: one JSON object per line.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::control::ControlAction;
use super::ids::TrialIds;
use crate::digest::Digest;

/// An event.
#[derive(Debug, Clone, PartialEq)]
pub struct HookEvent {
    /// Its number. It increases from event to event.
    pub seq: u64,
    /// Its time on the clock of the harness.
    pub ts: Timestamp,
    /// The trial, as the harness states it.
    pub ids: TrialIds,
    /// The step that it belongs to.
    pub step_index: Option<u64>,
    /// Digest of its payload.
    pub payload_ref: Option<Digest>,
    /// How its payload was redacted.
    pub redaction: Option<PayloadRedaction>,
    /// The content of its type.
    pub body: HookEventBody,
}

/// Type of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HookEventType {
    /// A step began.
    AgentStepStart,
    /// A step ended.
    AgentStepEnd,
    /// A control was read, after a step.
    ControlAck,
    /// A call of a model ended.
    ModelCallEnd,
    /// A call of a tool ended.
    ToolCallEnd,
    /// An error.
    Error,
}

impl HookEventType {
    /// Every type by its name.
    pub const NAMES: &[(&'static str, Self)] = &[
        ("agent_step_start", Self::AgentStepStart),
        ("agent_step_end", Self::AgentStepEnd),
        ("control_ack", Self::ControlAck),
        ("model_call_end", Self::ModelCallEnd),
        ("tool_call_end", Self::ToolCallEnd),
        ("error", Self::Error),
    ];

    /// The name in documents.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::AgentStepStart => "agent_step_start",
            Self::AgentStepEnd => "agent_step_end",
            Self::ControlAck => "control_ack",
            Self::ModelCallEnd => "model_call_end",
            Self::ToolCallEnd => "tool_call_end",
            Self::Error => "error",
        }
    }
}

impl fmt::Display for HookEventType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The content of an event, by its type.
#[derive(Debug, Clone, PartialEq)]
pub enum HookEventBody {
    /// A step began.
    AgentStepStart,
    /// A step ended.
    AgentStepEnd(StepBudgets),
    /// A control was read.
    ControlAck(ControlAck),
    /// A call of a model ended.
    ModelCallEnd(ModelCall),
    /// A call of a tool ended.
    ToolCallEnd(ToolCall),
    /// An error.
    Error(HookError),
}

impl HookEventBody {
    /// The type.
    pub const fn event_type(&self) -> HookEventType {
        match self {
            Self::AgentStepStart => HookEventType::AgentStepStart,
            Self::AgentStepEnd(_) => HookEventType::AgentStepEnd,
            Self::ControlAck(_) => HookEventType::ControlAck,
            Self::ModelCallEnd(_) => HookEventType::ModelCallEnd,
            Self::ToolCallEnd(_) => HookEventType::ToolCallEnd,
            Self::Error(_) => HookEventType::Error,
        }
    }
}

/// Usage since the start of the harness.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StepBudgets {
    /// Steps.
    pub steps: Option<u64>,
    /// Tokens that models read.
    pub tokens_in: Option<u64>,
    /// Tokens that models wrote.
    pub tokens_out: Option<u64>,
    /// Calls of tools.
    pub tool_calls: Option<u64>,
}

/// An acknowledgement of a control.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControlAck {
    /// Digest of the bytes of the control that was read.
    pub control_version: Digest,
    /// Number of the control.
    pub control_seq: Option<u64>,
    /// The action that it asks for.
    pub action_observed: ControlAction,
    /// The action that the harness takes.
    pub action_taken: Option<ControlAction>,
    /// Why it takes this action.
    pub reason: Option<String>,
}

/// A call of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelCall {
    /// Id of the call.
    pub call_id: String,
    /// How it ended.
    pub outcome: CallOutcome,
    /// Number of the turn.
    pub turn_index: Option<u64>,
    /// The model.
    pub model: Option<ModelIdentity>,
    /// Tokens.
    pub usage: Option<TokenUsage>,
    /// Durations.
    pub timing: Option<CallTiming>,
    /// Number of the attempt.
    pub attempt_index: Option<u64>,
}

/// A call of a tool.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolCall {
    /// Id of the call.
    pub call_id: String,
    /// The tool.
    pub tool: ToolIdentity,
    /// How it ended.
    pub outcome: CallOutcome,
    /// Durations.
    pub timing: Option<CallTiming>,
    /// Number of the attempt.
    pub attempt_index: Option<u64>,
}

/// How a call ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallOutcome {
    /// Whether it succeeded.
    pub status: CallStatus,
    /// Type of the error.
    pub error_type: Option<String>,
    /// Text of the error.
    pub message: Option<String>,
}

/// Whether a call succeeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallStatus {
    /// It succeeded.
    Ok,
    /// It failed.
    Error,
}

/// A model.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ModelIdentity {
    /// Its name.
    pub identity: Option<String>,
    /// Digest of the parameters of the call, in a form that the harness chooses.
    pub params_digest: Option<String>,
}

/// A tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolIdentity {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: Option<String>,
}

/// Tokens of a call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TokenUsage {
    /// Tokens that the model read.
    pub tokens_in: Option<u64>,
    /// Tokens that the model wrote.
    pub tokens_out: Option<u64>,
}

/// Durations of a call, milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct CallTiming {
    /// Time in a queue.
    pub queue_wait_ms: Option<f64>,
    /// Time of the call itself.
    pub duration_ms: Option<f64>,
}

/// An error that a harness reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HookError {
    /// Its text.
    pub message: String,
    /// Its type.
    pub error_type: Option<String>,
    /// Its stack.
    pub stack: Option<String>,
}

/// How a payload was redacted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PayloadRedaction {
    /// Whether something was redacted.
    pub applied: Option<bool>,
    /// Treatment of the original.
    pub mode: Option<RedactionMode>,
}

/// Treatment of a payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RedactionMode {
    /// It is stored.
    Store,
    /// Only its digest is kept.
    Hash,
    /// It is dropped.
    Drop,
}
