//! The replies of the model server: a fixed text, whose tokens are its bytes. Responses and Gemini
//! also call a tool, if the request offers any and does not end with a result.

mod gemini;
mod responses;

use serde_json::{Value, json};

/// Id of the token before a message of the model; messages of others begin with the next ids.
const ASSISTANT: u32 = 1001;

/// The arguments of a tool call.
const TOOL_ARGUMENTS: &str = r#"{"command":"ls","count":1}"#;

/// Members in which requests limit the reply.
const LIMITS: [&str; 3] =
    ["/max_tokens", "/max_output_tokens", "/generationConfig/maxOutputTokens"];

/// The text of a reply, in words.
fn words(request: &Value) -> Vec<String> {
    let limit = LIMITS.iter().find_map(|path| request.pointer(path)?.as_u64());
    let count = limit.unwrap_or(4).min(10_000);
    (0..count).map(|number| format!("w{number} ")).collect()
}

fn ids(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

/// Ids of a prompt: each message begins with the id of its role.
fn prompt_ids(request: &Value) -> Vec<u32> {
    if let Some(ids) = request["prompt"].as_array() {
        return ids.iter().filter_map(Value::as_u64).filter_map(|id| id.try_into().ok()).collect();
    }
    let mut all = ids(request["prompt"].as_str().unwrap_or_default());
    for message in request["messages"].as_array().into_iter().flatten() {
        all.push(if message["role"] == "assistant" { ASSISTANT } else { ASSISTANT + 1 });
        all.extend(ids(message["content"].as_str().unwrap_or_default()));
    }
    if request.get("messages").is_some() {
        all.push(ASSISTANT);
    }
    all
}

fn logprobs(request: &Value, text: &str, chat: bool) -> Value {
    let wanted = &request["logprobs"];
    if wanted.is_null() || *wanted == false {
        return Value::Null;
    }
    if chat {
        let content = text.bytes().map(|byte| json!({"token": "x", "logprob": logprob(byte)}));
        return json!({"content": content.collect::<Vec<_>>()});
    }
    json!({"token_logprobs": text.bytes().map(logprob).collect::<Vec<_>>()})
}

fn logprob(byte: u8) -> f64 {
    -f64::from(byte) / 128.0
}

fn usage(request: &Value) -> Value {
    let (input, output) = (prompt_ids(request).len(), words(request).concat().len());
    json!({"prompt_tokens": input, "completion_tokens": output, "total_tokens": input + output})
}

/// Whether a call asks for a stream.
pub(super) fn is_stream(path: &str, request: &Value) -> bool {
    path.contains(":streamGenerateContent") || request["stream"] == true
}

/// Whether a list of messages ends with the result of a tool.
fn wants_tool(request: &Value, messages: &Value, result: &str) -> bool {
    let offered = request["tools"].as_array().is_some_and(|tools| !tools.is_empty());
    let last = messages.as_array().and_then(|messages| messages.last());
    offered && !last.is_some_and(|last| last.to_string().contains(result))
}

/// A whole reply.
pub(super) fn whole(path: &str, request: &Value) -> Value {
    if path.contains(":generateContent") {
        return gemini::whole(path, request);
    }
    if path.ends_with("/responses") {
        return responses::whole(request);
    }
    let text = words(request).concat();
    if path.ends_with("/messages") {
        let usage = json!({"input_tokens": prompt_ids(request).len(), "output_tokens": text.len()});
        return json!({"type": "message", "role": "assistant", "model": request["model"],
            "content": [{"type": "text", "text": text}], "stop_reason": "end_turn",
            "usage": usage});
    }
    let mut reply = part(path, request, &text, "message");
    reply["usage"] = usage(request);
    reply["choices"][0]["finish_reason"] = json!("stop");
    add_prompt_ids(path, request, &mut reply);
    reply
}

/// A part of an OpenAI reply with some of its text.
fn part(path: &str, request: &Value, text: &str, message: &str) -> Value {
    let chat = path.ends_with("/chat/completions");
    let mut choice = json!({"index": 0, "logprobs": logprobs(request, text, chat)});
    if chat {
        choice[message] = json!({"role": "assistant", "content": text});
    } else {
        choice["text"] = json!(text);
    }
    if request["return_token_ids"] == true {
        choice["token_ids"] = json!(ids(text));
    }
    json!({"id": "reply", "model": request["model"], "choices": [choice]})
}

fn add_prompt_ids(path: &str, request: &Value, reply: &mut Value) {
    if request["return_token_ids"] == true {
        let place =
            if path.ends_with("/chat/completions") { reply } else { &mut reply["choices"][0] };
        place["prompt_token_ids"] = json!(prompt_ids(request));
    }
}

/// The events of a stream.
pub(super) fn stream(path: &str, request: &Value) -> Vec<String> {
    if path.contains(":streamGenerateContent") {
        return gemini::stream(path, request);
    }
    if path.ends_with("/responses") {
        return responses::stream(request).iter().map(named).collect();
    }
    if path.ends_with("/messages") {
        return message_events(request);
    }
    let words = words(request);
    let mut events = Vec::new();
    for (number, word) in words.iter().enumerate() {
        let mut event = part(path, request, word, "delta");
        if number == 0 {
            add_prompt_ids(path, request, &mut event);
        }
        if number + 1 == words.len() {
            event["choices"][0]["finish_reason"] = json!("stop");
        }
        events.push(event);
    }
    if request["stream_options"]["include_usage"] == true {
        events.push(json!({"id": "reply", "choices": [], "usage": usage(request)}));
    }
    let mut texts: Vec<_> = events.iter().map(|event| format!("data: {event}\n\n")).collect();
    texts.push("data: [DONE]\n\n".to_owned());
    texts
}

fn message_events(request: &Value) -> Vec<String> {
    let words = words(request);
    let usage = json!({"input_tokens": prompt_ids(request).len(), "output_tokens": 1});
    let mut events = vec![
        json!({"type": "message_start", "message": {"type": "message", "role": "assistant",
            "model": request["model"], "content": [], "usage": usage}}),
        json!({"type": "content_block_start", "index": 0,
            "content_block": {"type": "text", "text": ""}}),
    ];
    for word in &words {
        let delta = json!({"type": "text_delta", "text": word});
        events.push(json!({"type": "content_block_delta", "index": 0, "delta": delta}));
    }
    let usage = json!({"output_tokens": words.concat().len()});
    events.push(json!({"type": "content_block_stop", "index": 0}));
    events.push(
        json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage}),
    );
    events.push(json!({"type": "message_stop"}));
    events.iter().map(named).collect()
}

/// An event whose name is its type.
pub(super) fn named(event: &Value) -> String {
    let name = event["type"].as_str().unwrap_or_default();
    format!("event: {name}\ndata: {event}\n\n")
}
