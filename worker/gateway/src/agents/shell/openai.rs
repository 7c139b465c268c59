//! Chat completions.

use serde_json::{Value, json};

use super::{COMMAND_DESCRIPTION, ShellCommand, TOOL, TOOL_DESCRIPTION};

/// Path and body of a call.
pub(super) fn request(model: &str, system: &str, messages: &[Value]) -> (String, Value) {
    let system = json!({"role": "system", "content": system});
    let messages: Vec<_> = std::iter::once(&system).chain(messages).collect();
    let parameters = json!({
        "type": "object",
        "properties": {"command": {"type": "string", "description": COMMAND_DESCRIPTION}},
        "required": ["command"],
    });
    let function = json!({"name": TOOL, "description": TOOL_DESCRIPTION, "parameters": parameters});
    let tools = json!([{"type": "function", "function": function}]);
    (
        "/v1/chat/completions".to_owned(),
        json!({"model": model, "messages": messages, "tools": tools}),
    )
}

/// The message of a reply as it is sent back, its text and its commands.
pub(super) fn read(reply: &Value) -> Option<(Value, String, Vec<ShellCommand>)> {
    let message = reply.get("choices")?.get(0)?.get("message")?;
    let text = message["content"].as_str().unwrap_or_default().to_owned();
    let calls = message["tool_calls"].as_array().map(Vec::as_slice).unwrap_or_default();
    let command = |call: &Value| {
        let arguments = call["function"]["arguments"].as_str().unwrap_or_default();
        let arguments: Value = serde_json::from_str(arguments).unwrap_or_default();
        let is_bash = call["function"]["name"] == TOOL;
        let command = arguments["command"].as_str().filter(|_| is_bash).map(str::to_owned);
        ShellCommand { id: call["id"].as_str().unwrap_or_default().to_owned(), command }
    };
    let commands: Vec<_> = calls.iter().map(command).collect();
    let mut sent_back = json!({"role": "assistant", "content": message["content"]});
    if !calls.is_empty() {
        sent_back["tool_calls"] = message["tool_calls"].clone();
    }
    Some((sent_back, text, commands))
}

/// A reply with a text and calls of the tool, by their ids.
pub(super) fn assistant<'a>(
    text: &str,
    calls: impl Iterator<Item = (&'a String, &'a str)>,
) -> Value {
    let call = |(id, command): (&String, &str)| {
        let arguments = json!({"command": command}).to_string();
        json!({"id": id, "type": "function", "function": {"name": TOOL, "arguments": arguments}})
    };
    let calls: Vec<_> = calls.map(call).collect();
    let mut message = json!({"role": "assistant", "content": text});
    if !calls.is_empty() {
        message["tool_calls"] = calls.into();
    }
    message
}

/// The message with the output of a command.
pub(super) fn output((id, text): &(String, String)) -> Value {
    json!({"role": "tool", "tool_call_id": id, "content": text})
}
