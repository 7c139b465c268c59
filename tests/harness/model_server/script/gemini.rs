//! Content of Gemini.

use serde_json::json;

use super::{CACHED_TOKENS, InputTokens, OUTPUT_TOKENS, REASONING_TOKENS, ScriptedReply, Turn};

/// The reply of a turn.
pub(super) fn reply(path: &str, turn: &Turn, tokens: &InputTokens) -> ScriptedReply {
    let InputTokens { input, number } = tokens;
    let part = match turn {
        Turn::Text(text) => json!({"text": text}),
        Turn::Call { id, name, arguments, .. } => {
            json!({"functionCall": {"id": id, "name": name, "args": arguments}})
        }
    };
    let model = path.rsplit('/').next().unwrap_or_default().split(':').next();
    let content = json!({"role": "model", "parts": [part]});
    let whole = json!({
        "candidates": [{"index": 0, "content": content, "finishReason": "STOP"}],
        "modelVersion": model, "responseId": format!("resp_{number}"),
        "usageMetadata": {"promptTokenCount": input, "cachedContentTokenCount": CACHED_TOKENS,
            "candidatesTokenCount": OUTPUT_TOKENS - REASONING_TOKENS,
            "thoughtsTokenCount": REASONING_TOKENS, "totalTokenCount": input + OUTPUT_TOKENS}});
    ScriptedReply { events: vec![format!("data: {whole}\r\n\r\n")], whole }
}
