//! The JSON document of an event, as a harness would write it. What the schema does not name was not
//! kept when the event was read, so it is missing here, too.

use serde_json::{Map, Value, json};

use super::control::ControlAction;
use super::hook_event::{
    CallOutcome, CallStatus, CallTiming, ControlAck, HookError, HookEvent, HookEventBody,
    ModelCall, PayloadRedaction, RedactionMode, StepBudgets, ToolCall,
};

impl HookEvent {
    /// The document of the event: [`parse_event`](super::parse_event) reads an equal event from it.
    pub fn to_json(&self) -> Value {
        let mut document = Object::default();
        document.set("event_type", self.body.event_type().as_str());
        document.set("ts", self.ts.to_string());
        document.set("seq", self.seq);
        document.set("ids", json!(self.ids));
        document.set_some("step_index", self.step_index);
        let payload = self.payload_ref.map(|digest| format!("artifact://sha256/{}", digest.hex()));
        document.set_some("payload_ref", payload);
        document.set_some("redaction", self.redaction.map(redaction));
        match &self.body {
            HookEventBody::AgentStepStart => {}
            HookEventBody::AgentStepEnd(budgets) => document.set("budgets", of_budgets(*budgets)),
            HookEventBody::ControlAck(ack) => document.add_control_ack(ack),
            HookEventBody::ModelCallEnd(call) => document.add_model_call(call),
            HookEventBody::ToolCallEnd(call) => document.add_tool_call(call),
            HookEventBody::Error(error) => document.add_error(error),
        }
        document.into()
    }
}

/// An object whose absent values are left out.
#[derive(Debug, Default)]
struct Object(Map<String, Value>);

impl From<Object> for Value {
    fn from(object: Object) -> Self {
        Self::Object(object.0)
    }
}

impl Object {
    fn set(&mut self, key: &str, value: impl Into<Value>) {
        self.0.insert(key.to_owned(), value.into());
    }

    fn set_some(&mut self, key: &str, value: Option<impl Into<Value>>) {
        if let Some(value) = value {
            self.set(key, value);
        }
    }

    fn add_control_ack(&mut self, ack: &ControlAck) {
        self.set("control_version", ack.control_version.to_string());
        self.set_some("control_seq", ack.control_seq);
        self.set("action_observed", action(ack.action_observed));
        self.set_some("action_taken", ack.action_taken.map(action));
        self.set_some("reason", ack.reason.clone());
    }

    fn add_model_call(&mut self, call: &ModelCall) {
        self.set("call_id", call.call_id.clone());
        self.set("outcome", outcome(&call.outcome));
        self.set_some("turn_index", call.turn_index);
        if let Some(model) = &call.model {
            let mut object = Self::default();
            object.set_some("identity", model.identity.clone());
            object.set_some("params_digest", model.params_digest.clone());
            self.set("model", object);
        }
        if let Some(usage) = call.usage {
            let mut object = Self::default();
            object.set_some("tokens_in", usage.tokens_in);
            object.set_some("tokens_out", usage.tokens_out);
            self.set("usage", object);
        }
        self.set_some("timing", call.timing.map(timing));
        self.set_some("attempt_index", call.attempt_index);
    }

    fn add_tool_call(&mut self, call: &ToolCall) {
        self.set("call_id", call.call_id.clone());
        let mut tool = Self::default();
        tool.set("name", call.tool.name.clone());
        tool.set_some("version", call.tool.version.clone());
        self.set("tool", tool);
        self.set("outcome", outcome(&call.outcome));
        self.set_some("timing", call.timing.map(timing));
        self.set_some("attempt_index", call.attempt_index);
    }

    fn add_error(&mut self, error: &HookError) {
        self.set("message", error.message.clone());
        self.set_some("error_type", error.error_type.clone());
        self.set_some("stack", error.stack.clone());
    }
}

fn action(action: ControlAction) -> Value {
    json!(action)
}

