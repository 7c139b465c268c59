//! Chat completions.

use serde_json::{Value, json};

use super::{
    CACHED_TOKENS, InputTokens, OUTPUT_TOKENS, REASONING_TOKENS, ScriptedReply, Turn, unnamed,
};

/// The reply of a turn.
pub(super) fn reply(request: &Value, turn: &Turn, tokens: &InputTokens) -> ScriptedReply {
    let InputTokens { input, number } = tokens;
    let usage = json!({"prompt_tokens": input, "completion_tokens": OUTPUT_TOKENS,
        "prompt_tokens_details": {"cached_tokens": CACHED_TOKENS},
        "completion_tokens_details": {"reasoning_tokens": REASONING_TOKENS},
        "total_tokens": input + OUTPUT_TOKENS});
    let (message, deltas, reason) = match turn {
        Turn::Text(text) => {
            let message = json!({"role": "assistant", "content": text});
            (message, vec![json!({"content": text})], "stop")
        }
        Turn::Call { id, name, arguments, .. } => {
            let call = |arguments: &str| {
                let function = json!({"name": name, "arguments": arguments});
                json!({"index": 0, "id": id, "type": "function", "function": function})
            };
            let arguments = arguments.to_string();
            let rest = json!({"index": 0, "function": {"arguments": arguments}});
            let message =
                json!({"role": "assistant", "content": null, "tool_calls": [call(&arguments)]});
            let deltas = vec![json!({"tool_calls": [call("")]}), json!({"tool_calls": [rest]})];
            (message, deltas, "tool_calls")
        }
    };
    let object = |kind: &str, choices: Value| {
        json!({"id": format!("chatcmpl-{number}"), "object": kind, "created": 1, "model": request["model"],
            "choices": choices})
    };
    let chunk = |delta: &Value, reason: Value| {
        let choice = json!({"index": 0, "delta": delta, "finish_reason": reason});
        object("chat.completion.chunk", json!([choice]))
    };
    let mut chunks = vec![chunk(&json!({"role": "assistant", "content": ""}), Value::Null)];
    chunks.extend(deltas.iter().map(|delta| chunk(delta, Value::Null)));
    chunks.push(chunk(&json!({}), json!(reason)));
    if request["stream_options"]["include_usage"] == true {
        let mut last = object("chat.completion.chunk", json!([]));
        last["usage"] = usage.clone();
        chunks.push(last);
    }
    let mut events = unnamed(&chunks);
    events.push("data: [DONE]\n\n".to_owned());
    let choice = json!({"index": 0, "message": message, "finish_reason": reason});
    let mut whole = object("chat.completion", json!([choice]));
    whole["usage"] = usage;
    ScriptedReply { events, whole }
}
