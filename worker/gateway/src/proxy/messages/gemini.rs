//! Contents of Gemini.

use rollout_protocol::digest::{Digest, DigestHasher};
use serde_json::{Value, json};

use super::{add_call, add_value};

/// Both spellings of the members of a part that are read.
const CALL: [&str; 2] = ["functionCall", "function_call"];
const SIGNATURE: [&str; 2] = ["thoughtSignature", "thought_signature"];

/// The digest of a content with a role. Its texts count as one, and its thoughts do not count.
pub(super) fn digest(role: &str, content: &Value) -> Digest {
    let mut hasher = DigestHasher::default();
    hasher.update_part(role.as_bytes());
    let parts = content["parts"].as_array().into_iter().flatten();
    let (mut text, mut others) = (String::new(), Vec::new());
    for part in parts.filter(|part| part["thought"] != true) {
        match part["text"].as_str() {
            Some(more) => text.push_str(more),
            None => others.push(part),
        }
    }
    hasher.update_part(text.as_bytes());
    for part in others {
        if let Some(call) = CALL.iter().find_map(|name| part.get(name)) {
            let arguments = call.get("args").cloned().unwrap_or_else(|| json!({}));
            add_call(&mut hasher, &call["name"], &arguments);
        } else if let Some(members) = part.as_object() {
            let mut members = members.clone();
            members.retain(|name, _| !SIGNATURE.contains(&name.as_str()));
            add_value(&mut hasher, &Value::Object(members));
        }
    }
    hasher.finish()
}
