//! Replies of model servers, whole or as streams of events: what their records say about them.

mod anthropic;
mod gemini;
mod last_mark;
mod openai;
mod responses;
mod tokens;
mod usage;

use rollout_protocol::record::{CallTokens, ModelEndpoint, TokenUsage};
use serde_json::Value;

use self::anthropic::AnthropicReply;
use self::gemini::GeminiReply;
pub(crate) use self::last_mark::LastMark;
use self::openai::OpenaiReply;
use self::responses::ResponsesReply;

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
    /// The model's messages in the form in which a client sends them back; none if there are several
    /// choices.
    pub(crate) messages: Vec<Value>,
    /// Whether the reply says that it is at its end.
    pub(crate) finished: bool,
}

/// Reads a reply.
#[derive(Debug)]
pub(crate) struct ReplyParser(EndpointReply);

#[derive(Debug)]
enum EndpointReply {
    /// Chat completions and completions.
    Openai(OpenaiReply),
    /// Responses.
    Responses(ResponsesReply),
    /// Messages.
    Anthropic(AnthropicReply),
    /// Generated content.
    Gemini(GeminiReply),
    /// A reply that is not read; whether it is whole.
    Unread(bool),
}

impl ReplyParser {
    /// A reply of an endpoint.
    pub(crate) fn new(endpoint: ModelEndpoint) -> Self {
        Self(match endpoint {
            ModelEndpoint::ChatCompletions | ModelEndpoint::Completions => {
                EndpointReply::Openai(OpenaiReply::default())
            }
            ModelEndpoint::Responses => EndpointReply::Responses(ResponsesReply::default()),
            ModelEndpoint::Messages => EndpointReply::Anthropic(AnthropicReply::default()),
            ModelEndpoint::GenerateContent => EndpointReply::Gemini(GeminiReply::default()),
            ModelEndpoint::CountTokens => EndpointReply::Unread(false),
        })
    }

    /// Takes the data of an event of a stream; returns whether it is the last one.
    pub(crate) fn event(&mut self, data: &str) -> bool {
        if let EndpointReply::Openai(reply) = &mut self.0 {
            return reply.event(data);
        }
        let Ok(event) = serde_json::from_str::<Value>(data) else { return false };
        match &mut self.0 {
            EndpointReply::Openai(_) | EndpointReply::Unread(_) => false,
            EndpointReply::Responses(reply) => reply.event(&event),
            EndpointReply::Anthropic(reply) => reply.event(&event),
            EndpointReply::Gemini(reply) => reply.event(&event),
        }
    }

    /// Takes a whole reply.
    pub(crate) fn whole(&mut self, body: &[u8]) {
        let Ok(body) = serde_json::from_slice::<Value>(body) else { return };
        match &mut self.0 {
            EndpointReply::Openai(reply) => reply.whole(&body),
            EndpointReply::Responses(reply) => reply.whole(&body),
            EndpointReply::Anthropic(reply) => reply.whole(&body),
            EndpointReply::Gemini(reply) => reply.whole(&body),
            EndpointReply::Unread(is_whole) => *is_whole = true,
        }
    }

    /// Ends the reply.
    pub(crate) fn finish(self) -> ParsedReply {
        match self.0 {
            EndpointReply::Openai(reply) => reply.finish(),
            EndpointReply::Responses(reply) => reply.finish(),
            EndpointReply::Anthropic(reply) => reply.finish(),
            EndpointReply::Gemini(reply) => reply.finish(),
            EndpointReply::Unread(finished) => ParsedReply { finished, ..ParsedReply::default() },
        }
    }
}

/// Sets a text that is not known yet.
fn set_text(present: &mut Option<String>, value: &Value) {
    if present.is_none() {
        *present = text(value);
    }
}

fn text(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

#[cfg(test)]
mod tests;
