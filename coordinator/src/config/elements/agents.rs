//! `agents` of a job file.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use bytes::Bytes;
use rollout_protocol::blob::{BlobRef, MediaType};
use rollout_protocol::limits::AGENTS_PER_JOB;
use rollout_protocol::name::fold_case;
use rollout_protocol::spec::agent::{
    AgentKind, AgentLimits, AgentModel, AgentSpec, AgentTaskOptions, SessionFormat,
};

use super::super::catalogue::AgentCatalogue;
use super::super::diagnostics::ErrorKind;
use super::super::location::SourceLocation;
use super::super::reader::Field;
use super::super::skill_dirs::PackedSkill;
use super::agent_model::{AgentModelChoice, ModelFields};
use super::agent_source::{AgentSource, Definition, OptionFields, Scripts};
use super::agent_tasks::TaskOptionFields;
use super::gateway::GatewayConfig;
use super::timeouts::{TimeoutRules, read_optional};
use super::variables::{self, Variable};
use super::{harness, names, session};

keys! {
    /// The keys of an agent.
    pub(crate) table AgentKeys {
        name: Value("text"), "required",
            "`oracle`, `nop`, `shell`, an agent of the catalogue, or any other name for scripts.";
        agent: Value("text"), "`name`",
            "Agent of the catalogue, or `shell`, if `name` is another one; `NAME@VERSION`.";
        description: Value("text"), "", "Description, informational.";
        model: Value("PROVIDER/MODEL"), "none", "Model that it uses, through the gateway.";
        base_url: Value("text"), "that of the provider",
            "Address of a model server for `model`, as `url` of `gateway.upstreams[]`.";
        key_env: Value("name"), "none", "Host variable with the key of the server at `base_url`.";
        dialect: Value("openai|anthropic|gemini"), "the first that the agent speaks",
            "Dialect of the server at `base_url`.";
        version: Value("text"), "that of the catalogue", "Version of an agent of the catalogue.";
        args: Value("list of text"), "none", "Further arguments of an agent of the catalogue.";
        effort: Value("text"), "none", "Reasoning effort of an agent of the catalogue.";
        system_prompt: Value("text"), "none",
            "System prompt of `shell`, or addition to that of an agent of the catalogue.";
        max_turns: Value("integer"), "shell: 100",
            "Most model calls of a step of `shell`, or turns of an agent of the catalogue.";
        command_timeout_sec: Value("number"), "300", "Time limit of each command of `shell`, s.";
        install: Value("script"), "none", "Bash script, run before the attempt.";
        execute: Value("script"), "none", "Bash script of the attempt.";
        install_once: Value("boolean"), "of the catalogue, else false",
            "Whether `install` needs only the image: it may run once for all trials of a host, as root.";
        harness: Value("table"), "none",
            "Attempts by a command that follows the contract of a harness, instead of `execute`.",
            "harness" => harness::HarnessKeys::ALL;
        env: Value("table NAME = text"), "", "Variables of its scripts; `${NAME:-default}`.";
        extra_allowed_hosts: Value("list of hosts"), "none",
            "Hosts that it may reach in tasks without network or with an allowlist, as `allowed_hosts` of tasks.";
        resume_trajectory: Value("boolean"), "false",
            "Continue its conversation in the next step of a task instead of beginning a new one.";
        load_trajectory: HostFile("path", "put a `trajectory.json` into each task"), "that of the task",
            "File with a conversation that it continues in the first step of each task; relative to the file.";
        skills: HostFile("list of paths", "put the skills into the images of tasks, and name their directory in \
            `environment.skills_dir`"), "none",
            "Directories with skills for it, beside those of tasks: with a file SKILL.md, or of such directories; \
             relative to the file.";
        unsupported: Value("list of mcp|mcp_sse|skills|trajectory"), "of the catalogue, else none",
            "Features of tasks that its scripts cannot use: tasks that have them are unsupported.";
        session_calls: Value("table"), "of the catalogue, else none",
            "How its own session files count its model calls.",
            "session_calls" => session::SessionKeys::ALL;
        override_timeout_sec: Value("number"), "from the task",
            "Time limit of its execute script, s; 0 means unset.";
        max_timeout_sec: Value("number"), "none",
            "Ceiling of its execute script's time limit, s; 0 means unset.";
        override_setup_timeout_sec: Value("number"), "from the task",
            "Time limit of its install script, s; 0 means unset.";
    }
}

