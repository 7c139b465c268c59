//! The dialects of model servers: addresses, keys, and the answers that their clients understand.

mod answers;
mod target;

use rollout_protocol::record::ModelEndpoint;
use rollout_protocol::spec::gateway::ModelDialect;

pub(crate) use self::answers::{error_body, model_list};
pub(crate) use self::target::{CallTarget, Target};

/// All dialects.
const ALL: [ModelDialect; 3] =
    [ModelDialect::Openai, ModelDialect::Anthropic, ModelDialect::Gemini];

/// The dialect whose prefix a path has, and the rest of the path.
pub(crate) fn split(path: &str) -> Option<(ModelDialect, &str)> {
    let path = path.strip_prefix('/')?;
    ALL.into_iter().find_map(|dialect| {
        let rest = path.strip_prefix(dialect.as_str())?;
        (rest.is_empty() || rest.starts_with('/')).then_some((dialect, rest))
    })
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
        ModelDialect::Gemini => {
            vec![("GOOGLE_GEMINI_BASE_URL", base), ("GEMINI_API_KEY", key.to_owned())]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_is_split_at_whole_name_of_dialect() {
        assert_eq!(split("/gemini/v1beta"), Some((ModelDialect::Gemini, "/v1beta")));
        assert_eq!(split("/openai"), Some((ModelDialect::Openai, "")));
        for other in ["/openai2/v1", "//openai", "openai/v1", "/", "", "/v1/models"] {
            assert_eq!(split(other), None, "{other}");
        }
    }

    #[test]
    fn client_variables_follow_each_dialects_convention() {
        let openai = client_variables(ModelDialect::Openai, "http://h:1", "k");
        assert_eq!(openai[0], ("OPENAI_BASE_URL", "http://h:1/openai/v1".to_owned()));
        let anthropic = client_variables(ModelDialect::Anthropic, "http://h:1", "k");
        assert_eq!(anthropic[0], ("ANTHROPIC_BASE_URL", "http://h:1/anthropic".to_owned()));
        assert_eq!(anthropic[1], ("ANTHROPIC_API_KEY", "k".to_owned()));
        let gemini = client_variables(ModelDialect::Gemini, "http://h:1", "k");
        assert_eq!(gemini[0], ("GOOGLE_GEMINI_BASE_URL", "http://h:1/gemini".to_owned()));
        assert_eq!(gemini[1], ("GEMINI_API_KEY", "k".to_owned()));
    }
}
