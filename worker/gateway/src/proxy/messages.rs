//! Messages of requests and replies, reduced to what a client sends back unchanged: role, text,
//! tool calls and their results. Cache marks and reasoning are left out, which clients move or drop.

mod gemini;
mod responses;

use rollout_protocol::digest::{Digest, DigestHasher};
use rollout_protocol::record::ModelEndpoint;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::proxy::{bounded_json, dialect};

/// JSON values of the messages of a request. One with more is in no trajectory.
const REQUEST_VALUES: usize = 1024 * 1024;

/// JSON values of the arguments of a tool call. Arguments with more are compared as text.
const ARGUMENT_VALUES: usize = 64 * 1024;

/// The members of a request that are read, in all dialects.
#[derive(Deserialize)]
struct Request<'a> {
    #[serde(borrow)]
    messages: Option<&'a RawValue>,
    #[serde(borrow)]
    system: Option<&'a RawValue>,
    #[serde(borrow)]
    input: Option<&'a RawValue>,
    #[serde(borrow)]
    instructions: Option<&'a RawValue>,
    #[serde(borrow)]
    previous_response_id: Option<&'a RawValue>,
    #[serde(borrow)]
    conversation: Option<&'a RawValue>,
    #[serde(borrow)]
    contents: Option<&'a RawValue>,
    #[serde(borrow, rename = "systemInstruction", alias = "system_instruction")]
    system_instruction: Option<&'a RawValue>,
}

/// The digests of a request's messages, system text first; `None` if it has none or too many values.
pub(crate) fn of_request(endpoint: ModelEndpoint, body: &[u8]) -> Option<Vec<Digest>> {
    let mut digests = Vec::new();
    each_of_request(endpoint, body, |message| digests.extend(of_message(endpoint, &message)))?;
    Some(digests)
}

/// Calls `each` with a request's messages, system text first, in the form of its endpoint; `None` if
/// it has none or too many values.
pub(crate) fn each_of_request(
    endpoint: ModelEndpoint,
    body: &[u8],
    mut each: impl FnMut(Value),
) -> Option<()> {
    if !dialect::samples(endpoint) || endpoint == ModelEndpoint::Completions {
        return None;
    }
    let request: Request<'_> = serde_json::from_slice(body).ok()?;
    let (system, messages) = match endpoint {
        ModelEndpoint::Responses => (request.instructions, request.input),
        ModelEndpoint::GenerateContent => (request.system_instruction, request.contents),
        _ => (request.system, request.messages),
    };
    let mut left = REQUEST_VALUES;
    if let Some(system) = system {
        let system = bounded_json::read(system.get(), &mut left)?;
        each(match endpoint {
            ModelEndpoint::GenerateContent => json!({"role": "system", "parts": system["parts"]}),
            _ => json!({"role": "system", "content": system}),
        });
    }
    // The server adds messages that the request does not have: it continues no other call.
    for unknown in [request.previous_response_id, request.conversation].into_iter().flatten() {
        each(json!({"role": "conversation", "content": unknown.get()}));
    }
    let messages = messages?.get();
    if endpoint == ModelEndpoint::Responses && messages.starts_with('"') {
        let text = bounded_json::read(messages, &mut left)?;
        each(json!({"role": "user", "content": text}));
        return Some(());
    }
    bounded_json::read_list(messages, &mut left, each)
}

/// The digests of a reply's messages.
pub(crate) fn of_reply(endpoint: ModelEndpoint, messages: &[Value]) -> Vec<Digest> {
    messages.iter().filter_map(|message| of_message(endpoint, message)).collect()
}

/// The digest of no messages, with which a history begins.
pub(crate) fn no_history(endpoint: ModelEndpoint) -> Digest {
    Digest::sha256(format!("{endpoint:?}").as_bytes())
}