/// An agent as written in the job file.
#[derive(Debug, Clone, PartialEq)]
pub struct AgentConfig {
    /// Its name.
    pub name: String,
    /// Description, informational.
    pub description: Option<String>,
    /// Built-in agent or scripts.
    pub kind: AgentKind,
    /// Its variables.
    pub env: BTreeMap<String, Variable>,
    /// Its time limits, without the job's multipliers.
    pub limits: AgentLimits,
    /// Whether its install script may run once for all trials with an image.
    pub install_once: bool,
    /// Its model.
    pub model: Option<AgentModel>,
    /// Parts of tasks that it can use, and its options in them.
    pub task_options: AgentTaskOptions,
    /// The content of `load_trajectory`.
    pub trajectory: Option<Bytes>,
    /// The content of `skills`.
    pub skills: Vec<PackedSkill>,
    /// How its own session files count its model calls.
    pub session: Option<SessionFormat>,
}

/// An agent of a job.
#[derive(Debug, Clone, PartialEq)]
pub struct Agent {
    /// The spec that its trials run with.
    pub spec: AgentSpec,
    /// Description, informational.
    pub description: Option<String>,
    /// Its time limits as written, without the job's multipliers.
    pub unscaled_limits: AgentLimits,
    /// The same for each command of `shell`, seconds.
    pub unscaled_command_sec: Option<f64>,
    /// The conversation that it continues; its blob is in `spec`.
    pub trajectory: Option<Bytes>,
    /// The skills that the job gives to it; their blobs are in `spec`.
    pub skills: Vec<PackedSkill>,
}

impl Agent {
    /// Applies the job's multipliers to the agent's time limits.
    pub(crate) fn new(file: AgentConfig, rules: &TimeoutRules) -> Self {
        let limits = AgentLimits {
            install_sec: file.limits.install_sec.map(|limit| rules.setup(limit)),
            execute_sec: file.limits.execute_sec.map(|limit| rules.agent(limit)),
            execute_max_sec: file.limits.execute_max_sec.map(|limit| rules.agent(limit)),
        };
        let mut kind = file.kind;
        let mut unscaled_command_sec = None;
        if let AgentKind::Shell(shell) = &mut kind {
            unscaled_command_sec = Some(shell.command_sec);
            shell.command_sec = rules.agent(shell.command_sec);
        }
        let blob = |bytes: &Bytes| BlobRef::for_bytes(bytes, MediaType::Json);
        let trajectory = file.trajectory.as_ref().map(blob);
        let skills = file.skills.iter().map(PackedSkill::spec).collect();
        Self {
            spec: AgentSpec {
                name: file.name,
                kind,
                env: variables::templates(file.env),
                limits,
                install_once: file.install_once,
                model: file.model,
                task_options: AgentTaskOptions { trajectory, skills, ..file.task_options },
                session_calls: file.session.map(Box::new),
            },
            trajectory: file.trajectory,
            skills: file.skills,
            description: file.description,
            unscaled_limits: file.limits,
            unscaled_command_sec,
        }
    }
}

