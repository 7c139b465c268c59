//! Paths of agents' requests: calls that are forwarded, and questions that the gateway answers.

use rollout_protocol::record::ModelEndpoint;
use rollout_protocol::spec::gateway::ModelDialect;

/// Longest name of a model in a path: far more than any has.
const MODEL_BYTES: usize = 200;

/// The purpose of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    /// A call, which is forwarded.
    Call(CallTarget),
    /// The list of models.
    Models,
    /// Whether the server is there.
    Liveness,
}

/// A call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CallTarget {
    /// Its endpoint.
    pub(crate) endpoint: ModelEndpoint,
    /// Its path below the base address of a server.
    pub(crate) path: String,
    /// The model, if the path names it.
    pub(crate) model: Option<String>,
}

impl Target {
    /// The target at a path below the prefix of a dialect; `None` for a path that the gateway does
    /// not know.
    pub(crate) fn find(dialect: ModelDialect, path: &str) -> Option<Self> {
        let call = |endpoint, path: &str| {
            Some(Self::Call(CallTarget { endpoint, path: path.to_owned(), model: None }))
        };
        match (dialect, path) {
            (_, "/api/hello") => Some(Self::Liveness),
            (ModelDialect::Openai | ModelDialect::Anthropic, "/v1/models") => Some(Self::Models),
            // The base address of this dialect ends with the version.
            (ModelDialect::Openai, "/v1/chat/completions") => {
                call(ModelEndpoint::ChatCompletions, "/chat/completions")
            }
            (ModelDialect::Openai, "/v1/completions") => {
                call(ModelEndpoint::Completions, "/completions")
            }
            (ModelDialect::Openai, "/v1/responses") => call(ModelEndpoint::Responses, "/responses"),
            (ModelDialect::Anthropic, "/v1/messages") => call(ModelEndpoint::Messages, path),
            (ModelDialect::Anthropic, "/v1/messages/count_tokens") => {
                call(ModelEndpoint::CountTokens, path)
            }
            (ModelDialect::Gemini, _) => Self::find_gemini(path),
            _ => None,
        }
    }

    fn find_gemini(path: &str) -> Option<Self> {
        let versions = ["/v1beta/models", "/v1/models"];
        let below = versions.iter().find_map(|version| path.strip_prefix(version))?;
        if below.is_empty() {
            return Some(Self::Models);
        }
        let (model, method) = below.strip_prefix('/')?.rsplit_once(':')?;
        let endpoint = match method {
            "generateContent" | "streamGenerateContent" => ModelEndpoint::GenerateContent,
            "countTokens" => ModelEndpoint::CountTokens,
            _ => return None,
        };
        is_model(model).then(|| {
            let (path, model) = (path.to_owned(), Some(model.to_owned()));
            Self::Call(CallTarget { endpoint, path, model })
        })
    }
}

/// Whether a part of a path is the name of a model: it cannot lead to another path.
fn is_model(text: &str) -> bool {
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b'@');
    let first = text.bytes().next();
    first.is_some_and(|b| b.is_ascii_alphanumeric())
        && text.len() <= MODEL_BYTES
        && text.bytes().all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(dialect: ModelDialect, path: &str) -> Option<(ModelEndpoint, String)> {
        match Target::find(dialect, path) {
            Some(Target::Call(call)) => Some((call.endpoint, call.path)),
            _ => None,
        }
    }

    #[test]
    fn target_of_unknown_path_is_none() {
        let openai = |path| Target::find(ModelDialect::Openai, path);
        for path in ["/v1/embeddings", "/v1/../v1/completions", "/v1/completions/", "", "//v1"] {
            assert_eq!(openai(path), None, "{path}");
        }
        assert_eq!(Target::find(ModelDialect::Anthropic, "/v1/completions"), None);
        assert_eq!(Target::find(ModelDialect::Gemini, "/v1/chat/completions"), None);
    }

    #[test]
    fn call_path_is_below_base_address_of_its_dialect() {
        let found = |endpoint, path: &str| Some((endpoint, path.to_owned()));
        let openai = |path| endpoint(ModelDialect::Openai, path);
        let chat = found(ModelEndpoint::ChatCompletions, "/chat/completions");
        assert_eq!(openai("/v1/chat/completions"), chat);
        assert_eq!(openai("/v1/responses"), found(ModelEndpoint::Responses, "/responses"));
        let messages = endpoint(ModelDialect::Anthropic, "/v1/messages");
        assert_eq!(messages, found(ModelEndpoint::Messages, "/v1/messages"));
    }

    #[test]
    fn gemini_model_is_taken_from_plain_paths_only() {
        for (path, expected) in [
            ("/v1beta/models/gemini-2.5-pro:generateContent", ModelEndpoint::GenerateContent),
            ("/v1/models/gemini-2.5-pro:streamGenerateContent", ModelEndpoint::GenerateContent),
            ("/v1beta/models/gemini-2.5-pro:countTokens", ModelEndpoint::CountTokens),
        ] {
            let Some(Target::Call(call)) = Target::find(ModelDialect::Gemini, path) else {
                panic!("{path} is a call");
            };
            assert_eq!((call.endpoint, call.path.as_str()), (expected, path));
            assert_eq!(call.model.as_deref(), Some("gemini-2.5-pro"));
        }
        let long = "m".repeat(MODEL_BYTES + 1);
        for model in ["..", ".m", "", "a/b", "a%2fb", "a%2e", "a b", "a?b", "é", "a:b", &long] {
            let path = format!("/v1beta/models/{model}:generateContent");
            assert_eq!(Target::find(ModelDialect::Gemini, &path), None, "{model}");
        }
        for path in
            ["/v1beta/models/m:embedContent", "/v1beta/models/m", "/v2/models/m:countTokens"]
        {
            assert_eq!(Target::find(ModelDialect::Gemini, path), None, "{path}");
        }
    }

    #[test]
    fn probes_are_known_in_every_dialect() {
        for (dialect, models) in [
            (ModelDialect::Openai, "/v1/models"),
            (ModelDialect::Anthropic, "/v1/models"),
            (ModelDialect::Gemini, "/v1beta/models"),
        ] {
            assert_eq!(Target::find(dialect, models), Some(Target::Models));
            assert_eq!(Target::find(dialect, "/api/hello"), Some(Target::Liveness));
        }
    }
}
