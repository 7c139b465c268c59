//! The model gateway of a job: the model servers that its agents may call.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::template::Template;

/// Default of `hold_sec`: below the time limits of all known clients.
pub const DEFAULT_HOLD_SEC: f64 = 60.0;

/// Default of `max_retries`.
pub const DEFAULT_MAX_RETRIES: u32 = 3;

/// The model servers that the agents of a job may call. The first one of a call's dialect that takes
/// its model gets it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct GatewaySpec {
    /// The servers.
    pub upstreams: Vec<UpstreamSpec>,
}

impl GatewaySpec {
    /// Whether a server has a limit that a run shares.
    pub fn is_limited(&self) -> bool {
        let is_limited = |upstream: &UpstreamSpec| {
            upstream.max_concurrent.is_some() || upstream.requests_per_minute.is_some()
        };
        self.upstreams.iter().any(is_limited)
    }

    /// The templates of the servers' keys.
    pub fn keys(&self) -> impl Iterator<Item = &Template> {
        self.upstreams.iter().filter_map(|upstream| upstream.key.as_ref())
    }
}

/// The variables that are declared as secrets: `listed` ones, and those of the keys of model servers.
pub fn declared_secrets(
    listed: &BTreeSet<String>,
    gateway: Option<&GatewaySpec>,
) -> BTreeSet<String> {
    let keys = gateway.into_iter().flat_map(GatewaySpec::keys).flat_map(Template::variables);
    listed.iter().cloned().chain(keys.map(|(name, _)| name)).collect()
}

/// A model server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct UpstreamSpec {
    /// Its name, for records and messages.
    pub name: String,
    /// Its base address as clients of the dialect write it: with `/v1` for OpenAI, without a version
    /// for the others.
    pub url: String,
    /// Its dialect.
    pub dialect: ModelDialect,
    /// Its key, which only workers expand; it needs none when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Template>,
    /// Data that the gateway asks the server for in addition to the agent's request.
    #[serde(default)]
    pub capture: CaptureMode,
    /// Calls at once of a run, on all its workers together; no limit when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_concurrent: Option<u32>,
    /// Calls per minute of a run, on all its workers together; no limit when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests_per_minute: Option<u32>,
    /// Longest time that a call is held before the agent gets 503, seconds.
    pub hold_sec: f64,
    /// How often a call is sent again after an answer that asks for it.
    pub max_retries: u32,
    /// Prices of tokens of all models that have none in `model_prices`; unknown when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prices: Option<TokenPrices>,
    /// Prices of tokens by model.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub model_prices: BTreeMap<String, TokenPrices>,
    /// Patterns of the models that it takes; all when empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub models: Vec<String>,
    /// Whether a call that it does not answer goes to the next server that takes its model.
    #[serde(default, skip_serializing_if = "is_false")]
    pub fallback: bool,
}

impl UpstreamSpec {
    /// A server without a key, limits and prices, which holds calls and sends them again as by
    /// default.
    pub fn new(name: &str, dialect: ModelDialect, url: &str) -> Self {
        Self {
            name: name.to_owned(),
            url: url.to_owned(),
            dialect,
            key: None,
            capture: CaptureMode::default(),
            max_concurrent: None,
            requests_per_minute: None,
            hold_sec: DEFAULT_HOLD_SEC,
            max_retries: DEFAULT_MAX_RETRIES,
            prices: None,
            model_prices: BTreeMap::new(),
            models: Vec::new(),
            fallback: false,
        }
    }

    /// The prices of a model, by the first of its names that has a price; `None` if they are unknown.
    pub fn prices_of<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> Option<&TokenPrices> {
        let known = names.into_iter().find_map(|name| self.model_prices.get(name));
        known.or(self.prices.as_ref())
    }

    /// Whether it takes every model.
    pub fn takes_all_models(&self) -> bool {
        self.models.is_empty() || self.models.iter().any(|pattern| pattern == "*")
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
const fn is_false(flag: &bool) -> bool {
    !*flag
}

/// A dialect of model servers.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum ModelDialect {
    /// OpenAI: chat completions, completions and responses.
    #[default]
    Openai,
    /// Anthropic: messages.
    Anthropic,
    /// Gemini: generated content.
    Gemini,
}

impl ModelDialect {
    /// The name used in documents and addresses.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Openai => "openai",
            Self::Anthropic => "anthropic",
            Self::Gemini => "gemini",
        }
    }
}

impl fmt::Display for ModelDialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Data that the gateway asks for in requests, and takes out of replies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CaptureMode {
    /// Nothing: bytes are forwarded as they are.
    AsIs,
    /// Token counts of streams. Without them the use of a call is unknown, and some agents do not
    /// ask for them.
    #[default]
    Usage,
    /// Token counts, token ids and log probabilities.
    Tokens,
}

/// Prices of tokens, in the user's currency per million.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct TokenPrices {
    /// Input tokens that were not cached.
    pub input: f64,
    /// Input tokens that the server read from its cache.
    pub cached_input: f64,
    /// Input tokens that the server wrote to its cache.
    pub written_input: f64,
    /// Output tokens.
    pub output: f64,
}
