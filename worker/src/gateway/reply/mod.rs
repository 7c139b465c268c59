//! Replies of model servers, whole or as streams of events: what their records say about them.

mod tokens;
mod usage;

use std::collections::BTreeMap;

use rollout_protocol::record::{CallTokens, ChoiceTokens, ModelEndpoint, TokenUsage};
use serde_json::{Value, json};

use self::usage::UsageCounts;

/// The content of a reply.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct ParsedReply {
    /// Model, as the server names it.
    pub(crate) model: Option<String>,
    /// Reasons why the model stopped, by choice.
    pub(crate) finish_reasons: Vec<String>,
    /// Token counts.
    pub(crate) usage: Option<TokenUsage>,
    /// Tokens.
    pub(crate) tokens: Option<CallTokens>,
    /// The model's message in the form in which a client sends it back, if there is one choice.
    pub(crate) message: Option<Value>,
    /// Whether the reply says that it is at its end.
    pub(crate) finished: bool,
}

/// Reads a reply.
#[derive(Debug)]
pub(crate) struct ReplyParser {
    endpoint: ModelEndpoint,
    model: Option<String>,
    usage: UsageCounts,
    prompt_ids: Option<Vec<u32>>,
    choices: BTreeMap<u64, Choice>,
    /// Blocks of an Anthropic message.
    blocks: BTreeMap<u64, Block>,
    stop_reason: Option<String>,
    finished: bool,
}

#[derive(Debug, Default)]
struct Choice {
    text: String,
    tool_calls: BTreeMap<u64, ToolCall>,
    finish_reason: Option<String>,
    ids: Option<Vec<u32>>,
    logprobs: Option<Vec<Option<f64>>>,
}

#[derive(Debug, Default)]
struct ToolCall {
    id: String,
    name: String,
    arguments: String,
}

#[derive(Debug, Default)]
struct Block {
    start: Value,
    text: String,
    input: String,
}

/// Whether the data of an event is the last of a stream.
pub(crate) fn is_terminal(endpoint: ModelEndpoint, data: &str) -> bool {
    match endpoint {
        ModelEndpoint::ChatCompletions | ModelEndpoint::Completions => data.trim() == "[DONE]",
        ModelEndpoint::Messages => {
            data.contains("message_stop") && {
                let event: Value = serde_json::from_str(data).unwrap_or_default();
                event["type"] == "message_stop"
            }
        }
        ModelEndpoint::CountTokens => false,
    }
}

/// Whether the bytes of an event that has not ended may be the last event of a stream: some clients
/// do not wait for its empty line.
pub(crate) fn may_be_terminal(endpoint: ModelEndpoint, pending: &[u8]) -> bool {
    let mark: &[u8] = match endpoint {
        ModelEndpoint::Messages => b"message_stop",
        _ => b"[DONE]",
    };
    pending.windows(mark.len()).any(|part| part == mark)
}

impl ReplyParser {
    /// A reply of an endpoint.
    pub(crate) fn new(endpoint: ModelEndpoint) -> Self {
        Self {
            endpoint,
            model: None,
            usage: UsageCounts::default(),
            prompt_ids: None,
            choices: BTreeMap::new(),
            blocks: BTreeMap::new(),
            stop_reason: None,
            finished: false,
        }
    }

    /// Takes the data of an event of a stream.
    pub(crate) fn event(&mut self, data: &str) {
        if is_terminal(self.endpoint, data) {
            self.finished = true;
            return;
        }
        let Ok(value) = serde_json::from_str::<Value>(data) else { return };
        match self.endpoint {
            ModelEndpoint::Messages => self.message_event(&value),
            _ => self.part(&value, "delta"),
        }
    }

    /// Takes a whole reply.
    pub(crate) fn whole(&mut self, body: &[u8]) {
        let Ok(value) = serde_json::from_slice::<Value>(body) else { return };
        self.finished = true;
        match self.endpoint {
            ModelEndpoint::ChatCompletions | ModelEndpoint::Completions => {
                self.part(&value, "message");
            }
            ModelEndpoint::Messages => self.whole_message(&value),
            ModelEndpoint::CountTokens => {}
        }
    }

    /// A reply of the OpenAI dialect, or a part of one.
    fn part(&mut self, reply: &Value, message: &str) {
        self.set_model(&reply["model"]);
        self.usage.take(&reply["usage"]);
        if self.prompt_ids.is_none() {
            self.prompt_ids = tokens::prompt_ids(reply, &Value::Null);
        }
        for (position, part) in reply["choices"].as_array().into_iter().flatten().enumerate() {
            let index = part["index"].as_u64().unwrap_or(position as u64);
            if let Some(prompt) = tokens::prompt_ids(&Value::Null, part)
                && self.prompt_ids.is_none()
            {
                self.prompt_ids = Some(prompt);
            }
            self.choices.entry(index).or_default().take(part, &part[message]);
        }
    }

