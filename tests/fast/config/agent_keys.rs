//! Keys of agents that have no scripts of their own, whose effect is in a plan.

use serde_json::json;

use crate::config::keys::KeyCase;

/// An agent of a catalogue of one's own; `@HERE@` is the project.
pub(crate) const OWN_AGENT: &str = "name = 'mine'
summary = 'An agent of a test'
version = '1'
accepts = ['args', 'effort', 'system_prompt']
install = 'install-it'
execute = 'run-it'
";

/// The keys.
pub(crate) const AGENT_CASES: &[KeyCase] = &[
    (
        "agents_dir",
        "agents_dir: '@HERE@/agents'\nagents: [{name: mine}]",
        "/shown/config/agents/0/env/ROLLOUT_AGENT_VERSION",
        || json!("1"),
    ),
    (
        "agents[].agent",
        "agents_dir: '@HERE@/agents'\nagents: [{name: other, agent: mine@2}]",
        "/shown/config/agents/0/env/ROLLOUT_AGENT_VERSION",
        || json!("2"),
    ),
    (
        "agents[].version",
        "agents_dir: '@HERE@/agents'\nagents: [{name: mine, version: '3'}]",
        "/shown/config/agents/0/env/ROLLOUT_AGENT_VERSION",
        || json!("3"),
    ),
    (
        "agents[].args",
        "agents_dir: '@HERE@/agents'\nagents: [{name: mine, args: [--x, \"it's\"]}]",
        "/shown/config/agents/0/execute",
        || {
            json!(
                "AGENT_DIR='/opt/rollout-agents/mine'\nPATH=\"$AGENT_DIR/bin:$PATH\"\n\
                 set -- '--x' 'it'\\''s'\nrun-it\n"
            )
        },
    ),
    (
        "agents[].effort",
        "agents_dir: '@HERE@/agents'\nagents: [{name: mine, effort: high}]",
        "/shown/config/agents/0/env/ROLLOUT_EFFORT",
        || json!("high"),
    ),
    (
        "agents[].system_prompt",
        "agents: [{name: shell, model: openai/m, system_prompt: be brief}]",
        "/shown/config/agents/0/system_prompt",
        || json!("be brief"),
    ),
    (
        "agents[].max_turns",
        "agents: [{name: shell, model: openai/m, max_turns: 7}]",
        "/shown/config/agents/0/max_turns",
        || json!(7),
    ),
    (
        "agents[].command_timeout_sec",
        "agents: [{name: shell, model: openai/m, command_timeout_sec: 7}]",
        "/shown/config/agents/0/command_timeout_sec",
        || json!(7.0),
    ),
    (
        "agents[].install_once",
        "agents: [{name: a, install: 'true', install_once: true}]",
        "/shown/config/agents/0/install_once",
        || json!(true),
    ),
    (
        "extra_instructions",
        "extra_instructions: [Be brief.]",
        "/plan/settings/extra_instructions",
        || json!(["Be brief."]),
    ),
    (
        "extra_instruction_paths",
        "extra_instruction_paths: [more.md]",
        "/plan/settings/extra_instructions",
        || json!(["Be kind.\n"]),
    ),
    (
        "agents[].extra_allowed_hosts",
        "agents: [{name: oracle, extra_allowed_hosts: ['*.a.b']}]",
        "/shown/config/agents/0/extra_allowed_hosts",
        || json!(["*.a.b"]),
    ),
    (
        "agents[].resume_trajectory",
        "agents: [{name: a, execute: 'true', resume_trajectory: true}]",
        "/shown/config/agents/0/resume_trajectory",
        || json!(true),
    ),
    (
        "agents[].load_trajectory",
        "agents: [{name: a, execute: 'true', load_trajectory: earlier.json}]",
        "/shown/config/agents/0/trajectory/size_bytes",
        || json!(52),
    ),
    (
        "agents[].skills",
        "agents: [{name: a, execute: 'true', skills: [skills]}]",
        "/shown/config/agents/0/skills/0/name",
        || json!("zebra"),
    ),
    (
        "agents[].session_calls.files",
        "agents: [{name: a, execute: 'true', session_calls: {files: 'a/*', output_tokens: [/o]}}]",
        "/shown/config/agents/0/session_calls/files",
        || json!("a/*"),
    ),
    (
        "agents[].session_calls.lists",
        "agents: [{name: a, execute: 'true', session_calls: {files: a, lists: [/l], output_tokens: [/o]}}]",
        "/shown/config/agents/0/session_calls/lists",
        || json!(["/l"]),
    ),
    (
        "agents[].session_calls.id",
        "agents: [{name: a, execute: 'true', session_calls: {files: a, id: /i, output_tokens: [/o]}}]",
        "/shown/config/agents/0/session_calls/id",
        || json!("/i"),
    ),
    (
        "agents[].session_calls.input_tokens",
        "agents: [{name: a, execute: 'true', session_calls: {files: a, input_tokens: [/i], output_tokens: [/o]}}]",
        "/shown/config/agents/0/session_calls/input_tokens",
        || json!(["/i"]),
    ),
    (
        "agents[].session_calls.output_tokens",
        "agents: [{name: a, execute: 'true', session_calls: {files: a, output_tokens: [/o, /r]}}]",
        "/shown/config/agents/0/session_calls/output_tokens",
        || json!(["/o", "/r"]),
    ),
    (
        "agents[].unsupported",
        "agents: [{name: a, execute: 'true', unsupported: [mcp]}]",
        "/shown/config/agents/0/unsupported",
        || json!(["mcp"]),
    ),
    (
        "agents[].model",
        "agents: [{name: shell, model: anthropic/m}]",
        "/plan/settings/gateway/upstreams/0/url",
        || json!("https://api.anthropic.com"),
    ),
    (
        "agents[].base_url",
        "agents: [{name: shell, model: lab/m, base_url: 'http://h:1/v1'}]",
        "/plan/settings/gateway/upstreams/0/url",
        || json!("http://h:1/v1"),
    ),
    (
        "agents[].key_env",
        "agents: [{name: shell, model: lab/m, base_url: 'http://h:1/v1', key_env: LAB_KEY}]",
        "/plan/settings/gateway/upstreams/0/key",
        || json!("${LAB_KEY}"),
    ),
    (
        "agents[].dialect",
        "agents: [{name: shell, model: lab/m, base_url: 'http://h:1', dialect: gemini}]",
        "/plan/settings/gateway/upstreams/0/dialect",
        || json!("gemini"),
    ),
];
