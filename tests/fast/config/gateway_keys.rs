//! Keys of `gateway`, whose effect is in a plan.

use serde_json::json;

use crate::config::keys::KeyCase;

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
        "gateway.upstreams[].prices.written_input",
        "gateway: {upstreams: [{url: 'http://h/v1', prices: {input: 2, written_input: 2.5}}]}",
        "/plan/settings/gateway/upstreams/0/prices/written_input",
        || json!(2.5),
    ),
    (
        "gateway.upstreams[].model_prices",
        "gateway: {upstreams: [{url: 'http://h/v1', model_prices: {m: {input: 2}}}]}",
        "/plan/settings/gateway/upstreams/0/model_prices/m/input",
        || json!(2.0),
    ),
    (
        "prices",
        "prices: '@HERE@/prices.toml'\ngateway: {upstreams: [{name: openai, url: 'http://h/v1'}]}",
        "/plan/settings/gateway/upstreams/0/model_prices/m/output",
        || json!(9.0),
    ),
    (
        "budget.try.cost",
        "gateway: {upstreams: [{url: 'http://h/v1', prices: {input: 1}}]}\n\
         budget: {try: {cost: 7.5}}",
        "/plan/settings/budget/cost",
        || json!(7.5),
    ),
    (
        "budget.try.tokens",
        "gateway: {upstreams: [{url: 'http://h/v1', prices: {input: 1}}]}\n\
         budget: {try: {tokens: 70}}",
        "/plan/settings/budget/tokens",
        || json!(70),
    ),
    (
        "budget.try.calls",
        "gateway: {upstreams: [{url: 'http://h/v1', prices: {input: 1}}]}\n\
         budget: {try: {calls: 7}}",
        "/plan/settings/budget/calls",
        || json!(7),
    ),
    (
        "budget.try.sec",
        "gateway: {upstreams: [{url: 'http://h/v1', prices: {input: 1}}]}\n\
         budget: {try: {sec: 8.5}}",
        "/plan/settings/budget/sec",
        || json!(8.5),
    ),
    (
        "budget.agent.cost",
        "gateway: {upstreams: [{url: 'http://h/v1', prices: {input: 1}}]}\n\
         budget: {try: {cost: 7.5}, agent: {cost: 7.5}}",
        "/shown/config/budget/agent/cost",
        || json!(7.5),
    ),
    (
        "budget.agent.tokens",
        "gateway: {upstreams: [{url: 'http://h/v1', prices: {input: 1}}]}\n\
         budget: {try: {tokens: 70}, agent: {tokens: 70}}",
        "/shown/config/budget/agent/tokens",
        || json!(70),
    ),
    (
        "budget.agent.calls",
        "gateway: {upstreams: [{url: 'http://h/v1', prices: {input: 1}}]}\n\
         budget: {try: {calls: 7}, agent: {calls: 7}}",
        "/shown/config/budget/agent/calls",
        || json!(7),
    ),
    (
        "budget.agent.sec",
        "gateway: {upstreams: [{url: 'http://h/v1', prices: {input: 1}}]}\n\
         budget: {try: {sec: 8.5}, agent: {sec: 8.5}}",
        "/shown/config/budget/agent/sec",
        || json!(8.5),
    ),
    (
        "budget.run.cost",
        "gateway: {upstreams: [{url: 'http://h/v1', prices: {input: 1}}]}\n\
         budget: {try: {cost: 7.5}, run: {cost: 7.5}}",
        "/shown/config/budget/run/cost",
        || json!(7.5),
    ),
    (
        "budget.run.tokens",
        "gateway: {upstreams: [{url: 'http://h/v1', prices: {input: 1}}]}\n\
         budget: {try: {tokens: 70}, run: {tokens: 70}}",
        "/shown/config/budget/run/tokens",
        || json!(70),
    ),
    (
        "budget.run.calls",
        "gateway: {upstreams: [{url: 'http://h/v1', prices: {input: 1}}]}\n\
         budget: {try: {calls: 7}, run: {calls: 7}}",
        "/shown/config/budget/run/calls",
        || json!(7),
    ),
    (
        "budget.run.sec",
        "gateway: {upstreams: [{url: 'http://h/v1', prices: {input: 1}}]}\n\
         budget: {try: {sec: 8.5}, run: {sec: 8.5}}",
        "/shown/config/budget/run/sec",
        || json!(8.5),
    ),
    (
        "budget.output_reserve",
        "gateway: {upstreams: [{url: 'http://h/v1'}]}\nbudget: {try: {calls: 1}, output_reserve: 9}",
        "/plan/settings/budget/output_reserve",
        || json!(9),
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
