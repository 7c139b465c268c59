//! OpenAI responses.

use serde_json::{Value, json};

use super::super::replies::named;
use super::{CACHED_TOKENS, InputTokens, OUTPUT_TOKENS, REASONING_TOKENS, ScriptedReply, Turn};

/// The reply of a turn.
pub(super) fn reply(request: &Value, turn: &Turn, tokens: &InputTokens) -> ScriptedReply {
    let InputTokens { input, number } = tokens;
    let response = |status: &str, output: &[Value]| {
        json!({"id": format!("resp_{number}"), "object": "response", "created_at": 1, "status": status,
            "model": request["model"], "output": output})
    };
    let (item, events) = match turn {
        Turn::Text(text) => message_events(text),
        Turn::Call { id, name, namespace, arguments } => {
            call_events(id, (name, namespace.as_deref()), &arguments.to_string())
        }
    };
    let mut whole = response("completed", std::slice::from_ref(&item));
    whole["usage"] = json!({
        "input_tokens": input, "input_tokens_details": {"cached_tokens": CACHED_TOKENS},
        "output_tokens": OUTPUT_TOKENS, "output_tokens_details": {"reasoning_tokens": REASONING_TOKENS},
        "total_tokens": input + OUTPUT_TOKENS});
    let begun = response("in_progress", &[]);
    let mut all = vec![
        json!({"type": "response.created", "response": begun}),
        json!({"type": "response.in_progress", "response": begun}),
    ];
    all.extend(events);
    all.push(json!({"type": "response.output_item.done", "item": item}));
    for event in &mut all[2..] {
        event["output_index"] = json!(0);
    }
    all.push(json!({"type": "response.completed", "response": whole}));
    for (number, event) in all.iter_mut().enumerate() {
        event["sequence_number"] = json!(number);
    }
    ScriptedReply { events: all.iter().map(named).collect(), whole }
}

/// The item of a text, and the events before its end.
fn message_events(text: &str) -> (Value, Vec<Value>) {
    let part = |text: &str| json!({"type": "output_text", "text": text, "annotations": []});
    let item = |status: &str, content: Value| {
        json!({"type": "message", "id": "msg_1", "status": status, "role": "assistant",
            "content": content})
    };
    let of_part = |kind: &str, name: &str, value: Value| {
        json!({"type": format!("response.{kind}"), "item_id": "msg_1", "content_index": 0,
            name: value})
    };
    let events = vec![
        json!({"type": "response.output_item.added", "item": item("in_progress", json!([]))}),
        of_part("content_part.added", "part", part("")),
        of_part("output_text.delta", "delta", json!(text)),
        of_part("output_text.done", "text", json!(text)),
        of_part("content_part.done", "part", part(text)),
    ];
    (item("completed", json!([part(text)])), events)
}

/// The item of a call, and the events before its end.
fn call_events(
    id: &str,
    (name, namespace): (&str, Option<&str>),
    arguments: &str,
) -> (Value, Vec<Value>) {
    let item = |status: &str, arguments: &str| {
        let mut item = json!({"type": "function_call", "id": "fc_1", "status": status,
            "call_id": id, "name": name, "arguments": arguments});
        if let Some(namespace) = namespace {
            item["namespace"] = namespace.into();
        }
        item
    };
    let of_arguments = |kind: &str, member: &str| {
        json!({"type": format!("response.function_call_arguments.{kind}"), "item_id": "fc_1",
            member: arguments})
    };
    let events = vec![
        json!({"type": "response.output_item.added", "item": item("in_progress", "")}),
        of_arguments("delta", "delta"),
        of_arguments("done", "arguments"),
    ];
    (item("completed", arguments), events)
}