/// The agents, in the order of the file. The model servers that their models need are added to
/// `gateway`.
pub(crate) fn read(
    field: &Field<'_>,
    catalogue: &AgentCatalogue,
    gateway: &mut Option<GatewayConfig>,
    file: &Path,
) -> Vec<AgentConfig> {
    const EXPECTED: &str = "a list of at least one agent";
    if !field.required(EXPECTED) {
        return Vec::new();
    }
    let Some(items) = field.items() else { return Vec::new() };
    if items.is_empty() {
        field.reject(ErrorKind::BadValue, "an empty list", EXPECTED);
    }
    if items.len() > AGENTS_PER_JOB {
        let (found, most) = (format!("{} agents", items.len()), AGENTS_PER_JOB.to_string());
        field.reject(ErrorKind::BadValue, &found, format!("at most {most}"));
        return Vec::new();
    }
    let mut seen = HashMap::new();
    items.iter().filter_map(|item| agent(item, catalogue, gateway, file, &mut seen)).collect()
}

fn agent(
    item: &Field<'_>,
    catalogue: &AgentCatalogue,
    gateway: &mut Option<GatewayConfig>,
    file: &Path,
    seen: &mut HashMap<String, SourceLocation>,
) -> Option<AgentConfig> {
    let mut fields = item.mapping()?;
    let name_field = fields.take(AgentKeys::name);
    name_field.required(names::EXPECTED);
    let name = names::read(&name_field);
    if let Some(name) = &name {
        check_unique(name, &name_field, seen);
    }
    let description = fields.take(AgentKeys::description).text();
    let scripts = Scripts {
        install: fields.take(AgentKeys::install),
        execute: fields.take(AgentKeys::execute),
        harness: fields.take(AgentKeys::harness),
    };
    let options = OptionFields::take(&mut fields);
    let install_once_field = fields.take(AgentKeys::install_once);
    let named = options.agent.non_empty_string().or_else(|| name.clone());
    let source = AgentSource::find(item, named.as_deref(), &scripts, catalogue);
    let task_fields = TaskOptionFields::take(&mut fields);
    let session_field = fields.take(AgentKeys::session_calls);
    let definition = source.and_then(|source| source.define(item, Some(&scripts), &options));
    let model_fields = ModelFields::take(&mut fields);
    let mut env = variables::read(&fields.take(AgentKeys::env));
    let limits = AgentLimits {
        install_sec: read_optional(&fields.take(AgentKeys::override_setup_timeout_sec)),
        execute_sec: read_optional(&fields.take(AgentKeys::override_timeout_sec)),
        execute_max_sec: read_optional(&fields.take(AgentKeys::max_timeout_sec)),
    };
    fields.finish();
    let Definition { kind, dialects, needs_model, variables, install_once, task_support, session } =
        definition?;
    let session = session::read(&session_field, &kind).or(session);
    let task_options = task_fields.read(&kind, task_support);
    let trajectory = task_fields.trajectory(named.as_deref(), &kind, &task_options, file);
    let skills = task_fields.skills(named.as_deref(), &kind, &task_options, file);
    let model = model_fields.read(item, &dialects, needs_model, gateway)?;
    let location = name_field.location();
    let own = model.iter().flat_map(AgentModelChoice::variables);
    for (name, template) in variables.into_iter().chain(own) {
        // Variables of the job win.
        env.entry(name).or_insert(Variable { template, location: location.clone() });
    }
    let model = model.map(|choice| choice.model);
    if install_once_field.is_present()
        && !matches!(kind, AgentKind::Script { install: Some(_), .. })
    {
        let found = "`install_once` of an agent that installs nothing";
        install_once_field.reject(ErrorKind::Conflict, found, "an `install` script");
    }
    let install_once = install_once_field.bool().unwrap_or(install_once);
    Some(AgentConfig {
        name: name?,
        description,
        kind,
        env,
        limits,
        install_once,
        model,
        task_options,
        trajectory,
        skills,
        session,
    })
}

fn check_unique(name: &str, field: &Field<'_>, seen: &mut HashMap<String, SourceLocation>) {
    match seen.get(&fold_case(name)) {
        None => {
            seen.insert(fold_case(name), field.location());
        }
        Some(first) => {
            let found = format!("{}, also the name of {}", field.describe(), first.key);
            let expected = "names that differ in more than upper and lower case";
            field.reject(ErrorKind::DuplicateName, found, expected);
        }
    }
}

