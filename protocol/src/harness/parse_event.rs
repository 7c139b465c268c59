//! Parses one line of a stream of hook events.
//!
//! The schema is strict at the top: an event has no other properties than those of all events and
//! those of its type. Objects inside an event may have further properties.

use serde_json::Value;

use super::control::ControlAction;
use super::hook_event::{
    CallOutcome, CallStatus, CallTiming, ControlAck, HookError, HookEvent, HookEventBody,
    HookEventType, ModelCall, ModelIdentity, PayloadRedaction, RedactionMode, StepBudgets,
    TokenUsage, ToolCall, ToolIdentity,
};
use super::ids::TrialIds;
use super::json_object::{FieldError, JsonObject};
use crate::limits;

/// Name of the schema, which an event may state.
const SCHEMA: &str = "hook_events_v1";

/// Properties of every event.
const COMMON: &[&str] = &[
    "event_type",
    "ts",
    "seq",
    "ids",
    "hooks_schema_version",
    "step_index",
    "payload_ref",
    "redaction",
    "ext",
];

/// Why a line is not an event.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HookEventError {
    /// It exceeds [`limits::HOOK_EVENT_BYTES`].
    #[error("the line has more than {} bytes", limits::HOOK_EVENT_BYTES)]
    TooLong,
    /// It is not a JSON object.
    #[error("the line is not a JSON object: {0}")]
    NotAnObject(String),
    /// It breaks the schema.
    #[error(transparent)]
    Schema(#[from] FieldError),
}

/// Parses a line without its end.
///
/// # Errors
/// [`HookEventError`].
pub fn parse_event(line: &[u8]) -> Result<HookEvent, HookEventError> {
    if line.len() > limits::HOOK_EVENT_BYTES {
        return Err(HookEventError::TooLong);
    }
    let value: Value = serde_json::from_slice(line)
        .map_err(|error| HookEventError::NotAnObject(error.to_string()))?;
    let Value::Object(map) = &value else {
        return Err(HookEventError::NotAnObject("it is another value".to_owned()));
    };
    Ok(event(&JsonObject::document(map))?)
}

fn event(line: &JsonObject<'_>) -> Result<HookEvent, FieldError> {
    let event_type = line.required_word("event_type", HookEventType::NAMES)?;
    line.only(&[COMMON, properties(event_type)])?;
    if line.text("hooks_schema_version")?.is_some_and(|version| version != SCHEMA) {
        return Err(line.invalid("hooks_schema_version", format!("`{SCHEMA}`")));
    }
    // Read for its form only: its content belongs to the harness.
    line.object("ext")?;
    Ok(HookEvent {
        seq: line.required_count("seq")?,
        ts: line.required_time("ts")?,
        ids: TrialIds::read(line)?,
        step_index: step_index(line, event_type)?,
        payload_ref: line.digest("payload_ref", "artifact://sha256/")?,
        redaction: line.object("redaction")?.map(|object| redaction(&object)).transpose()?,
        body: body(line, event_type)?,
    })
}

/// Properties of the events of one type, in addition to the common ones.
const fn properties(event_type: HookEventType) -> &'static [&'static str] {
    match event_type {
        HookEventType::AgentStepStart => &[],
        HookEventType::AgentStepEnd => &["budgets"],
        HookEventType::ControlAck => {
            &["control_version", "control_seq", "action_observed", "action_taken", "reason"]
        }
        HookEventType::ModelCallEnd => {
            &["call_id", "outcome", "turn_index", "model", "usage", "timing", "attempt_index"]
        }
        HookEventType::ToolCallEnd => &["call_id", "tool", "outcome", "timing", "attempt_index"],
        HookEventType::Error => &["message", "error_type", "stack"],
    }
}

/// The step, which may be null where it is not required.
fn step_index(line: &JsonObject<'_>, event_type: HookEventType) -> Result<Option<u64>, FieldError> {
    use HookEventType::{AgentStepEnd, AgentStepStart, ControlAck};
    let required = matches!(event_type, AgentStepStart | AgentStepEnd | ControlAck);
    match line.value("step_index") {
        None if required => Err(line.missing("step_index")),
        None => Ok(None),
        Some(Value::Null) if !required => Ok(None),
        Some(_) => line.count("step_index"),
    }
}

