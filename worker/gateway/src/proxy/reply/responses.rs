//! Replies of OpenAI responses.

use std::collections::BTreeMap;

use serde_json::Value;

use super::usage::UsageCounts;
use super::{ParsedReply, set_text, text};

/// A response so far.
#[derive(Debug, Default)]
pub(super) struct ResponsesReply {
    model: Option<String>,
    usage: UsageCounts,
    /// Items of the output that are complete.
    items: BTreeMap<u64, Value>,
    finish_reason: Option<String>,
    failed: bool,
    finished: bool,
}

impl ResponsesReply {
    /// Takes an event; returns whether it is the last one.
    pub(super) fn event(&mut self, event: &Value) -> bool {
        match event["type"].as_str() {
            Some("response.output_item.done") => {
                let index = event["output_index"].as_u64().unwrap_or(self.items.len() as u64);
                self.items.insert(index, event["item"].clone());
                false
            }
            Some("response.completed" | "response.incomplete" | "response.failed") => {
                self.whole(&event["response"]);
                true
            }
            // Other events repeat a part of these, or have the response as it was.
            _ => {
                set_text(&mut self.model, &event["response"]["model"]);
                false
            }
        }
    }

    /// Takes a whole response.
    pub(super) fn whole(&mut self, response: &Value) {
        self.finished = true;
        set_text(&mut self.model, &response["model"]);
        self.usage.take_responses(&response["usage"]);
        let status = response["status"].as_str();
        self.failed = status == Some("failed");
        self.finish_reason = match status {
            Some("incomplete") => {
                let why = text(&response["incomplete_details"]["reason"]);
                why.or_else(|| text(&response["status"]))
            }
            // It is only asked for: its client fetches it later.
            Some("queued" | "in_progress") => None,
            _ => text(&response["status"]),
        };
        // Some servers leave the output out at the end of a stream.
        let items = response["output"].as_array().filter(|items| !items.is_empty());
        if let Some(items) = items {
            self.items = (0..).zip(items.iter().cloned()).collect();
        }
    }

    /// Ends the response.
    pub(super) fn finish(self) -> ParsedReply {
        // No client sends the output of a failed response back.
        let messages = if self.failed { Vec::new() } else { self.items.into_values().collect() };
        ParsedReply {
            model: self.model,
            finished: self.finished,
            finish_reasons: self.finish_reason.into_iter().collect(),
            usage: self.usage.finish(),
            tokens: None,
            messages,
        }
    }
}
