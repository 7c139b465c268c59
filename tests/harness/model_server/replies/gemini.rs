//! Content of Gemini.

use serde_json::{Value, json};

use super::{TOOL_ARGUMENTS, wants_tool, words};

/// The model in a path.
fn model(path: &str) -> &str {
    let name = path.rsplit('/').next().unwrap_or_default();
    name.split(':').next().unwrap_or_default()
}

/// A reply with some parts. Its prompt tokens are the bytes of the request's contents.
fn reply(path: &str, request: &Value, parts: &[Value], output: usize, is_last: bool) -> Value {
    let prompt = request["contents"].to_string().len();
    let mut candidate = json!({"index": 0, "content": {"role": "model", "parts": parts}});
    if is_last {
        candidate["finishReason"] = json!("STOP");
    }
    json!({"candidates": [candidate], "modelVersion": model(path), "usageMetadata": {
        "promptTokenCount": prompt, "cachedContentTokenCount": 1, "candidatesTokenCount": output,
        "thoughtsTokenCount": 2, "totalTokenCount": prompt + output + 2}})
}

/// The parts of the whole reply, one for each word.
fn parts(request: &Value) -> Vec<Value> {
    let mut parts = vec![json!({"text": "hm", "thought": true})];
    if wants_tool(request, &request["contents"], "functionResponse") {
        let arguments: Value = serde_json::from_str(TOOL_ARGUMENTS).expect("JSON");
        let call = json!({"id": "call_1", "name": "shell", "args": arguments});
        parts.push(json!({"functionCall": call, "thoughtSignature": "x"}));
    }
    parts.extend(words(request).iter().map(|word| json!({"text": word})));
    parts
}

/// A whole reply.
pub(super) fn whole(path: &str, request: &Value) -> Value {
    reply(path, request, &parts(request), words(request).concat().len(), true)
}

/// The events of a stream.
pub(super) fn stream(path: &str, request: &Value) -> Vec<String> {
    let (parts, mut output) = (parts(request), 0);
    let mut events = Vec::new();
    for (number, part) in parts.iter().enumerate() {
        let is_thought = part["thought"] == true;
        output += part["text"].as_str().filter(|_| !is_thought).map_or(0, str::len);
        let is_last = number + 1 == parts.len();
        let reply = reply(path, request, std::slice::from_ref(part), output, is_last);
        events.push(format!("data: {reply}\r\n\r\n"));
    }
    events
}
