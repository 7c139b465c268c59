//! Prices of models: the shipped table, or one of the user.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use rollout_base::regular_file;
use rollout_base::shown_path::shown;
use rollout_protocol::spec::gateway::TokenPrices;
use serde::Deserialize;

/// Largest file of prices, bytes.
const FILE_BYTES: u64 = 64 * 1024 * 1024;

static SHIPPED: LazyLock<PriceTable> = LazyLock::new(|| {
    PriceTable::parse_toml(include_str!("../../../agents/prices.toml"))
        .unwrap_or_else(|error| panic!("prices.toml: {error}"))
});

/// Prices per million tokens, by provider and model.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct PriceTable {
    /// Day on which the prices were read, `YYYY-MM-DD`, if it is known.
    pub(crate) date: Option<String>,
    models: BTreeMap<String, BTreeMap<String, TokenPrices>>,
}

/// Why a file of prices cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PriceTableError {
    /// It cannot be read.
    #[error("cannot read the prices in {}: {source}", shown(path))]
    Read {
        /// Its path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// It is no table of prices.
    #[error("cannot use the prices in {}: {reason}", shown(path))]
    Invalid {
        /// Its path.
        path: PathBuf,
        /// Why.
        reason: String,
    },
}

/// The file as TOML.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TomlTable {
    date: Option<String>,
    #[serde(rename = "source")]
    _source: Option<String>,
    models: BTreeMap<String, BTreeMap<String, ListedPrices>>,
}

/// Prices of a model as listed; a missing price is that of other input.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ListedPrices {
    input: f64,
    cached_input: Option<f64>,
    written_input: Option<f64>,
    output: f64,
}

impl ListedPrices {
    fn prices(&self) -> Option<TokenPrices> {
        let prices = TokenPrices {
            input: self.input,
            cached_input: self.cached_input.unwrap_or(self.input),
            written_input: self.written_input.unwrap_or(self.input),
            output: self.output,
        };
        let all = [prices.input, prices.cached_input, prices.written_input, prices.output];
        all.iter().all(|price| price.is_finite() && *price >= 0.0).then_some(prices)
    }
}

/// A model in the JSON file `model_prices_and_context_window` of LiteLLM: prices per token.
#[derive(Deserialize)]
struct LitellmModel {
    litellm_provider: Option<String>,
    input_cost_per_token: Option<f64>,
    cache_read_input_token_cost: Option<f64>,
    cache_creation_input_token_cost: Option<f64>,
    output_cost_per_token: Option<f64>,
}

impl PriceTable {
    /// The shipped table.
    pub(crate) fn shipped() -> &'static Self {
        &SHIPPED
    }

    /// Reads a file: TOML like the shipped table, or the JSON file of LiteLLM if its name ends with
    /// `.json`.
    ///
    /// # Errors
    /// [`PriceTableError`].
    pub(crate) fn read(path: &Path) -> Result<Self, PriceTableError> {
        let invalid = |reason| PriceTableError::Invalid { path: path.to_owned(), reason };
        let failed = |source| PriceTableError::Read { path: path.to_owned(), source };
        let text =
            regular_file::read_text(path, FILE_BYTES).map_err(|error| match error.kind() {
                io::ErrorKind::FileTooLarge => invalid(error.to_string()),
                _ => failed(error),
            })?;
        let is_json = path.extension().is_some_and(|end| end == "json");
        let parsed = if is_json { Self::parse_litellm(&text) } else { Self::parse_toml(&text) };
        parsed.map_err(invalid)
    }

    fn parse_toml(text: &str) -> Result<Self, String> {
        let table: TomlTable = toml::from_str(text).map_err(|error| error.to_string())?;
        let mut models: BTreeMap<String, BTreeMap<String, TokenPrices>> = BTreeMap::new();
        for (provider, listed) in table.models {
            for (model, listed) in listed {
                let prices = listed.prices();
                let prices = prices.ok_or_else(|| format!("`{model}` has a price below 0"))?;
                models.entry(provider.clone()).or_default().insert(model, prices);
            }
        }
        Ok(Self { date: table.date, models })
    }

    fn parse_litellm(text: &str) -> Result<Self, String> {
        let all: BTreeMap<String, serde_json::Value> =
            serde_json::from_str(text).map_err(|error| error.to_string())?;
        let mut table = Self::default();
        for (name, model) in all {
            // The file also has models of other kinds, with other members.
            let Ok(model) = serde_json::from_value::<LitellmModel>(model) else { continue };
            let Some(provider) = model.litellm_provider else { continue };
            let per_million = |price: Option<f64>| price.map(|price| price * 1e6);
            let (Some(input), Some(output)) =
                (per_million(model.input_cost_per_token), per_million(model.output_cost_per_token))
            else {
                continue;
            };
            let cached_input = per_million(model.cache_read_input_token_cost);
            let written = per_million(model.cache_creation_input_token_cost);
            let written_input = written.filter(|price| *price > 0.0);
            let listed = ListedPrices { input, cached_input, written_input, output };
            let Some(prices) = listed.prices() else { continue };
            let short = name.strip_prefix(&format!("{provider}/")).unwrap_or(&name).to_owned();
            let provider = if provider == "gemini" { "google".to_owned() } else { provider };
            table.models.entry(provider).or_default().insert(short, prices);
        }
        if table.models.is_empty() {
            return Err("no model in it has prices".to_owned());
        }
        Ok(table)
    }

    /// The prices of the models of a provider.
    pub(crate) fn of_provider(&self, provider: &str) -> Option<&BTreeMap<String, TokenPrices>> {
        self.models.get(provider)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::catalogue::find_provider;

    #[test]
    fn shipped_prices_are_dated_and_of_known_providers() {
        let table = PriceTable::shipped();
        let date: Option<jiff::civil::Date> =
            table.date.as_deref().and_then(|date| date.parse().ok());
        assert!(date.is_some(), "{:?}", table.date);
        assert!(table.models.keys().all(|provider| find_provider(provider).is_some()));
        let sonnet = table.of_provider("anthropic").and_then(|all| all.get("claude-sonnet-4-5"));
        let expected =
            TokenPrices { input: 3.0, cached_input: 0.3, written_input: 3.75, output: 15.0 };
        assert_eq!(sonnet, Some(&expected));
        assert_eq!(table.of_provider("nobody"), None);
    }

    #[test]
    fn file_of_litellm_is_read_and_models_without_prices_are_left_out() {
        let text = r#"{
            "sample_spec": {"input_cost_per_token": "text"},
            "gemini/g": {"litellm_provider": "gemini", "input_cost_per_token": 1e-6,
                         "output_cost_per_token": 2e-6, "cache_read_input_token_cost": 1e-7},
            "free": {"litellm_provider": "openai", "input_cost_per_token": 1e-6},
            "dall-e": {"litellm_provider": "openai", "output_cost_per_image": 1}
        }"#;
        let table = PriceTable::parse_litellm(text).expect("a table");
        let prices = table.of_provider("google").and_then(|all| all.get("g")).expect("a price");
        assert!((prices.written_input - 1.0).abs() < 1e-9, "{prices:?}");
        assert!((prices.cached_input - 0.1).abs() < 1e-9);
        assert_eq!(table.of_provider("openai"), None);
        assert!(PriceTable::parse_litellm("{}").is_err());
    }

    #[test]
    fn negative_price_is_an_error() {
        let text = "[models.p]\nm = { input = -1, output = 1 }";
        let error = PriceTable::parse_toml(text).expect_err("invalid");
        assert!(error.contains("`m`"), "{error}");
    }
}
