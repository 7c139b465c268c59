//! `gateway`: the model servers that agents call through their worker.

use std::collections::BTreeSet;

use rollout_protocol::spec::gateway::{
    CaptureMode, GatewaySpec, ModelDialect, TokenPrices, UpstreamSpec,
};
use rollout_protocol::template::{Template, is_variable_name};

use super::super::diagnostics::ErrorKind;
use super::super::reader::{Field, Fields};
use super::names;
use super::variables::Variable;

keys! {
    /// The keys of `gateway`.
    pub(crate) table GatewayKeys {
        upstreams: "list", "required", "The model servers, at most one of each dialect.",
            "upstreams[]" => UpstreamKeys::ALL;
    }

    /// The keys of a model server.
    pub(crate) table UpstreamKeys {
        name: "text", "the dialect", "Name in records and messages.";
        url: "text", "required",
            "Base address, as clients write it: with /v1 for openai, without it for anthropic.";
        dialect: "openai|anthropic", "openai", "Dialect of the server.";
        key_env: "name", "none",
            "Host variable with the server's key; workers must export it to trials.";
        capture: "as_is|usage|tokens", "as_is",
            "Ask the server for token counts, or also for token ids and log probabilities.";
        max_concurrent: "integer", "no limit", "Concurrent calls of the run, on all its workers together.";
        requests_per_minute: "integer", "no limit", "Calls per minute of the run, on all its workers together.";
        hold_sec: "number", "60",
            "Longest time that a call waits for limits, a pause or an outage, s; then 503 or 429.";
        max_retries: "integer", "3",
            "Repetitions of a call after 429, 502, 503, 504 or 529.";
        prices: "table", "", "Prices of tokens.", "prices" => PriceKeys::ALL;
    }

    /// The keys of `prices`.
    pub(crate) table PriceKeys {
        input: "number", "0", "Price of a million input tokens that were not cached.";
        cached_input: "number", "`input`", "Price of a million input tokens read from a cache.";
        output: "number", "0", "Price of a million output tokens.";
    }
}

/// The dialects, as documents name them.
pub(super) const DIALECTS: &[(&str, ModelDialect)] =
    &[("openai", ModelDialect::Openai), ("anthropic", ModelDialect::Anthropic)];

const CAPTURE_MODES: &[(&str, CaptureMode)] =
    &[("as_is", CaptureMode::AsIs), ("usage", CaptureMode::Usage), ("tokens", CaptureMode::Tokens)];

/// Default of `hold_sec`: below the time limits of all known clients.
const HOLD_SEC: f64 = 60.0;

/// Default of `max_retries`.
const MAX_RETRIES: u32 = 3;

/// Largest limits: far above any server, so that typing errors are found.
const MAX_LIMIT: u64 = 1_000_000;

/// `gateway` as written in the job file.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GatewayConfig {
    /// The model servers.
    pub spec: GatewaySpec,
    /// Their keys.
    pub(crate) keys: Vec<Variable>,
}

/// Reads the model servers; `None` if the job has none.
pub(crate) fn read(field: &Field<'_>) -> Option<GatewayConfig> {
    let mut fields = field.mapping()?;
    let upstreams = fields.take(GatewayKeys::upstreams);
    fields.finish();
    let mut config = GatewayConfig::default();
    if !upstreams.required("a list of model servers") {
        return None;
    }
    let items = upstreams.items().unwrap_or_default();
    let mut dialects = BTreeSet::new();
    for item in items {
        let Some(mut fields) = item.mapping() else { continue };
        let dialect = fields.take(UpstreamKeys::dialect);
        let known = dialect.keyword(DIALECTS).unwrap_or_default();
        if !dialects.insert(known) {
            let found = format!("a second model server of the dialect {known}");
            dialect.reject(ErrorKind::DuplicateName, found, "one model server for each dialect");
        }
        let key = read_key(&fields.take(UpstreamKeys::key_env));
        let key_template = key.as_ref().map(|key| key.template.clone());
        config.keys.extend(key);
        config.spec.upstreams.extend(upstream(&mut fields, known, key_template));
        fields.finish();
    }
    Some(config)
}

