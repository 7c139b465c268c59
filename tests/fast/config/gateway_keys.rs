//! Keys of `gateway`, whose effect is in a plan.

use serde_json::json;

use crate::keys::KeyCase;

/// The keys.
pub(crate) const GATEWAY_CASES: &[KeyCase] = &[
    (
        "gateway.upstreams[].name",
        "gateway: {upstreams: [{url: 'http://h/v1', name: policy}]}",
        "/plan/settings/gateway/upstreams/0/name",
        || json!("policy"),
    ),
    (
        "gateway.upstreams[].url",
        "gateway: {upstreams: [{url: 'http://h/v1'}]}",
        "/plan/settings/gateway/upstreams/0/url",
        || json!("http://h/v1"),
    ),
    (
        "gateway.upstreams[].dialect",
        "gateway: {upstreams: [{url: 'http://h/v1', dialect: anthropic}]}",
        "/plan/settings/gateway/upstreams/0/dialect",
        || json!("anthropic"),
    ),
    (
        "gateway.upstreams[].models",
        "gateway: {upstreams: [{url: 'http://h/v1', models: ['qwen/*']}]}",
        "/plan/settings/gateway/upstreams/0/models/0",
        || json!("qwen/*"),
    ),
    (
        "gateway.upstreams[].fallback",
        "gateway: {upstreams: [{url: 'http://h/v1', fallback: true}, {name: b, url: 'http://i/v1'}]}",
        "/plan/settings/gateway/upstreams/0/fallback",
        || json!(true),
    ),
    (
        "gateway.upstreams[].key_env",
        "gateway: {upstreams: [{url: 'http://h/v1', key_env: MODEL_KEY}]}",
        "/plan/settings/gateway/upstreams/0/key",
        || json!("${MODEL_KEY}"),
    ),
    (
        "gateway.upstreams[].capture",
        "gateway: {upstreams: [{url: 'http://h/v1', capture: tokens}]}",
        "/plan/settings/gateway/upstreams/0/capture",
        || json!("tokens"),
    ),
    (
        "gateway.upstreams[].max_concurrent",
        "gateway: {upstreams: [{url: 'http://h/v1', max_concurrent: 3}]}",
        "/plan/settings/gateway/upstreams/0/max_concurrent",
        || json!(3),
    ),
    (
        "gateway.upstreams[].requests_per_minute",
        "gateway: {upstreams: [{url: 'http://h/v1', requests_per_minute: 90}]}",
        "/plan/settings/gateway/upstreams/0/requests_per_minute",
        || json!(90),
    ),
    (
        "gateway.upstreams[].hold_sec",
        "gateway: {upstreams: [{url: 'http://h/v1', hold_sec: 2.5}]}",
        "/plan/settings/gateway/upstreams/0/hold_sec",
        || json!(2.5),
    ),
    (
        "gateway.upstreams[].max_retries",
        "gateway: {upstreams: [{url: 'http://h/v1', max_retries: 0}]}",
        "/plan/settings/gateway/upstreams/0/max_retries",
        || json!(0),
    ),
    (
        "gateway.upstreams[].prices.input",
        "gateway: {upstreams: [{url: 'http://h/v1', prices: {input: 3}}]}",
        "/plan/settings/gateway/upstreams/0/prices/input",
        || json!(3.0),
    ),
    (
        "gateway.upstreams[].prices.cached_input",
        "gateway: {upstreams: [{url: 'http://h/v1', prices: {cached_input: 0.3}}]}",
        "/plan/settings/gateway/upstreams/0/prices/cached_input",
        || json!(0.3),
    ),
    (
        "gateway.upstreams[].prices.output",
        "gateway: {upstreams: [{url: 'http://h/v1', prices: {output: 15}}]}",
        "/plan/settings/gateway/upstreams/0/prices/output",
        || json!(15.0),
    ),
];
