//! Replies of Gemini. A stream has no last event of its own: its last event says for the candidates
//! why they ended.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::usage::UsageCounts;
use super::{ParsedReply, set_text, text};

/// A reason that says nothing: the candidate goes on.
const NO_REASON: &str = "FINISH_REASON_UNSPECIFIED";

/// A reply so far.
#[derive(Debug, Default)]
pub(super) struct GeminiReply {
    model: Option<String>,
    usage: UsageCounts,
    candidates: BTreeMap<u64, Candidate>,
    /// Why the prompt was refused.
    block_reason: Option<String>,
}

#[derive(Debug, Default)]
struct Candidate {
    parts: Vec<Value>,
    finish_reason: Option<String>,
}

impl GeminiReply {
    /// Takes an event; returns whether all candidates have ended.
    pub(super) fn event(&mut self, event: &Value) -> bool {
        self.take(event);
        self.is_finished()
    }

    fn take(&mut self, reply: &Value) {
        set_text(&mut self.model, &reply["modelVersion"]);
        self.usage.take_gemini(&reply["usageMetadata"]);
        set_text(&mut self.block_reason, &reply["promptFeedback"]["blockReason"]);
        for (position, part) in reply["candidates"].as_array().into_iter().flatten().enumerate() {
            let index = part["index"].as_u64().unwrap_or(position as u64);
            let candidate = self.candidates.entry(index).or_default();
            let parts = part["content"]["parts"].as_array().into_iter().flatten();
            candidate.parts.extend(parts.cloned());
            let reason = text(&part["finishReason"]).filter(|reason| reason != NO_REASON);
            candidate.finish_reason = reason.or(candidate.finish_reason.take());
        }
    }

    /// Takes a whole reply, or a stream in the form of a list.
    pub(super) fn whole(&mut self, reply: &Value) {
        match reply.as_array() {
            Some(parts) => parts.iter().for_each(|part| self.take(part)),
            None => self.take(reply),
        }
    }

    /// Whether all candidates that came have ended.
    fn is_finished(&self) -> bool {
        let mut candidates = self.candidates.values();
        let ended = candidates.all(|candidate| candidate.finish_reason.is_some());
        ended && (self.block_reason.is_some() || !self.candidates.is_empty())
    }

    /// Ends the reply.
    pub(super) fn finish(self) -> ParsedReply {
        let finished = self.is_finished();
        let reasons = self.candidates.values().filter_map(|one| one.finish_reason.clone());
        let finish_reasons = reasons.chain(self.block_reason).collect();
        let is_only = self.candidates.len() == 1;
        let only = self.candidates.into_values().next().filter(|_| is_only);
        let message = only.map(|only| json!({"role": "model", "parts": only.parts}));
        ParsedReply {
            model: self.model,
            finished,
            finish_reasons,
            usage: self.usage.finish(),
            tokens: None,
            messages: message.into_iter().collect(),
        }
    }
}
