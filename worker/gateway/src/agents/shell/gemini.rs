//! Gemini generateContent.

use serde_json::{Value, json};

use super::{COMMAND_DESCRIPTION, ShellCommand, TOOL, TOOL_DESCRIPTION};

/// The message of a user with a text.
pub(super) fn user(text: &str) -> Value {
    json!({"role": "user", "parts": [{"text": text}]})
}

/// Path and body of a call.
pub(super) fn request(model: &str, system: &str, messages: &[Value]) -> (String, Value) {
    let schema = json!({
        "type": "object",
        "properties": {"command": {"type": "string", "description": COMMAND_DESCRIPTION}},
        "required": ["command"],
    });
    let function =
        json!({"name": TOOL, "description": TOOL_DESCRIPTION, "parametersJsonSchema": schema});
    let body = json!({
        "systemInstruction": {"parts": [{"text": system}]},
        "contents": messages,
        "tools": [{"functionDeclarations": [function]}],
    });
    (format!("/v1beta/models/{model}:generateContent"), body)
}

/// The message of a reply as it is sent back, its text and its commands.
pub(super) fn read(reply: &Value) -> Option<(Value, String, Vec<ShellCommand>)> {
    let content = reply.get("candidates")?.get(0)?.get("content")?;
    let parts = content.get("parts")?.as_array()?;
    let texts = parts.iter().filter(|part| part["thought"] != true);
    let texts: Vec<_> = texts.filter_map(|part| part["text"].as_str()).collect();
    let command = |call: &Value| {
        let is_bash = call["name"] == TOOL;
        let command = call["args"]["command"].as_str().filter(|_| is_bash).map(str::to_owned);
        ShellCommand { id: call["id"].as_str().unwrap_or_default().to_owned(), command }
    };
    let commands = parts.iter().filter_map(|part| part.get("functionCall")).map(command).collect();
    Some((json!({"role": "model", "parts": parts}), texts.concat(), commands))
}

/// A reply with a text and calls of the tool, by their ids.
pub(super) fn assistant<'a>(
    text: &str,
    calls: impl Iterator<Item = (&'a String, &'a str)>,
) -> Value {
    let call = |(id, command): (&String, &str)| json!({"functionCall": {"id": id, "name": TOOL, "args": {"command": command}}});
    let text = (!text.is_empty()).then(|| json!({"text": text}));
    let parts: Vec<_> = text.into_iter().chain(calls.map(call)).collect();
    json!({"role": "model", "parts": parts})
}

/// The message with the outputs of all commands of a reply.
pub(super) fn outputs(outputs: &[(String, String)]) -> Value {
    let part = |(id, text): &(String, String)| {
        let mut response = json!({"name": TOOL, "response": {"output": text}});
        // The server that sent no ids takes none.
        if !id.is_empty() {
            response["id"] = json!(id);
        }
        json!({"functionResponse": response})
    };
    json!({"role": "user", "parts": outputs.iter().map(part).collect::<Vec<_>>()})
}
