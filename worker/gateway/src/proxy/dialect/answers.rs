//! Answers of the gateway itself, in the forms of the dialects.

use rollout_protocol::spec::gateway::ModelDialect;
use serde_json::{Value, json};

/// Type of the detail with which Gemini says when to call again.
const RETRY_INFO: &str = "type.googleapis.com/google.rpc.RetryInfo";

/// The body of an error, and after how many seconds to try again.
pub(crate) fn error_body(
    dialect: ModelDialect,
    status: u16,
    message: &str,
    retry_after: Option<u64>,
) -> String {
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
        ModelDialect::Gemini => {
            let kind = match status {
                401 => "UNAUTHENTICATED",
                404 => "NOT_FOUND",
                429 => "RESOURCE_EXHAUSTED",
                400..500 => "INVALID_ARGUMENT",
                502 | 503 => "UNAVAILABLE",
                504 => "DEADLINE_EXCEEDED",
                _ => "INTERNAL",
            };
            let mut error = json!({"code": status, "message": message, "status": kind});
            if let Some(seconds) = retry_after {
                // Its clients do not read `Retry-After`.
                error["details"] =
                    json!([{"@type": RETRY_INFO, "retryDelay": format!("{seconds}s")}]);
            }
            json!({"error": error})
        }
    }
    .to_string()
}

/// The list of these models.
pub(crate) fn model_list(dialect: ModelDialect, names: &[&str]) -> String {
    let list = |model: &dyn Fn(&str) -> Value| -> Vec<Value> {
        names.iter().map(|name| model(name)).collect()
    };
    match dialect {
        ModelDialect::Openai => {
            let model = |name: &str| {
                json!({"id": name, "object": "model", "created": 0, "owned_by": "gateway"})
            };
            json!({"object": "list", "data": list(&model)})
        }
        ModelDialect::Anthropic => {
            let model = |name: &str| {
                json!({"type": "model", "id": name, "display_name": name,
                    "created_at": "1970-01-01T00:00:00Z"})
            };
            json!({"data": list(&model), "has_more": false,
                "first_id": names.first(), "last_id": names.last()})
        }
        ModelDialect::Gemini => {
            let model = |name: &str| {
                json!({"name": format!("models/{name}"), "displayName": name,
                    "supportedGenerationMethods": ["generateContent", "countTokens"]})
            };
            json!({"models": list(&model)})
        }
    }
    .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(dialect: ModelDialect, status: u16, retry_after: Option<u64>) -> Value {
        serde_json::from_str(&error_body(dialect, status, "why", retry_after)).expect("JSON")
    }

    #[test]
    fn error_has_form_of_its_dialect() {
        let openai = error(ModelDialect::Openai, 429, Some(5));
        assert_eq!(openai["error"]["type"], "rate_limit_error");
        let anthropic = error(ModelDialect::Anthropic, 503, Some(5));
        assert_eq!(anthropic["error"]["type"], "overloaded_error");
        let gemini = error(ModelDialect::Gemini, 429, Some(5));
        assert_eq!(
            gemini,
            json!({"error": {"code": 429, "message": "why", "status": "RESOURCE_EXHAUSTED",
                "details": [{"@type": RETRY_INFO, "retryDelay": "5s"}]}})
        );
        assert!(error(ModelDialect::Gemini, 401, None)["error"].get("details").is_none());
    }

    #[test]
    fn model_list_has_form_of_its_dialect() {
        let list = |dialect, names: &[&str]| -> Value {
            serde_json::from_str(&model_list(dialect, names)).expect("JSON")
        };
        assert_eq!(list(ModelDialect::Openai, &["m"])["data"][0]["id"], "m");
        assert_eq!(list(ModelDialect::Openai, &[]), json!({"object": "list", "data": []}));
        assert_eq!(list(ModelDialect::Anthropic, &["m", "n"])["last_id"], "n");
        assert_eq!(list(ModelDialect::Anthropic, &[])["first_id"], Value::Null);
        assert_eq!(list(ModelDialect::Gemini, &["m"])["models"][0]["name"], "models/m");
    }
}
