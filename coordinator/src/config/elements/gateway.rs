//! `gateway`: the model servers that agents call through their worker.

use rollout_base::glob;
use rollout_protocol::spec::gateway::{
    CaptureMode, DEFAULT_HOLD_SEC, DEFAULT_MAX_RETRIES, GatewaySpec, ModelDialect, TokenPrices,
    UpstreamSpec,
};
use rollout_protocol::template::{Template, is_variable_name};

use super::super::catalogue::{ModelProvider, PriceTable, find_provider, provider_names};
use super::super::diagnostics::ErrorKind;
use super::super::reader::{Field, Fields};
use super::names;
use super::variables::Variable;

keys! {
    /// The keys of `gateway`.
    pub(crate) table GatewayKeys {
        upstreams: Value("list"), "required",
            "The model servers; the first of a call's dialect that takes its model gets the call.",
            "upstreams[]" => UpstreamKeys::ALL;
    }

    /// The keys of a model server.
    pub(crate) table UpstreamKeys {
        name: Value("text"), "the dialect", "Name in records and messages; each server has its own.";
        url: Value("text"), "required",
            "Base address, as clients write it: with /v1 for openai, without a version for the others.";
        dialect: Value("openai|anthropic|gemini"), "openai", "Dialect of the server.";
        models: Value("list"), "all models", "Models that it takes: names, or patterns with * and ?.";
        fallback: Value("boolean"), "false",
            "Send a call that it does not answer to the next server that takes its model.";
        key_env: Value("name"), "none",
            "Host variable with the server's key; workers must export it to trials.";
        capture: Value("as_is|usage|tokens"), "usage",
            "Ask the server for token counts, or also for token ids and log probabilities.";
        max_concurrent: Value("integer"), "no limit", "Concurrent calls of the run, on all its workers together.";
        requests_per_minute: Value("integer"), "no limit", "Calls per minute of the run, on all its workers together.";
        hold_sec: Value("number"), "60",
            "Longest time that a call waits for limits, a pause or an outage, s; then 503 or 429.";
        max_retries: Value("integer"), "3",
            "Repetitions of a call after 429, 502, 503, 504 or 529.";
        prices: Value("table"), "from the table of prices",
            "Prices of tokens of its models, without one in `model_prices`.",
            "prices" => PriceKeys::ALL;
        model_prices: Value("table MODEL = prices"), "from the table of prices",
            "Prices of tokens of single models.";
    }

    /// The keys of `prices`.
    pub(crate) table PriceKeys {
        input: Value("number"), "0 in a table", "Price of a million input tokens that were not cached.";
        cached_input: Value("number"), "`input`", "Price of a million input tokens read from a cache.";
        written_input: Value("number"), "`input`", "Price of a million input tokens written to a cache.";
        output: Value("number"), "0 in a table", "Price of a million output tokens.";
    }
}

/// The dialects, as documents name them.
pub(super) const DIALECTS: &[(&str, ModelDialect)] = &[
    ("openai", ModelDialect::Openai),
    ("anthropic", ModelDialect::Anthropic),
    ("gemini", ModelDialect::Gemini),
];

const CAPTURE_MODES: &[(&str, CaptureMode)] =
    &[("as_is", CaptureMode::AsIs), ("usage", CaptureMode::Usage), ("tokens", CaptureMode::Tokens)];

/// Largest limits: far above any server, so that typing errors are found.
const MAX_LIMIT: u64 = 1_000_000;

/// Longest pattern of models: far more than any name has.
const MODEL_BYTES: usize = 200;

/// `gateway` as written in the job file.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GatewayConfig {
    /// The model servers.
    pub spec: GatewaySpec,
    /// Their keys.
    pub(crate) keys: Vec<Variable>,
}

/// Reads the model servers; `None` if the job has none. `named` are those that agents name: they need
/// not get the calls of others.
pub(crate) fn read(field: &Field<'_>, named: &[&str]) -> Option<GatewayConfig> {
    let mut fields = field.mapping()?;
    let upstreams = fields.take(GatewayKeys::upstreams);
    fields.finish();
    let mut config = GatewayConfig::default();
    if !upstreams.required("a list of model servers") {
        return None;
    }
    let items = upstreams.items().unwrap_or_default();
    for item in &items {
        let Some(mut fields) = item.mapping() else { continue };
        let key = read_key(&fields.take(UpstreamKeys::key_env));
        let key_template = key.as_ref().map(|key| key.template.clone());
        config.keys.extend(key);
        if let Some(upstream) = upstream(&mut fields, key_template) {
            check_beside(item, &upstream, &config.spec.upstreams, named);
            config.spec.upstreams.push(upstream);
        }
        fields.finish();
    }
    check_fallbacks(&upstreams, &config.spec.upstreams);
    Some(config)
}