/// The digest of a history and the message that follows it.
pub(crate) fn longer_history(history: Digest, message: Digest) -> Digest {
    let mut hasher = DigestHasher::default();
    hasher.update(history.as_bytes());
    hasher.update(message.as_bytes());
    hasher.finish()
}

/// Whether a reply has neither text nor calls: many have the same digest then.
pub(crate) fn is_empty_reply(messages: &[Value]) -> bool {
    let text = |message: &Value| message["content"].as_str().is_some_and(|text| !text.is_empty());
    let list = |message: &Value| {
        ["content", "parts", "tool_calls"]
            .iter()
            .any(|name| message[*name].as_array().is_some_and(|parts| !parts.is_empty()))
    };
    let is_call = |message: &Value| message["call_id"].is_string();
    !messages.iter().any(|message| text(message) || list(message) || is_call(message))
}

/// The digest of a message of an endpoint; `None` for one that clients may leave out.
pub(crate) fn of_message(endpoint: ModelEndpoint, message: &Value) -> Option<Digest> {
    match endpoint {
        ModelEndpoint::Responses => responses::digest(message),
        ModelEndpoint::GenerateContent => {
            Some(gemini::digest(message["role"].as_str().unwrap_or("user"), message))
        }
        _ => Some(digest(message)),
    }
}

/// The digest of a message.
fn digest(message: &Value) -> Digest {
    let mut hasher = DigestHasher::default();
    hasher.update_part(message["role"].as_str().unwrap_or_default().as_bytes());
    hasher.update_part(message["tool_call_id"].as_str().unwrap_or_default().as_bytes());
    add_content(&mut hasher, &message["content"]);
    for call in message["tool_calls"].as_array().into_iter().flatten() {
        let function = &call["function"];
        add_call(&mut hasher, &function["name"], &function["arguments"]);
    }
    hasher.finish()
}

/// Adds the content of a message: a text, or parts whose texts count as one.
fn add_content(hasher: &mut DigestHasher, content: &Value) {
    let mut text = content.as_str().unwrap_or_default().to_owned();
    let mut others = Vec::new();
    for part in content.as_array().into_iter().flatten() {
        match part["type"].as_str() {
            Some("text" | "input_text" | "output_text") => {
                text.push_str(part["text"].as_str().unwrap_or_default());
            }
            Some("thinking" | "redacted_thinking" | "reasoning") => {}
            _ => others.push(part),
        }
    }
    hasher.update_part(text.as_bytes());
    for part in others {
        match part["type"].as_str() {
            Some("tool_use") => add_call(hasher, &part["name"], &part["input"]),
            Some("tool_result") => {
                hasher.update_part(part["tool_use_id"].as_str().unwrap_or_default().as_bytes());
                add_content(hasher, &part["content"]);
            }
            _ => add_value(hasher, part),
        }
    }
}

fn add_call(hasher: &mut DigestHasher, name: &Value, arguments: &Value) {
    hasher.update_part(name.as_str().unwrap_or_default().as_bytes());
    let mut left = ARGUMENT_VALUES;
    match arguments.as_str().and_then(|text| bounded_json::read(text, &mut left)) {
        Some(arguments) => add_value(hasher, &arguments),
        None => add_value(hasher, arguments),
    }
}

/// Adds a value; the order of its members and cache marks do not count.
fn add_value(hasher: &mut DigestHasher, value: &Value) {
    match value {
        Value::Object(members) => {
            let mut names: Vec<_> =
                members.keys().filter(|name| *name != "cache_control").collect();
            names.sort_unstable();
            hasher.update_part(b"{");
            for name in names {
                hasher.update_part(name.as_bytes());
                add_value(hasher, &members[name]);
            }
            hasher.update_part(b"}");
        }
        Value::Array(items) => {
            hasher.update_part(b"[");
            for item in items {
                add_value(hasher, item);
            }
            hasher.update_part(b"]");
        }
        other => hasher.update_part(other.to_string().as_bytes()),
    }
}

#[cfg(test)]
mod tests;
