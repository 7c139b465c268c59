//! `agents` of a job file.

use std::collections::{BTreeMap, HashMap};

use rollout_protocol::name::fold_case;
use rollout_protocol::spec::agent::{AgentKind, AgentLimits, AgentSpec};

use super::super::diagnostics::ErrorKind;
use super::super::location::SourceLocation;
use super::super::reader::Field;
use super::timeouts::{TimeoutRules, read_optional};
use super::variables::{self, Variable};
use super::{harness, names};

keys! {
    /// The keys of an agent.
    pub(crate) table AgentKeys {
        name: "text", "required", "`oracle`, `nop`, or any other name for scripts.";
        description: "text", "", "Description, informational.";
        install: "script", "none", "Bash script, run before the attempt.";
        execute: "script", "none", "Bash script of the attempt.";
        harness: "table", "none",
            "Attempts by a command that follows the contract of a harness, instead of `execute`.",
            "harness" => harness::HarnessKeys::ALL;
        env: "table NAME = text", "", "Variables of its scripts; `${NAME:-default}`.";
        override_timeout_sec: "number", "from the task",
            "Time limit of its execute script, s; 0 means unset.";
        max_timeout_sec: "number", "none",
            "Ceiling of its execute script's time limit, s; 0 means unset.";
        override_setup_timeout_sec: "number", "from the task",
            "Time limit of its install script, s; 0 means unset.";
    }
}

/// The built-in agents, which need no scripts, by name.
const BUILT_IN_AGENTS: &[(&str, AgentKind)] =
    &[("oracle", AgentKind::Oracle), ("nop", AgentKind::Nop)];

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
}

impl Agent {
    /// Applies the job's multipliers to the agent's time limits.
    pub(crate) fn new(file: AgentConfig, rules: &TimeoutRules) -> Self {
        let limits = AgentLimits {
            install_sec: file.limits.install_sec.map(|limit| rules.setup(limit)),
            execute_sec: file.limits.execute_sec.map(|limit| rules.agent(limit)),
            execute_max_sec: file.limits.execute_max_sec.map(|limit| rules.agent(limit)),
        };
        Self {
            spec: AgentSpec {
                name: file.name,
                kind: file.kind,
                env: variables::templates(file.env),
                limits,
            },
            description: file.description,
            unscaled_limits: file.limits,
        }
    }
}

/// The agents, in the order of the file.
pub(crate) fn read(field: &Field<'_>) -> Vec<AgentConfig> {
    const EXPECTED: &str = "a list of at least one agent";
    if !field.required(EXPECTED) {
        return Vec::new();
    }
    let Some(items) = field.items() else { return Vec::new() };
    if items.is_empty() {
        field.reject(ErrorKind::BadValue, "an empty list", EXPECTED);
    }
    let mut seen = HashMap::new();
    items.iter().filter_map(|item| agent(item, &mut seen)).collect()
}

fn agent(item: &Field<'_>, seen: &mut HashMap<String, SourceLocation>) -> Option<AgentConfig> {
    let mut fields = item.mapping()?;
    let name_field = fields.take(AgentKeys::name);
    name_field.required(names::EXPECTED);
    let name = names::read(&name_field);
    if let Some(name) = &name {
        check_unique(name, &name_field, seen);
    }
    let description = fields.take(AgentKeys::description).text();
    let install = fields.take(AgentKeys::install);
    let execute = fields.take(AgentKeys::execute);
    let harness = fields.take(AgentKeys::harness);
    let kind = match name.as_deref().and_then(find_built_in) {
        Some((name, kind)) => built_in(name, kind.clone(), &[install, execute, harness]),
        None if harness.is_present() => harness::read(&harness, &install, &execute)
            .map(|spec| AgentKind::Harness(Box::new(spec))),
        None => Some(script(item, name.as_deref(), &install, &execute)),
    };
    let env = variables::read(&fields.take(AgentKeys::env));
    let limits = AgentLimits {
        install_sec: read_optional(&fields.take(AgentKeys::override_setup_timeout_sec)),
        execute_sec: read_optional(&fields.take(AgentKeys::override_timeout_sec)),
        execute_max_sec: read_optional(&fields.take(AgentKeys::max_timeout_sec)),
    };
    fields.finish();
    Some(AgentConfig { name: name?, description, kind: kind?, env, limits })
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

/// Names of the built-in agents.
pub(crate) fn built_in_names() -> impl Iterator<Item = &'static str> {
    BUILT_IN_AGENTS.iter().map(|(name, _)| *name)
}

fn find_built_in(name: &str) -> Option<&'static (&'static str, AgentKind)> {
    BUILT_IN_AGENTS.iter().find(|(built_in, _)| *built_in == name)
}

fn built_in(name: &str, kind: AgentKind, scripts: &[Field<'_>]) -> Option<AgentKind> {
    for script in scripts.iter().filter(|script| script.is_present()) {
        let found = format!("a script for the built-in agent `{name}`");
        script.reject_with_hint(
            ErrorKind::Conflict,
            found,
            "no script",
            "give the agent another name to use your own scripts",
        );
    }
    Some(kind)
}

fn script(
    item: &Field<'_>,
    name: Option<&str>,
    install: &Field<'_>,
    execute: &Field<'_>,
) -> AgentKind {
    if !install.is_present() && !execute.is_present() {
        let expected = "an `execute` or `install` script, or a `harness`";
        match name.and_then(|name| find_built_in(&name.to_lowercase())) {
            Some((built_in, _)) => item.reject_with_hint(
                ErrorKind::MissingKey,
                "neither",
                expected,
                format!("the built-in agent is spelled `{built_in}`"),
            ),
            None => item.reject(ErrorKind::MissingKey, "neither", expected),
        }
    }
    AgentKind::Script { install: install.non_empty_string(), execute: execute.non_empty_string() }
}

#[cfg(test)]
mod tests {
    use super::super::testing::read_field;
    use super::*;

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
    fn agent_config_errors_are_all_reported() {
        let text = "[{name: oracle, execute: x}, {name: Oracle}, {install: x}, {name: a/b, execute: ''}, {name: z, execute: 1}, 3]";
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
            ]
        );
        assert_eq!(read_field("[]", read).1, [("x".to_owned(), ErrorKind::BadValue)]);
        assert_eq!(read_field("~", read).1, [("x".to_owned(), ErrorKind::MissingKey)]);
    }
}
