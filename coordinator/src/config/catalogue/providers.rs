//! Providers of models: their addresses and the variables with their keys.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use rollout_protocol::spec::gateway::ModelDialect;
use serde::Deserialize;

static PROVIDERS: LazyLock<BTreeMap<String, ModelProvider>> = LazyLock::new(|| {
    let text = include_str!("../../../agents/providers.toml");
    toml::from_str(text).unwrap_or_else(|error| panic!("providers.toml: {error}"))
});

/// A provider of models.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelProvider {
    /// Host variable with its key.
    pub key_env: String,
    /// Its servers, one for each dialect.
    pub servers: Vec<ModelServer>,
}

/// A server of a provider.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelServer {
    /// Its dialect.
    pub dialect: ModelDialect,
    /// Its address, as an upstream of a gateway has it.
    pub url: String,
}

/// The provider with this name.
pub fn find_provider(name: &str) -> Option<&'static ModelProvider> {
    PROVIDERS.get(name)
}

/// Names of the providers.
pub fn provider_names() -> impl Iterator<Item = &'static str> {
    PROVIDERS.keys().map(String::as_str)
}

impl ModelProvider {
    /// Its server for a client that speaks `dialects`, the preferred one first.
    pub fn server(&self, dialects: &[ModelDialect]) -> Option<&ModelServer> {
        dialects
            .iter()
            .find_map(|dialect| self.servers.iter().find(|server| server.dialect == *dialect))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn providers_have_keys_and_addresses_over_tls() {
        for name in provider_names() {
            let provider = find_provider(name).expect("it is listed");
            assert!(rollout_protocol::template::is_variable_name(&provider.key_env), "{name}");
            assert!(!provider.servers.is_empty(), "{name}");
            for server in &provider.servers {
                assert!(server.url.starts_with("https://"), "{name}: {}", server.url);
                let has_version = server.url.ends_with("/v1") || server.url.contains("/v1beta/");
                let expected = server.dialect == ModelDialect::Openai;
                assert_eq!(has_version, expected, "{name}: {}", server.url);
            }
        }
    }

    #[test]
    fn server_is_that_of_the_preferred_dialect() {
        let openai = find_provider("openai").expect("a provider");
        let both = [ModelDialect::Anthropic, ModelDialect::Openai];
        assert_eq!(openai.server(&both).map(|server| server.dialect), Some(ModelDialect::Openai));
        assert_eq!(openai.server(&[ModelDialect::Anthropic]), None);
    }
}