/// Checks that a server has a name of its own, and can get calls beside those before it.
fn check_beside(
    item: &Field<'_>,
    upstream: &UpstreamSpec,
    earlier: &[UpstreamSpec],
    named: &[&str],
) {
    let UpstreamSpec { name, dialect, .. } = upstream;
    if earlier.iter().any(|one| one.name == *name) {
        let found = format!("a second model server `{name}`");
        item.reject(ErrorKind::DuplicateName, found, "a `name` of its own");
    }
    let takes_all = |one: &&UpstreamSpec| one.dialect == *dialect && takes_all_calls(one);
    let is_named = named.iter().any(|provider| is_of_provider(upstream, provider));
    if let Some(first) = earlier.iter().find(takes_all).filter(|_| !is_named) {
        let found = format!(
            "a model server that gets no call: `{}` takes all models of the dialect {dialect}",
            first.name
        );
        item.reject(ErrorKind::Conflict, found, "`models` at the servers before it");
    }
}

/// Whether a server is that of a provider: it has its name, or its name and a dialect.
pub(super) fn is_of_provider(upstream: &UpstreamSpec, provider: &str) -> bool {
    let rest = upstream.name.strip_prefix(provider);
    rest.is_some_and(|rest| {
        rest.is_empty() || rest.strip_prefix('-') == Some(upstream.dialect.as_str())
    })
}

/// Whether no call reaches the servers after one.
fn takes_all_calls(upstream: &UpstreamSpec) -> bool {
    upstream.takes_all_models() && !upstream.fallback
}

/// Checks that each fallback leads to another server.
fn check_fallbacks(field: &Field<'_>, upstreams: &[UpstreamSpec]) {
    for (place, upstream) in upstreams.iter().enumerate().filter(|(_, one)| one.fallback) {
        let mut later = upstreams[place + 1..].iter();
        if !later.any(|one| one.dialect == upstream.dialect) {
            let found = format!("a `fallback` of `{}` that leads to no server", upstream.name);
            field.reject(ErrorKind::Conflict, found, "a later server of the same dialect");
        }
    }
}

