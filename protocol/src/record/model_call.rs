//! Records of the calls that an agent made to model servers through the gateway.
//!
//! `gateway/calls.jsonl` of a trial has two lines for each call: [`CallBegun`], written before the
//! call is sent, and [`CallEnded`], written before the agent gets the last byte of the reply. A
//! call without the second line ended with its worker.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::model_tokens::CallTokens;
use crate::Timestamp;
use crate::digest::Digest;
use crate::spec::budget::ModelUse;
use crate::spec::gateway::TokenPrices;

/// A line of `gateway/calls.jsonl`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ModelCallLine {
    /// A call begins.
    Begun(Box<CallBegun>),
    /// A call ended.
    Ended(Box<CallEnded>),
}

/// An endpoint of a model server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModelEndpoint {
    /// OpenAI chat completions.
    ChatCompletions,
    /// OpenAI completions.
    Completions,
    /// OpenAI responses.
    Responses,
    /// Anthropic messages.
    Messages,
    /// Gemini content.
    GenerateContent,
    /// Token counts of Anthropic and Gemini, which sample nothing.
    CountTokens,
}

/// The begin of a call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CallBegun {
    /// Number of the call in its try, from 1.
    pub call: u64,
    /// When the gateway had the whole request.
    pub began_at: Timestamp,
    /// Name of the model server that gets the call first.
    pub upstream: String,
    /// Endpoint.
    pub endpoint: ModelEndpoint,
    /// Path and query below the address of the server.
    pub path: String,
    /// Headers of the agent that tell its calls apart, by their names in lower case.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// The request as it is sent to the server.
    pub request: CallBody,
    /// Members that the gateway added to the request.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub added: Vec<String>,
    /// An earlier call with the same request that has no complete reply: this is its repetition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeats: Option<u64>,
}

/// A body, with secrets masked.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallBody {
    /// Its size before masking, bytes.
    pub bytes: u64,
    /// The digest of its bytes before masking.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<Digest>,
    /// Its text, if it is UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Its bytes in base64, if it is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base64: Option<String>,
}

/// The end of a call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CallEnded {
    /// Number of the call in its try.
    pub call: u64,
    /// When it ended.
    pub ended_at: Timestamp,
    /// How it ended.
    pub end: CallEnd,
    /// Name of the model server that had the call at its end, if it is another one than at its begin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upstream: Option<String>,
    /// Status of the reply that the agent got.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// Why there is no complete reply of the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// How often it was sent, with the answers that did not count.
    pub attempts: Vec<CallAttempt>,
    /// Times.
    pub latency: CallLatency,
    /// Policy versions of the model server, if the run has any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<CallPolicy>,
    /// Model, as the server names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Reasons why the model stopped, by choice.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub finish_reasons: Vec<String>,
    /// Token counts, if the server gave them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<TokenUsage>,
    /// Cost of the tokens, in the user's currency, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<f64>,
    /// Token ids and log probabilities, if the server gave them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<CallTokens>,
    /// The reply as it came from the server.
    pub reply: CallBody,
}

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallEnd {
    /// The reply is complete, whatever its status.
    Complete,
    /// The reply of the server broke off. The agent saw its connection break off, too.
    Cut,
    /// The agent closed the connection before the end of the reply.
    AgentGone,
    /// The server gave no answer; the status is the gateway's.
    Unanswered,
}

/// One sending of a call.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CallAttempt {
    /// Name of the model server, if it is another one than at the call's begin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upstream: Option<String>,
    /// Status of the answer, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// Why there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Seconds to wait that the server asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_sec: Option<f64>,
}

/// Policy versions that the coordinator had announced for a call. They differ if the policy changed
/// while the call was in flight.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallPolicy {
    /// When the call was sent for the last time; absent if it never was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dispatched: Option<u64>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<u64>,
}

impl CallPolicy {
    /// Whether the policy changed while the call was in flight.
    pub fn is_crossed(&self) -> bool {
        self.dispatched.is_some() && self.dispatched != self.ended
    }
}

/// Times of a call, seconds since the gateway had the whole request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct CallLatency {
    /// Until the request was sent for the last time.
    pub queued_sec: f64,
    /// Until the first byte of the reply's body.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_byte_sec: Option<f64>,
    /// Until the end.
    pub total_sec: f64,
}