fn redaction(object: &JsonObject<'_>) -> Result<PayloadRedaction, FieldError> {
    const MODES: &[(&str, RedactionMode)] = &[
        ("store", RedactionMode::Store),
        ("hash", RedactionMode::Hash),
        ("drop", RedactionMode::Drop),
    ];
    Ok(PayloadRedaction { applied: object.bool("applied")?, mode: object.word("mode", MODES)? })
}

fn body(line: &JsonObject<'_>, event_type: HookEventType) -> Result<HookEventBody, FieldError> {
    Ok(match event_type {
        HookEventType::AgentStepStart => HookEventBody::AgentStepStart,
        HookEventType::AgentStepEnd => {
            let budgets = line.object("budgets")?.map(|object| budgets(&object)).transpose()?;
            HookEventBody::AgentStepEnd(budgets.unwrap_or_default())
        }
        HookEventType::ControlAck => HookEventBody::ControlAck(control_ack(line)?),
        HookEventType::ModelCallEnd => HookEventBody::ModelCallEnd(model_call(line)?),
        HookEventType::ToolCallEnd => HookEventBody::ToolCallEnd(tool_call(line)?),
        HookEventType::Error => HookEventBody::Error(HookError {
            message: line.required_text("message")?.to_owned(),
            error_type: owned(line, "error_type")?,
            stack: owned(line, "stack")?,
        }),
    })
}

fn owned(object: &JsonObject<'_>, key: &str) -> Result<Option<String>, FieldError> {
    Ok(object.text(key)?.map(str::to_owned))
}

fn budgets(object: &JsonObject<'_>) -> Result<StepBudgets, FieldError> {
    Ok(StepBudgets {
        steps: object.count("steps")?,
        tokens_in: object.count("tokens_in")?,
        tokens_out: object.count("tokens_out")?,
        tool_calls: object.count("tool_calls")?,
    })
}

fn control_ack(line: &JsonObject<'_>) -> Result<ControlAck, FieldError> {
    let version = line.digest("control_version", "sha256:")?;
    Ok(ControlAck {
        control_version: version.ok_or_else(|| line.missing("control_version"))?,
        control_seq: line.count("control_seq")?,
        action_observed: line.required_word("action_observed", ControlAction::NAMES)?,
        action_taken: line.word("action_taken", ControlAction::NAMES)?,
        reason: owned(line, "reason")?,
    })
}

fn model_call(line: &JsonObject<'_>) -> Result<ModelCall, FieldError> {
    let model = |object: &JsonObject<'_>| {
        let identity = owned(object, "identity")?;
        Ok(ModelIdentity { identity, params_digest: owned(object, "params_digest")? })
    };
    let usage = |object: &JsonObject<'_>| {
        let tokens_in = object.count("tokens_in")?;
        Ok(TokenUsage { tokens_in, tokens_out: object.count("tokens_out")? })
    };
    Ok(ModelCall {
        call_id: line.required_text("call_id")?.to_owned(),
        outcome: outcome(line)?,
        turn_index: line.count("turn_index")?,
        model: line.object("model")?.map(|object| model(&object)).transpose()?,
        usage: line.object("usage")?.map(|object| usage(&object)).transpose()?,
        timing: timing(line)?,
        attempt_index: line.count("attempt_index")?,
    })
}

fn tool_call(line: &JsonObject<'_>) -> Result<ToolCall, FieldError> {
    let tool = line.required_object("tool")?;
    Ok(ToolCall {
        call_id: line.required_text("call_id")?.to_owned(),
        tool: ToolIdentity {
            name: tool.required_text("name")?.to_owned(),
            version: owned(&tool, "version")?,
        },
        outcome: outcome(line)?,
        timing: timing(line)?,
        attempt_index: line.count("attempt_index")?,
    })
}

fn outcome(line: &JsonObject<'_>) -> Result<CallOutcome, FieldError> {
    const STATUSES: &[(&str, CallStatus)] = &[("ok", CallStatus::Ok), ("error", CallStatus::Error)];
    let outcome = line.required_object("outcome")?;
    Ok(CallOutcome {
        status: outcome.required_word("status", STATUSES)?,
        error_type: owned(&outcome, "error_type")?,
        message: owned(&outcome, "message")?,
    })
}

fn timing(line: &JsonObject<'_>) -> Result<Option<CallTiming>, FieldError> {
    let Some(timing) = line.object("timing")? else { return Ok(None) };
    let queue_wait_ms = timing.number("queue_wait_ms")?;
    Ok(Some(CallTiming { queue_wait_ms, duration_ms: timing.number("duration_ms")? }))
}
