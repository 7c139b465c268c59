//! OpenAI responses.

use serde_json::{Value, json};

use super::{TOOL_ARGUMENTS, wants_tool, words};

fn message(text: &str) -> Value {
    let part = json!({"type": "output_text", "text": text, "annotations": []});
    json!({"type": "message", "id": "msg_1", "status": "completed", "role": "assistant",
        "content": [part]})
}

fn tool_call(arguments: &str) -> Value {
    json!({"type": "function_call", "id": "fc_1", "status": "completed", "call_id": "call_1",
        "name": "shell", "arguments": arguments})
}

fn output(request: &Value) -> Vec<Value> {
    let mut items = vec![
        json!({"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"}),
        message(&words(request).concat()),
    ];
    if wants_tool(request, &request["input"], "function_call_output") {
        items.push(tool_call(TOOL_ARGUMENTS));
    }
    items
}

/// A whole response. Its input tokens are the bytes of the request's input.
pub(super) fn whole(request: &Value) -> Value {
    let (input, output_tokens) =
        (request["input"].to_string().len(), words(request).concat().len());
    json!({"id": "resp_1", "object": "response", "status": "completed", "model": request["model"],
        "output": output(request), "usage": {
            "input_tokens": input, "input_tokens_details": {"cached_tokens": 1},
            "output_tokens": output_tokens, "output_tokens_details": {"reasoning_tokens": 2},
            "total_tokens": input + output_tokens}})
}

/// The events of a stream.
pub(super) fn stream(request: &Value) -> Vec<Value> {
    let whole = whole(request);
    let begun = json!({"id": "resp_1", "object": "response", "status": "in_progress",
        "model": request["model"], "output": []});
    let mut events = vec![
        json!({"type": "response.created", "response": begun}),
        json!({"type": "response.in_progress", "response": begun}),
    ];
    for (index, item) in output(request).iter().enumerate() {
        let mut event = |kind: &str, name: &str, value: &Value| {
            let kind = format!("response.{kind}");
            events.push(json!({"type": kind, "output_index": index, name: value}));
        };
        match item["type"].as_str() {
            Some("message") => {
                event("output_item.added", "item", &message(""));
                words(request).iter().for_each(|word| {
                    event("output_text.delta", "delta", &json!(word));
                });
                event("output_text.done", "text", &json!(words(request).concat()));
            }
            Some("function_call") => {
                event("output_item.added", "item", &tool_call(""));
                event("function_call_arguments.delta", "delta", &json!(TOOL_ARGUMENTS));
                event("function_call_arguments.done", "arguments", &json!(TOOL_ARGUMENTS));
            }
            _ => event("output_item.added", "item", item),
        }
        event("output_item.done", "item", item);
    }
    events.push(json!({"type": "response.completed", "response": whole}));
    for (number, event) in events.iter_mut().enumerate() {
        event["sequence_number"] = json!(number);
    }
    events
}