#[cfg(test)]
mod tests {
    use rollout_protocol::spec::agent::ShellSpec;

    use super::super::testing::{agents as read, read_field};
    use super::{Agent, AgentKind, AgentLimits, ErrorKind, TimeoutRules};

    #[test]
    fn agents_built_in_and_script_are_parsed() {
        let text = "[{name: oracle}, {name: nop}, {name: mine, execute: 'true', env: {A: 1}}]";
        let (agents, faults, _) = read_field(text, read);
        assert_eq!(faults, []);
        let kinds: Vec<_> = agents.into_iter().map(|a| a.kind).collect();
        let script = AgentKind::Script { install: None, execute: Some("true".to_owned()) };
        assert_eq!(kinds, [AgentKind::Oracle, AgentKind::Nop, script]);
    }

    #[test]
    fn agent_timeout_with_multiplier_is_scaled_once() {
        let text = "[{name: oracle, override_timeout_sec: 10, max_timeout_sec: 30, override_setup_timeout_sec: 0}]";
        let (agents, faults, _) = read_field(text, read);
        assert_eq!(faults, []);
        let rules = TimeoutRules { multiplier: 2.0, ..TimeoutRules::default() };
        let agent = Agent::new(agents[0].clone(), &rules);
        let limits = agent.spec.limits;
        assert_eq!(limits.install_sec, None);
        assert_eq!(limits.execute(Some(rules.agent(100.0))), Some(20.0), "the agent's own");
        let capped = AgentLimits { execute_sec: None, ..limits };
        assert_eq!(capped.execute(Some(rules.agent(100.0))), Some(60.0), "the task's, capped");
        assert_eq!(capped.execute(None), Some(60.0));
    }

    #[test]
    fn command_timeout_of_shell_follows_multiplier_of_agents() {
        let (agents, faults, _) = read_field("[{name: oracle}]", read);
        assert_eq!(faults, []);
        let mut file = agents[0].clone();
        file.kind = AgentKind::Shell(ShellSpec::default());
        let twice = TimeoutRules { multiplier: 2.0, ..TimeoutRules::default() };
        let half = TimeoutRules { agent_multiplier: Some(0.5), ..twice };
        for (rules, expected) in [(twice, 600.0), (half, 150.0)] {
            let agent = Agent::new(file.clone(), &rules);
            let AgentKind::Shell(shell) = agent.spec.kind else { panic!("it is `shell`") };
            // Documents of the job have the value as it was written.
            assert_eq!((shell.command_sec, agent.unscaled_command_sec), (expected, Some(300.0)));
        }
    }

    #[test]
    fn agent_config_errors_are_all_reported() {
        let text = "[{name: oracle, execute: x}, {name: Oracle}, {install: x}, {name: a/b, execute: ''}, {name: z, execute: 1}, 3, {name: nop, install_once: true}]";
        assert_eq!(
            read_field(text, read).1,
            [
                ("x[0].execute".to_owned(), ErrorKind::Conflict),
                ("x[1].name".to_owned(), ErrorKind::DuplicateName),
                ("x[1]".to_owned(), ErrorKind::MissingKey),
                ("x[2].name".to_owned(), ErrorKind::MissingKey),
                ("x[3].name".to_owned(), ErrorKind::BadValue),
                ("x[3].execute".to_owned(), ErrorKind::BadValue),
                ("x[4].execute".to_owned(), ErrorKind::WrongType),
                ("x[5]".to_owned(), ErrorKind::WrongType),
                ("x[6].install_once".to_owned(), ErrorKind::Conflict),
            ]
        );
        assert_eq!(read_field("[]", read).1, [("x".to_owned(), ErrorKind::BadValue)]);
        assert_eq!(read_field("~", read).1, [("x".to_owned(), ErrorKind::MissingKey)]);
    }
}
