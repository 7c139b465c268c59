//! Messages of requests and replies, reduced to what a client sends back unchanged: role, text,
//! tool calls and their results. Cache marks and reasoning are left out, which clients move or drop.

use rollout_protocol::digest::{Digest, DigestHasher};
use rollout_protocol::record::ModelEndpoint;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::bounded_json;

/// JSON values of the messages of a request. One with more is in no trajectory.
const REQUEST_VALUES: usize = 1024 * 1024;

/// JSON values of the arguments of a tool call. Arguments with more are compared as text.
const ARGUMENT_VALUES: usize = 64 * 1024;

/// The members of a request that are read.
#[derive(Deserialize)]
struct Request<'a> {
    #[serde(borrow)]
    messages: &'a RawValue,
    #[serde(borrow)]
    system: Option<&'a RawValue>,
}

/// The digests of a request's messages, system text first; `None` if it has none or too many values.
pub(crate) fn of_request(endpoint: ModelEndpoint, body: &[u8]) -> Option<Vec<Digest>> {
    if !matches!(endpoint, ModelEndpoint::ChatCompletions | ModelEndpoint::Messages) {
        return None;
    }
    let request: Request<'_> = serde_json::from_slice(body).ok()?;
    let (mut left, mut digests) = (REQUEST_VALUES, Vec::new());
    if let Some(system) = request.system {
        let system = bounded_json::read(system.get(), &mut left)?;
        digests.push(digest(&json!({"role": "system", "content": system})));
    }
    let messages = request.messages.get();
    bounded_json::read_list(messages, &mut left, |message| digests.push(digest(&message)))?;
    Some(digests)
}

/// The digest of a message.
pub(crate) fn digest(message: &Value) -> Digest {
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
            Some("text") => text.push_str(part["text"].as_str().unwrap_or_default()),
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
mod tests {
    use super::*;

    #[test]
    fn message_digest_ignores_what_clients_change() {
        let reply = json!({"role": "assistant", "content": "", "tool_calls": [
            {"id": "c", "type": "function",
                "function": {"name": "sh", "arguments": "{\"a\":1,\"b\":2}"}}]});
        let sent_back = json!({"role": "assistant", "content": null, "refusal": null, "tool_calls": [
            {"id": "c", "index": 0, "type": "function",
                "function": {"name": "sh", "arguments": "{\"b\": 2, \"a\": 1}"}}]});
        assert_eq!(digest(&reply), digest(&sent_back));
        let reply = json!({"role": "assistant", "content": [
            {"type": "thinking", "thinking": "…"}, {"type": "text", "text": "hey"},
            {"type": "tool_use", "id": "t", "name": "sh", "input": {"a": 1}}]});
        let sent_back = json!({"role": "assistant", "content": [
            {"type": "text", "text": "hey", "cache_control": {"type": "ephemeral"}},
            {"type": "tool_use", "id": "t", "name": "sh", "input": {"a": 1},
                "cache_control": {"type": "ephemeral"}}]});
        assert_eq!(digest(&reply), digest(&sent_back));
        let other = json!({"role": "assistant", "content": "hey"});
        assert_ne!(digest(&reply), digest(&other));
        assert_eq!(
            digest(&other),
            digest(&json!({"role": "assistant",
            "content": [{"type": "text", "text": "he"}, {"type": "text", "text": "y"}]}))
        );
    }

    #[test]
    fn request_messages_begin_with_system_text() {
        let body = br#"{"system":"s","messages":[{"role":"user","content":"u"}]}"#;
        let found = of_request(ModelEndpoint::Messages, body).expect("messages");
        assert_eq!(found.len(), 2);
        assert_eq!(found[1], digest(&json!({"role": "user", "content": "u"})));
        assert_eq!(of_request(ModelEndpoint::Completions, body), None);
        assert_eq!(of_request(ModelEndpoint::Messages, b"{}"), None);
    }

    #[test]
    fn request_with_too_many_values_has_no_messages() {
        let body = |count: usize| format!(r#"{{"messages":[{}1]}}"#, "1,".repeat(count - 1));
        let of = |body: String| of_request(ModelEndpoint::ChatCompletions, body.as_bytes());
        assert_eq!(of(body(2)).map(|found| found.len()), Some(2));
        assert_eq!(of(body(REQUEST_VALUES + 1)), None);
        let nested =
            format!(r#"{{"messages":[{{"role":"user","content":{}}}]}}"#, body(REQUEST_VALUES));
        assert_eq!(of(nested), None);
    }

    #[test]
    fn arguments_with_too_many_values_are_compared_as_text() {
        let call = |space: &str, count: usize| {
            let arguments = format!("[{space}{}1]", "1,".repeat(count));
            digest(&json!({"role": "assistant", "tool_calls": [
                {"function": {"name": "sh", "arguments": arguments}}]}))
        };
        assert_eq!(call(" ", 3), call("", 3));
        assert_ne!(call(" ", ARGUMENT_VALUES), call("", ARGUMENT_VALUES));
        assert_eq!(call("", ARGUMENT_VALUES), call("", ARGUMENT_VALUES));
    }
}