fn redaction(of: PayloadRedaction) -> Object {
    let mut object = Object::default();
    object.set_some("applied", of.applied);
    let mode = of.mode.map(|mode| match mode {
        RedactionMode::Store => "store",
        RedactionMode::Hash => "hash",
        RedactionMode::Drop => "drop",
    });
    object.set_some("mode", mode);
    object
}

fn of_budgets(budgets: StepBudgets) -> Object {
    let mut object = Object::default();
    object.set_some("steps", budgets.steps);
    object.set_some("tokens_in", budgets.tokens_in);
    object.set_some("tokens_out", budgets.tokens_out);
    object.set_some("tool_calls", budgets.tool_calls);
    object
}

fn outcome(of: &CallOutcome) -> Object {
    let mut object = Object::default();
    let status = match of.status {
        CallStatus::Ok => "ok",
        CallStatus::Error => "error",
    };
    object.set("status", status);
    object.set_some("error_type", of.error_type.clone());
    object.set_some("message", of.message.clone());
    object
}

fn timing(of: CallTiming) -> Object {
    let mut object = Object::default();
    object.set_some("queue_wait_ms", of.queue_wait_ms);
    object.set_some("duration_ms", of.duration_ms);
    object
}

#[cfg(test)]
mod tests {
    use super::super::parse_event;
    use super::*;

    /// An event of a type with all its properties.
    fn full(kind: &str, more: Value) -> Value {
        let hex = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
        let mut event = json!({
            "event_type": kind, "ts": "2026-01-02T03:04:05.678Z", "seq": 7,
            "ids": {"run_id": "r", "trial_id": "t", "variant_id": "v", "task_id": "k", "repl_idx": 1},
            "step_index": 3, "payload_ref": format!("artifact://sha256/{hex}"),
            "redaction": {"applied": true, "mode": "hash"},
        });
        let more = more.as_object().expect("an object").clone();
        event.as_object_mut().expect("an object").extend(more);
        event
    }

    #[test]
    fn event_read_from_its_own_document_is_equal() {
        let hex = "60303ae22b998861bce3b28f33eec1be758a213c86c93c076dbe9f558c11c752";
        let outcome = json!({"status": "error", "error_type": "Timeout", "message": "late\n\u{1}"});
        let timing = json!({"queue_wait_ms": 0.5, "duration_ms": 12.0});
        for event in [
            full("agent_step_start", json!({})),
            full(
                "agent_step_end",
                json!({"budgets":
                {"steps": 1, "tokens_in": 2, "tokens_out": 3, "tool_calls": 4}}),
            ),
            full(
                "control_ack",
                json!({"control_version": format!("sha256:{hex}"),
                "control_seq": 2, "action_observed": "stop", "action_taken": "continue",
                "reason": "busy"}),
            ),
            full(
                "model_call_end",
                json!({"call_id": "c", "outcome": outcome, "turn_index": 1,
                "model": {"identity": "m", "params_digest": "p"}, "attempt_index": 2,
                "usage": {"tokens_in": 5, "tokens_out": 6}, "timing": timing}),
            ),
            full(
                "tool_call_end",
                json!({"call_id": "c", "tool": {"name": "sh", "version": "5"},
                "outcome": {"status": "ok"}, "timing": timing, "attempt_index": 2}),
            ),
            full("error", json!({"message": "m", "error_type": "e", "stack": "s"})),
        ] {
            let read = |value: &Value| parse_event(value.to_string().as_bytes()).expect("an event");
            let document = read(&event).to_json();
            assert_eq!(document, event);
            assert_eq!(read(&document), read(&event));
        }
    }

    #[test]
    fn absent_properties_stay_absent() {
        let event = json!({
            "event_type": "error", "ts": "2026-01-02T03:04:05Z", "seq": 0, "message": "m",
            "ids": {"run_id": "r", "trial_id": "t", "variant_id": "v", "task_id": "k", "repl_idx": 0},
        });
        let read = parse_event(event.to_string().as_bytes()).expect("an event");
        assert_eq!(read.to_json(), event);
    }
}
