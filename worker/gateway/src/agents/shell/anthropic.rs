//! Anthropic messages.

use serde_json::{Value, json};

use super::{COMMAND_DESCRIPTION, MAX_REPLY_TOKENS, ShellCommand, TOOL, TOOL_DESCRIPTION};

/// Path and body of a call.
pub(super) fn request(model: &str, system: &str, messages: &[Value]) -> (String, Value) {
    let schema = json!({
        "type": "object",
        "properties": {"command": {"type": "string", "description": COMMAND_DESCRIPTION}},
        "required": ["command"],
    });
    let tools = json!([{"name": TOOL, "description": TOOL_DESCRIPTION, "input_schema": schema}]);
    let body = json!({
        "model": model,
        "max_tokens": MAX_REPLY_TOKENS,
        "system": system,
        "messages": messages,
        "tools": tools,
    });
    ("/v1/messages".to_owned(), body)
}

/// The message of a reply as it is sent back, its text and its commands.
pub(super) fn read(reply: &Value) -> Option<(Value, String, Vec<ShellCommand>)> {
    let blocks = reply.get("content")?.as_array()?;
    let texts = blocks.iter().filter(|block| block["type"] == "text");
    let texts: Vec<_> = texts.filter_map(|block| block["text"].as_str()).collect();
    let calls = blocks.iter().filter(|block| block["type"] == "tool_use");
    let command = |call: &Value| {
        let is_bash = call["name"] == TOOL;
        let command = call["input"]["command"].as_str().filter(|_| is_bash).map(str::to_owned);
        ShellCommand { id: call["id"].as_str().unwrap_or_default().to_owned(), command }
    };
    let commands = calls.map(command).collect();
    Some((json!({"role": "assistant", "content": blocks}), texts.join("\n"), commands))
}

/// A reply with a text and calls of the tool, by their ids.
pub(super) fn assistant<'a>(
    text: &str,
    calls: impl Iterator<Item = (&'a String, &'a str)>,
) -> Value {
    let call = |(id, command): (&String, &str)| json!({"type": "tool_use", "id": id, "name": TOOL, "input": {"command": command}});
    // The dialect refuses empty texts.
    let text = (!text.is_empty()).then(|| json!({"type": "text", "text": text}));
    let blocks: Vec<_> = text.into_iter().chain(calls.map(call)).collect();
    json!({"role": "assistant", "content": blocks})
}

/// The message with the outputs of all commands of a reply.
pub(super) fn outputs(outputs: &[(String, String)]) -> Value {
    let block = |(id, text): &(String, String)| json!({"type": "tool_result", "tool_use_id": id, "content": text});
    json!({"role": "user", "content": outputs.iter().map(block).collect::<Vec<_>>()})
}