/// Token counts of a call or of several.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenUsage {
    /// Input tokens, cached ones included.
    pub input: u64,
    /// Input tokens that the server read from its cache.
    #[serde(default)]
    pub cached_input: u64,
    /// Input tokens that the server wrote to its cache, where it says so.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub written_input: u64,
    /// Output tokens, reasoning included.
    pub output: u64,
    /// Output tokens of reasoning.
    #[serde(default)]
    pub reasoning: u64,
}

impl TokenUsage {
    /// Adds the counts of another call.
    pub const fn add(&mut self, other: Self) {
        self.input = self.input.saturating_add(other.input);
        self.cached_input = self.cached_input.saturating_add(other.cached_input);
        self.written_input = self.written_input.saturating_add(other.written_input);
        self.output = self.output.saturating_add(other.output);
        self.reasoning = self.reasoning.saturating_add(other.reasoning);
    }

    /// All tokens.
    pub const fn total(&self) -> u64 {
        self.input.saturating_add(self.output)
    }

    /// The cost of these tokens.
    pub fn cost(&self, prices: &TokenPrices) -> f64 {
        let cached = self.cached_input.saturating_add(self.written_input);
        let cost = self.input.saturating_sub(cached) as f64 * prices.input
            + self.cached_input as f64 * prices.cached_input
            + self.written_input as f64 * prices.written_input
            + self.output as f64 * prices.output;
        cost / 1e6
    }
}

/// The model calls of an agent by its own session.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionCalls {
    /// Calls.
    pub calls: u64,
    /// Input tokens, cached ones included.
    pub input: u64,
    /// Output tokens, reasoning included.
    pub output: u64,
}

impl SessionCalls {
    /// Adds other calls.
    pub const fn add(&mut self, other: Self) {
        self.calls = self.calls.saturating_add(other.calls);
        self.input = self.input.saturating_add(other.input);
        self.output = self.output.saturating_add(other.output);
    }
}

/// The calls of a trial in numbers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct GatewaySummary {
    /// Calls.
    pub calls: u64,
    /// Calls with a complete reply whose status is an error, and calls without an answer.
    pub failed_calls: u64,
    /// Calls whose reply is not complete.
    pub cut_calls: u64,
    /// Token counts of all calls whose server gave them.
    pub usage: TokenUsage,
    /// Cost of the tokens whose price is known; part of the trial's cost.
    pub cost: f64,
    /// Calls whose cost is not known: their model has no price, or their reply has no token counts.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unpriced_calls: u64,
    /// Calls to servers with `capture: tokens` whose reply has no token ids: nothing can be trained on
    /// them.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub calls_without_ids: u64,
    /// Time in which calls were open, seconds; that of concurrent calls is added up.
    #[serde(default)]
    pub open_sec: f64,
    /// Trajectories.
    pub trajectories: u64,
    /// Calls during which the policy version changed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub crossed_calls: u64,
    /// The calls by the agent's own session, if it is known how to read it. The agent writes it: it
    /// settles nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionCalls>,
}

impl GatewaySummary {
    /// Use of the calls, as far as it is known.
    pub fn model_use(&self) -> ModelUse {
        ModelUse {
            calls: self.calls,
            tokens: self.usage.total(),
            cost: self.cost,
            unpriced_calls: self.unpriced_calls,
            calls_without_ids: self.calls_without_ids,
            sec: self.open_sec,
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_cost_charges_cached_input_at_its_own_price() {
        let usage = TokenUsage {
            input: 1_000_000,
            cached_input: 400_000,
            written_input: 100_000,
            output: 10,
            reasoning: 5,
        };
        let prices =
            TokenPrices { input: 2.0, cached_input: 0.5, written_input: 3.0, output: 100_000.0 };
        assert!((usage.cost(&prices) - (1.0 + 0.2 + 0.3 + 1.0)).abs() < 1e-9);
        assert!(TokenUsage::default().cost(&prices).abs() < 1e-12);
    }

    #[test]
    fn call_line_is_tagged_by_type() {
        let ended = CallEnded {
            call: 1,
            ended_at: Timestamp::UNIX_EPOCH,
            end: CallEnd::Cut,
            upstream: None,
            status: Some(200),
            error: None,
            attempts: Vec::new(),
            latency: CallLatency::default(),
            policy: None,
            model: None,
            finish_reasons: Vec::new(),
            usage: None,
            cost: None,
            tokens: None,
            reply: CallBody::default(),
        };
        let line = serde_json::to_string(&ModelCallLine::Ended(Box::new(ended))).expect("JSON");
        assert!(line.starts_with(r#"{"type":"ended","call":1,"#), "{line}");
        assert!(line.contains(r#""end":"cut""#), "{line}");
    }
}
