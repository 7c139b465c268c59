//! Replies of Anthropic messages.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::usage::UsageCounts;
use super::{ParsedReply, set_text, text};

/// A message so far.
#[derive(Debug, Default)]
pub(super) struct AnthropicReply {
    model: Option<String>,
    usage: UsageCounts,
    blocks: BTreeMap<u64, Block>,
    stop_reason: Option<String>,
    finished: bool,
}

#[derive(Debug, Default)]
struct Block {
    start: Value,
    text: String,
    thinking: String,
    input: String,
}

impl AnthropicReply {
    /// Takes an event; returns whether it is the last one.
    pub(super) fn event(&mut self, event: &Value) -> bool {
        let index = event["index"].as_u64().unwrap_or_default();
        match event["type"].as_str() {
            Some("message_start") => self.message(&event["message"]),
            Some("content_block_start") => {
                let block = Block { start: event["content_block"].clone(), ..Block::default() };
                self.blocks.insert(index, block);
            }
            Some("content_block_delta") => {
                let block = self.blocks.entry(index).or_default();
                let delta = &event["delta"];
                block.text.push_str(delta["text"].as_str().unwrap_or_default());
                block.thinking.push_str(delta["thinking"].as_str().unwrap_or_default());
                block.input.push_str(delta["partial_json"].as_str().unwrap_or_default());
            }
            Some("message_delta") => {
                self.usage.take_anthropic(&event["usage"]);
                self.stop_reason = text(&event["delta"]["stop_reason"]).or(self.stop_reason.take());
            }
            Some("message_stop") => {
                self.finished = true;
                return true;
            }
            _ => {}
        }
        false
    }

    /// Takes a whole message.
    pub(super) fn whole(&mut self, message: &Value) {
        self.finished = true;
        self.message(message);
    }

    fn message(&mut self, message: &Value) {
        set_text(&mut self.model, &message["model"]);
        self.usage.take_anthropic(&message["usage"]);
        self.stop_reason = text(&message["stop_reason"]);
        for (index, block) in message["content"].as_array().into_iter().flatten().enumerate() {
            let block = Block { start: block.clone(), ..Block::default() };
            self.blocks.insert(index as u64, block);
        }
    }

    /// Ends the message.
    pub(super) fn finish(self) -> ParsedReply {
        let blocks: Vec<_> = self.blocks.into_values().map(Block::into_value).collect();
        let message = (!blocks.is_empty()).then(|| json!({"role": "assistant", "content": blocks}));
        ParsedReply {
            model: self.model,
            finished: self.finished || self.stop_reason.is_some(),
            finish_reasons: self.stop_reason.into_iter().collect(),
            usage: self.usage.finish(),
            tokens: None,
            messages: message.into_iter().collect(),
        }
    }
}

impl Block {
    fn into_value(self) -> Value {
        let Self { mut start, text, thinking, input } = self;
        for (name, more) in [("text", text), ("thinking", thinking)] {
            if !more.is_empty() {
                let before = start[name].as_str().unwrap_or_default().to_owned();
                start[name] = Value::String(before + &more);
            }
        }
        if !input.is_empty() {
            start["input"] = serde_json::from_str(&input).unwrap_or(Value::String(input));
        }
        start
    }
}