    fn whole_message(&mut self, message: &Value) {
        self.set_model(&message["model"]);
        self.usage.take(&message["usage"]);
        self.stop_reason = text(&message["stop_reason"]);
        for (index, block) in message["content"].as_array().into_iter().flatten().enumerate() {
            let block = Block { start: block.clone(), ..Block::default() };
            self.blocks.insert(index as u64, block);
        }
    }

    fn message_event(&mut self, event: &Value) {
        let index = event["index"].as_u64().unwrap_or_default();
        match event["type"].as_str() {
            Some("message_start") => self.whole_message(&event["message"]),
            Some("content_block_start") => {
                let block = Block { start: event["content_block"].clone(), ..Block::default() };
                self.blocks.insert(index, block);
            }
            Some("content_block_delta") => {
                let block = self.blocks.entry(index).or_default();
                let delta = &event["delta"];
                block.text.push_str(delta["text"].as_str().unwrap_or_default());
                block.input.push_str(delta["partial_json"].as_str().unwrap_or_default());
            }
            Some("message_delta") => {
                self.usage.take(&event["usage"]);
                self.stop_reason = text(&event["delta"]["stop_reason"]).or(self.stop_reason.take());
            }
            _ => {}
        }
    }

    fn set_model(&mut self, model: &Value) {
        if self.model.is_none() {
            self.model = text(model);
        }
    }

    /// Ends the reply.
    pub(crate) fn finish(self) -> ParsedReply {
        let anthropic = self.endpoint == ModelEndpoint::Messages;
        let finish_reasons: Vec<String> = if anthropic {
            self.stop_reason.into_iter().collect()
        } else {
            self.choices.values().filter_map(|choice| choice.finish_reason.clone()).collect()
        };
        let message = if anthropic {
            let blocks: Vec<_> = self.blocks.into_values().map(Block::into_value).collect();
            (!blocks.is_empty()).then(|| json!({"role": "assistant", "content": blocks}))
        } else {
            let only = self.choices.values().next().filter(|_| self.choices.len() == 1);
            only.map(Choice::message)
        };
        let has_tokens = self.prompt_ids.is_some()
            || self
                .choices
                .values()
                .any(|choice| choice.ids.is_some() || choice.logprobs.is_some());
        let choices = self.choices.into_iter().map(|(index, choice)| ChoiceTokens {
            index,
            ids: choice.ids,
            logprobs: choice.logprobs,
            ..ChoiceTokens::default()
        });
        let choices = choices.collect();
        ParsedReply {
            model: self.model,
            finished: self.finished || !finish_reasons.is_empty(),
            finish_reasons,
            usage: self.usage.finish().filter(|_| self.endpoint != ModelEndpoint::CountTokens),
            tokens: has_tokens.then(|| CallTokens {
                prompt_ids: self.prompt_ids,
                choices,
                ..CallTokens::default()
            }),
            message,
        }
    }
}

impl Choice {
    /// Takes a part of the choice; `message` is its message, or the change of it.
    fn take(&mut self, part: &Value, message: &Value) {
        for piece in [&message["content"], &part["text"]] {
            self.text.push_str(piece.as_str().unwrap_or_default());
        }
        let calls = message["tool_calls"].as_array().into_iter().flatten();
        for (position, call) in calls.enumerate() {
            let index = call["index"].as_u64().unwrap_or(position as u64);
            let present = self.tool_calls.entry(index).or_default();
            let function = &call["function"];
            present.id.push_str(call["id"].as_str().unwrap_or_default());
            present.name.push_str(function["name"].as_str().unwrap_or_default());
            present.arguments.push_str(function["arguments"].as_str().unwrap_or_default());
        }
        if let Some(reason) = text(&part["finish_reason"]) {
            self.finish_reason = Some(reason);
        }
        if let Some(ids) = tokens::sampled_ids(part) {
            self.ids.get_or_insert_default().extend(ids);
        }
        if let Some(logprobs) = tokens::sampled_logprobs(part) {
            self.logprobs.get_or_insert_default().extend(logprobs);
        }
        if let Some((ids, logprobs)) = tokens::detailed(part) {
            (self.ids, self.logprobs) = (Some(ids), Some(logprobs));
        }
    }

    fn message(&self) -> Value {
        let mut message = json!({"role": "assistant", "content": self.text});
        if !self.tool_calls.is_empty() {
            let calls = self.tool_calls.values().map(|call| {
                let function = json!({"name": call.name, "arguments": call.arguments});
                json!({"id": call.id, "type": "function", "function": function})
            });
            message["tool_calls"] = calls.collect();
        }
        message
    }
}

impl Block {
    fn into_value(self) -> Value {
        let Self { mut start, text, input } = self;
        if !text.is_empty() {
            let before = start["text"].as_str().unwrap_or_default().to_owned();
            start["text"] = Value::String(before + &text);
        }
        if !input.is_empty() {
            start["input"] = serde_json::from_str(&input).unwrap_or(Value::String(input));
        }
        start
    }
}

fn text(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

#[cfg(test)]
mod tests;