fn upstream(
    fields: &mut Fields<'_>,
    dialect: ModelDialect,
    key: Option<Template>,
) -> Option<UpstreamSpec> {
    let name = names::read(&fields.take(UpstreamKeys::name));
    let limit = |field: &Field<'_>| {
        field.integer(&(1..=MAX_LIMIT)).and_then(|limit| u32::try_from(limit).ok())
    };
    let capture = fields.take(UpstreamKeys::capture).keyword(CAPTURE_MODES).unwrap_or_default();
    let max_concurrent = limit(&fields.take(UpstreamKeys::max_concurrent));
    let requests_per_minute = limit(&fields.take(UpstreamKeys::requests_per_minute));
    let hold = fields.take(UpstreamKeys::hold_sec);
    let hold_sec =
        hold.number("a number of seconds from 0 to 86400", |s| (0.0..=86400.0).contains(&s));
    let retries = fields.take(UpstreamKeys::max_retries).integer(&(0..=100));
    let prices = read_prices(&fields.take(UpstreamKeys::prices));
    let url = fields.take(UpstreamKeys::url);
    let address = url.required("the address of the server").then(|| read_address(&url))??;
    let default = default_upstream(name.unwrap_or_else(|| dialect.to_string()), address, dialect);
    Some(UpstreamSpec {
        key,
        capture,
        max_concurrent,
        requests_per_minute,
        hold_sec: hold_sec.unwrap_or(HOLD_SEC),
        max_retries: retries.and_then(|n| u32::try_from(n).ok()).unwrap_or(MAX_RETRIES),
        prices,
        ..default
    })
}

/// A model server without a key, with the defaults of all settings.
pub(super) fn default_upstream(name: String, url: String, dialect: ModelDialect) -> UpstreamSpec {
    UpstreamSpec {
        name,
        url,
        dialect,
        key: None,
        capture: CaptureMode::default(),
        max_concurrent: None,
        requests_per_minute: None,
        hold_sec: HOLD_SEC,
        max_retries: MAX_RETRIES,
        prices: TokenPrices::default(),
    }
}

/// Reads the address of a model server.
pub(super) fn read_address(field: &Field<'_>) -> Option<String> {
    let address = field.non_empty_string()?;
    if !is_address(&address) {
        field.bad_value("an address like https://api.example.com/v1, without query or user");
        return None;
    }
    Some(address)
}

/// Whether a text is an address that calls can be sent to. It must hold no secret, so it has no
/// user.
fn is_address(text: &str) -> bool {
    let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    let Some(rest) = rest else { return false };
    let host = rest.split('/').next().unwrap_or_default();
    !host.is_empty()
        && rest.chars().all(|c| c.is_ascii_graphic() && !matches!(c, '?' | '#' | '@' | '\\' | '$'))
}

/// Reads the name of the variable with a key.
pub(super) fn read_key(field: &Field<'_>) -> Option<Variable> {
    let name = field.non_empty_string()?;
    if !is_variable_name(&name) {
        field.bad_value("the name of a variable, not its value");
        return None;
    }
    let template = Template::new(format!("${{{name}}}"));
    Some(Variable { template, location: field.location() })
}

fn read_prices(field: &Field<'_>) -> TokenPrices {
    let Some(mut fields) = field.mapping() else { return TokenPrices::default() };
    let mut price = |key| fields.take(key).number("a price of 0 or more", |price| price >= 0.0);
    let input = price(PriceKeys::input).unwrap_or_default();
    let cached_input = price(PriceKeys::cached_input).unwrap_or(input);
    let output = price(PriceKeys::output).unwrap_or_default();
    fields.finish();
    TokenPrices { input, cached_input, output }
}

#[cfg(test)]
mod tests {
    use super::super::testing::read_field;
    use super::*;

    #[test]
    fn gateway_of_one_url_has_defaults() {
        let (gateway, faults, _) =
            read_field("{upstreams: [{url: 'http://h:8000/v1', prices: {input: 2}}]}", read);
        assert_eq!(faults, []);
        let upstream = &gateway.expect("a gateway").spec.upstreams[0];
        assert_eq!(upstream.name, "openai");
        assert_eq!((upstream.capture, upstream.max_retries), (CaptureMode::AsIs, 3));
        assert!((upstream.prices.cached_input - 2.0).abs() < 1e-12);
        assert_eq!(upstream.key, None);
        assert_eq!(read_field("~", read).0, None);
    }

    #[test]
    fn gateway_key_is_template_of_variable() {
        let text = "{upstreams: [{url: 'https://h', dialect: anthropic, key_env: KEY}]}";
        let (gateway, faults, _) = read_field(text, read);
        assert_eq!(faults, []);
        let gateway = gateway.expect("a gateway");
        let key = gateway.spec.upstreams[0].key.as_ref().map(Template::as_str);
        assert_eq!(key, Some("${KEY}"));
        assert_eq!(gateway.keys.len(), 1);
    }

    #[test]
    fn gateway_errors_are_all_reported() {
        let text = "{upstreams: [{url: 'ftp://h'}, {url: 'http://u@h', key_env: 'sk-1'}, \
                    {dialect: anthropic, hold_sec: -1, keys: 1}]}";
        let faults: Vec<_> = read_field(text, read).1.into_iter().map(|(key, _)| key).collect();
        for key in [
            "[0].url",
            "[1].dialect",
            "[1].key_env",
            "[1].url",
            "[2].hold_sec",
            "[2].url",
            "[2].keys",
        ] {
            let key = format!("x.upstreams{key}");
            assert!(faults.contains(&key), "{key}: {faults:?}");
        }
        assert_eq!(read_field("{}", read).1.len(), 1);
    }
}
