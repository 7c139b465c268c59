//! Anthropic messages.

use serde_json::{Value, json};

use super::super::replies::named;
use super::{CACHED_TOKENS, InputTokens, OUTPUT_TOKENS, ScriptedReply, Turn, WRITTEN_TOKENS};

/// The reply of a turn.
pub(super) fn reply(request: &Value, turn: &Turn, tokens: &InputTokens) -> ScriptedReply {
    let (begun, block, delta, reason) = match turn {
        Turn::Text(text) => (
            json!({"type": "text", "text": ""}),
            json!({"type": "text", "text": text}),
            json!({"type": "text_delta", "text": text}),
            "end_turn",
        ),
        Turn::Call { id, name, arguments, .. } => {
            let block =
                |input: &Value| json!({"type": "tool_use", "id": id, "name": name, "input": input});
            let json = arguments.to_string();
            let delta = json!({"type": "input_json_delta", "partial_json": json});
            (block(&json!({})), block(arguments), delta, "tool_use")
        }
    };
    let InputTokens { input, number } = tokens;
    let uncached = input - CACHED_TOKENS - WRITTEN_TOKENS;
    let message = |content: Value, reason: Value, output: usize| {
        json!({"type": "message", "id": format!("msg_{number}"), "role": "assistant", "model": request["model"],
            "content": content, "stop_reason": reason, "stop_sequence": null, "usage": {
                "input_tokens": uncached, "cache_creation_input_tokens": WRITTEN_TOKENS,
                "cache_read_input_tokens": CACHED_TOKENS, "output_tokens": output}})
    };
    let stop = json!({"stop_reason": reason, "stop_sequence": null});
    let events = [
        json!({"type": "message_start", "message": message(json!([]), Value::Null, 1)}),
        json!({"type": "content_block_start", "index": 0, "content_block": begun}),
        json!({"type": "ping"}),
        json!({"type": "content_block_delta", "index": 0, "delta": delta}),
        json!({"type": "content_block_stop", "index": 0}),
        json!({"type": "message_delta", "delta": stop, "usage": {"output_tokens": OUTPUT_TOKENS}}),
        json!({"type": "message_stop"}),
    ];
    let whole = message(json!([block]), json!(reason), OUTPUT_TOKENS);
    ScriptedReply { events: events.iter().map(named).collect(), whole }
}
