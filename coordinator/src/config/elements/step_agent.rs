//! An agent that does the work of a command of a search.

use rollout_protocol::spec::agent::{AgentLimits, AgentSpec, AgentTaskOptions};

use super::super::catalogue::AgentCatalogue;
use super::super::diagnostics::ErrorKind;
use super::super::keys::Key;
use super::super::reader::{Field, Fields};
use super::agent_model::{AgentModelChoice, ModelFields};
use super::agent_source::{AgentSource, Definition, OptionFields};
use super::gateway::GatewayConfig;
use super::timeouts::read_optional;

keys! {
    /// The keys of an agent of a command.
    pub(crate) table StepAgentKeys {
        agent: Value("text"), "none",
            "`shell`, or an agent of the catalogue, which does the work instead of `run`; `NAME@VERSION`.";
        model: Value("PROVIDER/MODEL"), "none", "Model that the agent uses, through the gateway.";
        base_url: Value("text"), "that of the provider",
            "Address of a model server for `model`, as `url` of `gateway.upstreams[]`.";
        key_env: Value("name"), "none", "Host variable with the key of the server at `base_url`.";
        dialect: Value("openai|anthropic|gemini"), "the first that the agent speaks",
            "Dialect of the server at `base_url`.";
        prompt: HostFile("path", "write it in `prompt_text`"), "the shipped one",
            "Template of the agent's prompt; relative to the file.";
        prompt_text: Value("text"), "the shipped one", "The same, as a text.";
        version: Value("text"), "that of the catalogue", "Version of an agent of the catalogue.";
        args: Value("list of text"), "none", "Further arguments of an agent of the catalogue.";
        effort: Value("text"), "none", "Reasoning effort of an agent of the catalogue.";
        system_prompt: Value("text"), "none",
            "System prompt of `shell`, or addition to that of an agent of the catalogue.";
        max_turns: Value("integer"), "shell: 100",
            "Most model calls of `shell`, or turns of an agent of the catalogue.";
        command_timeout_sec: Value("number"), "300", "Time limit of each command of `shell`, s.";
        install_timeout_sec: Value("number"), "600", "Time limit of the agent's install script, s.";
    }
}

/// The keys that need an agent, but for its prompt.
const OPTIONS: [Key; 11] = [
    StepAgentKeys::model,
    StepAgentKeys::base_url,
    StepAgentKeys::key_env,
    StepAgentKeys::dialect,
    StepAgentKeys::version,
    StepAgentKeys::args,
    StepAgentKeys::effort,
    StepAgentKeys::system_prompt,
    StepAgentKeys::max_turns,
    StepAgentKeys::command_timeout_sec,
    StepAgentKeys::install_timeout_sec,
];

/// Takes the fields of the keys that need an agent, but for its prompt, with their names.
pub(crate) fn take_options<'a>(fields: &mut Fields<'a>) -> Vec<(&'static str, Field<'a>)> {
    OPTIONS.iter().map(|key| (key.name, fields.take(*key))).collect()
}

/// Agents that cannot do the work of a search.
const TASK_AGENTS: &[&str] = &["oracle", "nop"];

/// Reads the agent of a command, whose keys must be there. The model server that it needs is added to
/// `gateway`. `None` if there is an error, which is recorded.
pub(crate) fn read(
    item: &Field<'_>,
    fields: &mut Fields<'_>,
    catalogue: &AgentCatalogue,
    gateway: &mut Option<GatewayConfig>,
) -> Option<AgentSpec> {
    let options = OptionFields::take(fields);
    let model_fields = ModelFields::take(fields);
    let install_sec = read_optional(&fields.take(StepAgentKeys::install_timeout_sec));
    let name = options.agent.non_empty_string()?;
    if TASK_AGENTS.contains(&name.as_str()) {
        let expected = "`shell` or an agent of the catalogue";
        let found = format!("`{name}`, which only solves tasks");
        options.agent.reject(ErrorKind::BadValue, found, expected);
        return None;
    }
    let source = AgentSource::find_catalogued(&options.agent, &name, catalogue, "")?;
    let definition = source.define(item, None, &options)?;
    let Definition { kind, dialects, needs_model, variables, install_once, .. } = definition;
    let model = model_fields.read(item, &dialects, needs_model, gateway)?;
    let mut env = variables;
    env.extend(model.iter().flat_map(AgentModelChoice::variables));
    Some(AgentSpec {
        name,
        kind,
        env,
        limits: AgentLimits { install_sec, ..AgentLimits::default() },
        install_once,
        task_options: AgentTaskOptions::default(),
        session_calls: None,
        model: model.map(|choice| choice.model),
    })
}
