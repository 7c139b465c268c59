//! The model gateway of a job: the model servers that its agents may call.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::template::Template;

/// The model servers that the agents of a job may call, at most one of each dialect.
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

/// A model server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct UpstreamSpec {
    /// Its name, for records and messages.
    pub name: String,
    /// Its base address as clients of the dialect write it: with `/v1` for OpenAI, without it for
    /// Anthropic.
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
    /// Prices of tokens.
    #[serde(default)]
    pub prices: TokenPrices,
}

/// A dialect of model servers.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum ModelDialect {
    /// OpenAI: chat completions and completions.
    #[default]
    Openai,
    /// Anthropic: messages.
    Anthropic,
}

impl ModelDialect {
    /// The name used in documents and addresses.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Openai => "openai",
            Self::Anthropic => "anthropic",
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
    #[default]
    AsIs,
    /// Token counts of streams.
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
    /// Output tokens.
    pub output: f64,
}
