//! Replies of OpenAI chat completions and completions.

use std::collections::BTreeMap;

use rollout_protocol::record::{CallTokens, ChoiceTokens};
use serde_json::{Value, json};

use super::usage::UsageCounts;
use super::{ParsedReply, set_text, text, tokens};

/// The data of the last event of a stream.
const LAST: &str = "[DONE]";

/// A reply so far.
#[derive(Debug, Default)]
pub(super) struct OpenaiReply {
    model: Option<String>,
    usage: UsageCounts,
    prompt_ids: Option<Vec<u32>>,
    choices: BTreeMap<u64, Choice>,
    finished: bool,
}

#[derive(Debug, Default)]
struct Choice {
    text: String,
    reasoning: String,
    refusal: String,
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

impl OpenaiReply {
    /// Takes the data of an event; returns whether it is the last one.
    pub(super) fn event(&mut self, data: &str) -> bool {
        if data.trim() == LAST {
            self.finished = true;
            return true;
        }
        if let Ok(part) = serde_json::from_str(data) {
            self.part(&part, "delta");
        }
        false
    }

    /// Takes a whole reply.
    pub(super) fn whole(&mut self, reply: &Value) {
        self.finished = true;
        self.part(reply, "message");
    }

    fn part(&mut self, reply: &Value, message: &str) {
        set_text(&mut self.model, &reply["model"]);
        self.usage.take_openai(&reply["usage"]);
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

    /// Ends the reply.
    pub(super) fn finish(self) -> ParsedReply {
        let reasons = self.choices.values().filter_map(|choice| choice.finish_reason.clone());
        let finish_reasons: Vec<String> = reasons.collect();
        let only = self.choices.values().next().filter(|_| self.choices.len() == 1);
        let messages = only.map(Choice::message).into_iter().collect();
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
            // Some servers send no last event.
            finished: self.finished || !finish_reasons.is_empty(),
            finish_reasons,
            usage: self.usage.finish(),
            tokens: has_tokens.then(|| CallTokens {
                prompt_ids: self.prompt_ids,
                choices,
                ..CallTokens::default()
            }),
            messages,
        }
    }
}

impl Choice {
    /// Takes a part of the choice; `message` is its message, or the change of it.
    fn take(&mut self, part: &Value, message: &Value) {
        for piece in [&message["content"], &part["text"]] {
            self.text.push_str(piece.as_str().unwrap_or_default());
        }
        // Servers name it either way; some do both.
        let reasoning = ["reasoning_content", "reasoning"].map(|name| message[name].as_str());
        self.reasoning.push_str(reasoning.into_iter().flatten().next().unwrap_or_default());
        self.refusal.push_str(message["refusal"].as_str().unwrap_or_default());
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
        for (name, text) in [("reasoning_content", &self.reasoning), ("refusal", &self.refusal)] {
            if !text.is_empty() {
                message[name] = json!(text);
            }
        }
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
