//! Members that the gateway adds to requests, and takes out of replies.

use rollout_protocol::record::ModelEndpoint;
use rollout_protocol::spec::gateway::CaptureMode;
use serde_json::Value;

use super::raw_object::RawObject;

/// Members that were added to a request, and so must be taken out of its reply.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Added {
    /// `stream_options.include_usage`.
    usage: bool,
    /// `logprobs`.
    logprobs: bool,
    /// `return_token_ids`.
    ids: bool,
}

impl Added {
    /// Whether nothing was added.
    pub(crate) fn is_empty(self) -> bool {
        self == Self::default()
    }

    /// The names of the added members.
    pub(crate) fn names(self) -> Vec<String> {
        let names = [
            (self.usage, "stream_options.include_usage"),
            (self.logprobs, "logprobs"),
            (self.ids, "return_token_ids"),
        ];
        names.into_iter().filter(|(added, _)| *added).map(|(_, name)| name.to_owned()).collect()
    }
}

/// The request to send; `None` if it is the agent's own, byte for byte.
pub(crate) fn extend_request(
    endpoint: ModelEndpoint,
    mode: CaptureMode,
    body: &[u8],
) -> Option<(Vec<u8>, Added)> {
    let openai = matches!(endpoint, ModelEndpoint::ChatCompletions | ModelEndpoint::Completions);
    if mode == CaptureMode::AsIs || !openai {
        return None;
    }
    let mut request = RawObject::parse(std::str::from_utf8(body).ok()?)?;
    let mut added = Added::default();
    if is_true(request.get("stream")) {
        let present = request.get("stream_options").unwrap_or("null");
        let mut options = RawObject::parse(present).unwrap_or_default();
        if !is_true(options.get("include_usage")) {
            options.set("include_usage", "true".to_owned())?;
            request.set("stream_options", options.text())?;
            added.usage = true;
        }
    }
    if mode == CaptureMode::Tokens {
        let logprobs = request.get("logprobs").unwrap_or("null");
        if matches!(logprobs, "null" | "false") {
            // Completions count the alternatives: none.
            let wanted = if endpoint == ModelEndpoint::Completions { "0" } else { "true" };
            request.set("logprobs", wanted.to_owned())?;
            added.logprobs = true;
        }
        if !is_true(request.get("return_token_ids")) {
            request.set("return_token_ids", "true".to_owned())?;
            added.ids = true;
        }
    }
    (!added.is_empty()).then(|| (request.text().into_bytes(), added))
}

fn is_true(text: Option<&str>) -> bool {
    text == Some("true")
}

/// A reply without what was asked for in addition: a whole one, or the data of an event. `None` if
/// an event has nothing else in it.
pub(crate) fn reduce_reply(added: Added, is_event: bool, text: &str) -> Option<String> {
    let Some(mut reply) = RawObject::parse(text) else { return Some(text.to_owned()) };
    if added.usage && is_event {
        let no_choices = reply.get("choices").is_some_and(is_empty_list);
        let usage = reply.get("usage").is_some_and(|usage| usage != "null");
        if no_choices && usage {
            return None;
        }
        reply.remove("usage");
    }
    if added.ids {
        reply.remove("prompt_token_ids");
    }
    if added.ids || added.logprobs {
        let choices = reply.get("choices").and_then(|text| reduce_choices(added, text));
        if let Some(choices) = choices {
            reply.set("choices", choices)?;
        }
    }
    Some(reply.text())
}

fn is_empty_list(text: &str) -> bool {
    serde_json::from_str::<Vec<Value>>(text).is_ok_and(|list| list.is_empty())
}

fn reduce_choices(added: Added, text: &str) -> Option<String> {
    let mut choices: Vec<RawObject> = serde_json::from_str(text).ok()?;
    for choice in &mut choices {
        if added.ids {
            for name in ["token_ids", "prompt_token_ids", "response_token_ids"] {
                choice.remove(name);
            }
        }
        if added.logprobs && choice.get("logprobs").is_some() {
            choice.set("logprobs", "null".to_owned())?;
        }
    }
    serde_json::to_string(&choices).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHAT: ModelEndpoint = ModelEndpoint::ChatCompletions;

    fn extended(endpoint: ModelEndpoint, mode: CaptureMode, body: &str) -> Option<(String, Added)> {
        let (body, added) = extend_request(endpoint, mode, body.as_bytes())?;
        Some((String::from_utf8(body).expect("UTF-8"), added))
    }

    #[test]
    fn request_is_untouched_unless_something_is_missing() {
        let body = r#"{"model": "m", "stream": true, "stream_options": {"include_usage": true}}"#;
        assert_eq!(extended(CHAT, CaptureMode::Usage, body), None);
        assert_eq!(extended(CHAT, CaptureMode::AsIs, r#"{"stream":true}"#), None);
        assert_eq!(extended(CHAT, CaptureMode::Usage, r#"{"stream":false}"#), None);
        assert_eq!(extended(ModelEndpoint::Messages, CaptureMode::Tokens, "{}"), None);
        assert_eq!(extended(CHAT, CaptureMode::Tokens, "not JSON"), None);
    }

    #[test]
    fn request_gains_only_missing_members_at_its_end() {
        let body = r#"{"z":1.0,"stream":true,"stream_options":{"x":1}}"#;
        let (text, added) = extended(CHAT, CaptureMode::Usage, body).expect("extended");
        assert_eq!(
            text,
            r#"{"z":1.0,"stream":true,"stream_options":{"x":1,"include_usage":true}}"#
        );
        assert_eq!(added.names(), ["stream_options.include_usage"]);
        let (text, added) =
            extended(CHAT, CaptureMode::Tokens, r#"{"logprobs":true}"#).expect("ids");
        assert_eq!(text, r#"{"logprobs":true,"return_token_ids":true}"#);
        assert_eq!(added.names(), ["return_token_ids"]);
        let completions = extended(ModelEndpoint::Completions, CaptureMode::Tokens, "{}");
        assert_eq!(completions.expect("both").0, r#"{"logprobs":0,"return_token_ids":true}"#);
    }

    #[test]
    fn reply_loses_exactly_what_was_added() {
        let (_, added) = extended(CHAT, CaptureMode::Tokens, r#"{"stream":true}"#).expect("all");
        let usage = r#"{"choices":[],"usage":{"prompt_tokens":1}}"#;
        assert_eq!(reduce_reply(added, true, usage), None);
        let part = r#"{"id":"a","prompt_token_ids":[1],"choices":[{"index":0,"token_ids":[2],"delta":{"content":"x"},"logprobs":{"content":[]}}],"usage":null}"#;
        let left = r#"{"id":"a","choices":[{"index":0,"delta":{"content":"x"},"logprobs":null}]}"#;
        assert_eq!(reduce_reply(added, true, part).as_deref(), Some(left));
        assert_eq!(reduce_reply(added, true, "[DONE]").as_deref(), Some("[DONE]"));
        let only_ids = Added { ids: true, ..Added::default() };
        let whole = r#"{"choices":[{"token_ids":[2],"logprobs":{"content":[]}}],"usage":{}}"#;
        let left = r#"{"choices":[{"logprobs":{"content":[]}}],"usage":{}}"#;
        assert_eq!(reduce_reply(only_ids, false, whole).as_deref(), Some(left));
    }
}
