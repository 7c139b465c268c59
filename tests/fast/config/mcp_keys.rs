//! The keys of `environment.mcp_servers[]`.

use serde_json::json;

use crate::config::keys::KeyCase;

/// The keys.
pub(crate) const MCP_CASES: &[KeyCase] = &[
    (
        "environment.mcp_servers[].name",
        "environment: {mcp_servers: [{name: m, url: 'http://m'}]}",
        "/shown/config/environment/mcp_servers/0/name",
        || json!("m"),
    ),
    (
        "environment.mcp_servers[].transport",
        "environment: {mcp_servers: [{name: m, url: 'http://m', transport: http}]}",
        "/shown/config/environment/mcp_servers/0/transport",
        || json!("streamable-http"),
    ),
    (
        "environment.mcp_servers[].url",
        "environment: {mcp_servers: [{name: m, url: 'http://m'}]}",
        "/shown/config/environment/mcp_servers/0/url",
        || json!("http://m"),
    ),
    (
        "environment.mcp_servers[].command",
        "environment: {mcp_servers: [{name: m, transport: stdio, command: c}]}",
        "/shown/config/environment/mcp_servers/0/command",
        || json!("c"),
    ),
    (
        "environment.mcp_servers[].args",
        "environment: {mcp_servers: [{name: m, transport: stdio, command: c, args: [-v]}]}",
        "/shown/config/environment/mcp_servers/0/args/0",
        || json!("-v"),
    ),
    (
        "environment.mcp_servers[].headers",
        "environment: {mcp_servers: [{name: m, url: 'http://m', headers: {X-A: b}}]}",
        "/shown/config/environment/mcp_servers/0/headers/X-A",
        || json!("b"),
    ),
];