fn upstream(fields: &mut Fields<'_>, key: Option<Template>) -> Option<UpstreamSpec> {
    let dialect = fields.take(UpstreamKeys::dialect).keyword(DIALECTS).unwrap_or_default();
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
    let model_prices = fields.take(UpstreamKeys::model_prices).entries().unwrap_or_default();
    let model_prices = model_prices
        .into_iter()
        .filter_map(|(model, prices)| Some((model.to_owned(), read_prices(&prices)?)));
    let models = read_models(&fields.take(UpstreamKeys::models));
    let fallback = fields.take(UpstreamKeys::fallback).bool().unwrap_or_default();
    let url = fields.take(UpstreamKeys::url);
    let address = url.required("the address of the server").then(|| read_address(&url))??;
    Some(UpstreamSpec {
        key,
        capture,
        max_concurrent,
        requests_per_minute,
        hold_sec: hold_sec.unwrap_or(DEFAULT_HOLD_SEC),
        max_retries: retries.and_then(|n| u32::try_from(n).ok()).unwrap_or(DEFAULT_MAX_RETRIES),
        prices,
        model_prices: model_prices.collect(),
        models,
        fallback,
        ..UpstreamSpec::new(&name.unwrap_or_else(|| dialect.to_string()), dialect, &address)
    })
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

/// Reads patterns of models.
fn read_models(field: &Field<'_>) -> Vec<String> {
    let Some(items) = field.items() else { return Vec::new() };
    if items.is_empty() {
        field.bad_value("at least one model, or no `models` for all");
    }
    let pattern = |item: &Field<'_>| {
        let pattern = item.non_empty_string()?;
        let is_valid =
            pattern.len() <= MODEL_BYTES && glob::compile(&pattern, glob::Dialect::Shell).is_some();
        if !is_valid {
            item.bad_value(
                "the name of a model, or a pattern with `*` and `?`, of at most 200 bytes",
            );
        }
        is_valid.then_some(pattern)
    };
    items.iter().filter_map(pattern).collect()
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

fn read_prices(field: &Field<'_>) -> Option<TokenPrices> {
    let mut fields = field.mapping()?;
    let mut price = |key| fields.take(key).number("a price of 0 or more", |price| price >= 0.0);
    let input = price(PriceKeys::input).unwrap_or_default();
    let cached_input = price(PriceKeys::cached_input).unwrap_or(input);
    let written_input = price(PriceKeys::written_input).unwrap_or(input);
    let output = price(PriceKeys::output).unwrap_or_default();
    fields.finish();
    Some(TokenPrices { input, cached_input, written_input, output })
}

/// Gives servers of known providers the prices of a table, unless the job has prices for them.
pub(crate) fn add_prices(spec: &mut GatewaySpec, table: &PriceTable) {
    for upstream in &mut spec.upstreams {
        if upstream.prices.is_some() || !upstream.model_prices.is_empty() {
            continue;
        }
        let is_provider = |name: &&str| {
            let serves = |provider: &ModelProvider| {
                provider.servers.iter().any(|server| server.url == upstream.url)
            };
            is_of_provider(upstream, name) || find_provider(name).is_some_and(serves)
        };
        let provider = provider_names().find(is_provider);
        let prices = provider.and_then(|provider| table.of_provider(provider));
        upstream.model_prices = prices.cloned().unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::read_field;
    use super::*;

    fn read(field: &Field<'_>) -> Option<GatewayConfig> {
        super::read(field, &[])
    }

    #[test]
    fn gateway_of_one_url_has_defaults() {
        let (gateway, faults, _) =
            read_field("{upstreams: [{url: 'http://h:8000/v1', prices: {input: 2}}]}", read);
        assert_eq!(faults, []);
        let upstream = &gateway.expect("a gateway").spec.upstreams[0];
        assert_eq!(upstream.name, "openai");
        assert_eq!((upstream.capture, upstream.max_retries), (CaptureMode::Usage, 3));
        let prices = upstream.prices.expect("prices");
        assert!((prices.cached_input - 2.0).abs() < 1e-12, "{prices:?}");
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

    /// The places of the errors of these servers.
    fn errors(upstreams: &str) -> Vec<String> {
        let faults = read_field(&format!("{{upstreams: [{upstreams}]}}"), read).1;
        faults.into_iter().map(|(key, _)| key).collect()
    }

    #[test]
    fn gateway_may_have_several_servers_of_a_dialect_that_all_get_calls() {
        let text = "{upstreams: [{name: a, url: 'http://h', models: ['qwen/*', m]}, \
                    {name: b, url: 'http://h', fallback: true}, {name: c, url: 'http://h'}, \
                    {url: 'http://h', dialect: gemini}]}";
        let (gateway, faults, _) = read_field(text, read);
        assert_eq!(faults, []);
        let upstreams = gateway.expect("a gateway").spec.upstreams;
        assert_eq!(upstreams[0].models, ["qwen/*", "m"]);
        assert_eq!(
            upstreams.iter().map(|one| one.fallback).collect::<Vec<_>>(),
            [false, true, false, false]
        );
        assert_eq!(upstreams[3].name, "gemini");
    }

    #[test]
    fn gateway_server_that_gets_no_call_is_an_error() {
        let second = "{name: b, url: 'http://h', models: [m]}";
        assert_eq!(errors(&format!("{{url: 'http://h'}}, {second}")), ["x.upstreams[1]"]);
        let all = "{url: 'http://h', models: ['*']}";
        assert_eq!(errors(&format!("{all}, {second}")), ["x.upstreams[1]"]);
        assert_eq!(errors("{url: 'http://h', models: [m]}, {url: 'http://h'}"), ["x.upstreams[1]"]);
        assert_eq!(errors("{url: 'http://h', fallback: true}"), ["x.upstreams"]);
        assert_eq!(errors("{url: 'http://h', models: []}"), ["x.upstreams[0].models"]);
        assert_eq!(errors("{url: 'http://h', models: ['']}"), ["x.upstreams[0].models[0]"]);
    }

    #[test]
    fn known_provider_has_prices_of_the_table_unless_the_job_names_some() {
        let text = "{upstreams: [{name: anthropic, url: 'http://h', dialect: anthropic}, \
                    {name: mine, url: 'https://api.openai.com/v1', models: [a]}, \
                    {name: groq, url: 'http://i', models: [b], prices: {input: 1}}, \
                    {name: own, url: 'http://j', model_prices: {m: {input: 1, output: 2}}}]}";
        let (gateway, faults, _) = read_field(text, read);
        assert_eq!(faults, []);
        let mut spec = gateway.expect("a gateway").spec;
        add_prices(&mut spec, PriceTable::shipped());
        let price = |at: usize, model: &str| {
            spec.upstreams[at].prices_of([model]).map(|prices| (prices.input, prices.output))
        };
        assert_eq!(price(0, "claude-sonnet-4-5"), Some((3.0, 15.0)));
        assert_eq!(price(0, "unknown"), None, "unknown is not 0");
        assert_eq!(price(1, "gpt-4.1"), Some((2.0, 8.0)));
        assert_eq!(price(2, "any"), Some((1.0, 0.0)));
        assert_eq!((price(3, "m"), price(3, "n")), (Some((1.0, 2.0)), None));
    }

    #[test]
    fn gateway_errors_are_all_reported() {
        let text = "{upstreams: [{url: 'ftp://h'}, {url: 'http://u@h', key_env: 'sk-1'}, \
                    {dialect: anthropic, hold_sec: -1, keys: 1}]}";
        let faults: Vec<_> = read_field(text, read).1.into_iter().map(|(key, _)| key).collect();
        for key in ["[0].url", "[1].key_env", "[1].url", "[2].hold_sec", "[2].url", "[2].keys"] {
            let key = format!("x.upstreams{key}");
            assert!(faults.contains(&key), "{key}: {faults:?}");
        }
        assert_eq!(read_field("{}", read).1.len(), 1);
    }
}
