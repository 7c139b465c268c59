//! The dialects of model servers: addresses, keys, and the errors that their clients understand.

use rollout_protocol::record::ModelEndpoint;
use rollout_protocol::spec::gateway::ModelDialect;
use serde_json::json;

/// The endpoint at a path below the prefix of a dialect; `None` for all that the gateway does not
/// forward.
pub(crate) fn endpoint(dialect: ModelDialect, path: &str) -> Option<ModelEndpoint> {
    match (dialect, path) {
        (ModelDialect::Openai, "/v1/chat/completions") => Some(ModelEndpoint::ChatCompletions),
        (ModelDialect::Openai, "/v1/completions") => Some(ModelEndpoint::Completions),
        (ModelDialect::Anthropic, "/v1/messages") => Some(ModelEndpoint::Messages),
        (ModelDialect::Anthropic, "/v1/messages/count_tokens") => Some(ModelEndpoint::CountTokens),
        _ => None,
    }
}

/// Path of an endpoint below the base address of a server.
pub(crate) const fn upstream_path(endpoint: ModelEndpoint) -> &'static str {
    match endpoint {
        // The base address of this dialect ends with the version.
        ModelEndpoint::ChatCompletions => "/chat/completions",
        ModelEndpoint::Completions => "/completions",
        ModelEndpoint::Messages => "/v1/messages",
        ModelEndpoint::CountTokens => "/v1/messages/count_tokens",
    }
}

/// Whether an endpoint samples from a model.
pub(crate) const fn samples(endpoint: ModelEndpoint) -> bool {
    !matches!(endpoint, ModelEndpoint::CountTokens)
}

/// The variables that clients of a dialect read, for a gateway at `origin` and a key.
pub(crate) fn client_variables(
    dialect: ModelDialect,
    origin: &str,
    key: &str,
) -> Vec<(&'static str, String)> {
    let base = format!("{origin}/{dialect}");
    match dialect {
        ModelDialect::Openai => vec![
            ("OPENAI_BASE_URL", format!("{base}/v1")),
            // Clients built on LiteLLM.
            ("OPENAI_API_BASE", format!("{base}/v1")),
            ("OPENAI_API_KEY", key.to_owned()),
        ],
        ModelDialect::Anthropic => {
            vec![("ANTHROPIC_BASE_URL", base), ("ANTHROPIC_API_KEY", key.to_owned())]
        }
    }
}

/// The body of an error of the gateway itself, in the form of a dialect.
pub(crate) fn error_body(dialect: ModelDialect, status: u16, message: &str) -> String {
    match dialect {
        ModelDialect::Openai => {
            let kind = match status {
                401 => "authentication_error",
                429 => "rate_limit_error",
                400..500 => "invalid_request_error",
                _ => "server_error",
            };
            json!({"error": {"message": message, "type": kind, "param": null, "code": null}})
        }
        ModelDialect::Anthropic => {
            let kind = match status {
                401 => "authentication_error",
                404 => "not_found_error",
                413 => "request_too_large",
                429 => "rate_limit_error",
                400..500 => "invalid_request_error",
                503 => "overloaded_error",
                _ => "api_error",
            };
            json!({"type": "error", "error": {"type": kind, "message": message}})
        }
    }
    .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoint_of_unknown_path_is_none() {
        let openai = |path| endpoint(ModelDialect::Openai, path);
        assert_eq!(openai("/v1/chat/completions"), Some(ModelEndpoint::ChatCompletions));
        for path in ["/v1/responses", "/v1/../v1/completions", "/v1/completions/", "", "//v1"] {
            assert_eq!(openai(path), None, "{path}");
        }
        assert_eq!(endpoint(ModelDialect::Anthropic, "/v1/completions"), None);
    }

    #[test]
    fn client_variables_follow_each_dialects_convention() {
        let openai = client_variables(ModelDialect::Openai, "http://h:1", "k");
        assert_eq!(openai[0], ("OPENAI_BASE_URL", "http://h:1/openai/v1".to_owned()));
        let anthropic = client_variables(ModelDialect::Anthropic, "http://h:1", "k");
        assert_eq!(anthropic[0], ("ANTHROPIC_BASE_URL", "http://h:1/anthropic".to_owned()));
        assert_eq!(anthropic[1], ("ANTHROPIC_API_KEY", "k".to_owned()));
    }
}
