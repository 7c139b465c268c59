//! Items of OpenAI responses.

use rollout_protocol::digest::{Digest, DigestHasher};
use serde_json::Value;

use super::{add_call, add_content, add_value};

/// The digest of an item; `None` for reasoning.
pub(super) fn digest(item: &Value) -> Option<Digest> {
    let kind = item["type"].as_str().unwrap_or("message");
    let part = |name: &str| item[name].as_str().unwrap_or_default().as_bytes();
    let mut hasher = DigestHasher::default();
    match kind {
        "message" => return Some(super::digest(item)),
        "reasoning" => return None,
        "function_call" | "custom_tool_call" => {
            hasher.update_part(kind.as_bytes());
            hasher.update_part(part("namespace"));
            let arguments = if kind == "function_call" { "arguments" } else { "input" };
            add_call(&mut hasher, &item["name"], &item[arguments]);
        }
        "function_call_output" | "custom_tool_call_output" => {
            hasher.update_part(kind.as_bytes());
            hasher.update_part(part("call_id"));
            add_content(&mut hasher, &item["output"]);
        }
        _ => {
            let mut item = item.clone();
            if let Some(members) = item.as_object_mut() {
                // Clients of a server that keeps no responses drop its ids.
                members.retain(|name, _| name != "id" && name != "status");
            }
            add_value(&mut hasher, &item);
        }
    }
    Some(hasher.finish())
}
