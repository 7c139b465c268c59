//! Where an agent of a job comes from: built-in, its own scripts, or the catalogue.

use std::collections::BTreeMap;

use rollout_protocol::spec::agent::{AgentKind, SessionFormat, ShellSpec};
use rollout_protocol::spec::gateway::ModelDialect;
use rollout_protocol::template::Template;

use super::super::catalogue::{
    AgentCatalogue, AgentChoices, AgentEntry, AgentOption, SessionEntry,
};
use super::super::diagnostics::{ErrorKind, nearest};
use super::super::reader::{Field, Fields};
use super::agent_tasks::TaskSupport;
use super::agents::AgentKeys;
use super::built_in::{BUILT_IN_AGENTS, BuiltInAgent};
use super::harness;

/// The fields with an agent's own scripts.
pub(super) struct Scripts<'a> {
    pub(super) install: Field<'a>,
    pub(super) execute: Field<'a>,
    pub(super) harness: Field<'a>,
}

impl<'a> Scripts<'a> {
    fn all(&self) -> [&Field<'a>; 3] {
        [&self.install, &self.execute, &self.harness]
    }
}

/// The options of jobs that agents of the catalogue may read.
const OPTIONS_OF_ENTRIES: [AgentOption; 4] =
    [AgentOption::Args, AgentOption::Effort, AgentOption::SystemPrompt, AgentOption::MaxTurns];

/// The fields with options of agents that the job does not define itself.
pub(super) struct OptionFields<'a> {
    pub(super) agent: Field<'a>,
    version: Field<'a>,
    args: Field<'a>,
    effort: Field<'a>,
    system_prompt: Field<'a>,
    max_turns: Field<'a>,
    command_timeout_sec: Field<'a>,
}

impl<'a> OptionFields<'a> {
    pub(super) fn take(fields: &mut Fields<'a>) -> Self {
        Self {
            agent: fields.take(AgentKeys::agent),
            version: fields.take(AgentKeys::version),
            args: fields.take(AgentKeys::args),
            effort: fields.take(AgentKeys::effort),
            system_prompt: fields.take(AgentKeys::system_prompt),
            max_turns: fields.take(AgentKeys::max_turns),
            command_timeout_sec: fields.take(AgentKeys::command_timeout_sec),
        }
    }

    /// Rejects the options that are present, except `accepted`.
    fn reject_others(&self, who: &str, accepted: &[&str]) {
        let options = [
            ("version", &self.version),
            ("args", &self.args),
            ("effort", &self.effort),
            ("system_prompt", &self.system_prompt),
            ("max_turns", &self.max_turns),
            ("command_timeout_sec", &self.command_timeout_sec),
        ];
        for (name, field) in options {
            if field.is_present() && !accepted.contains(&name) {
                let expected = match accepted {
                    [] => "none of the options of other agents".to_owned(),
                    accepted => format!("one of its options {}", accepted.join(", ")),
                };
                field.reject(
                    ErrorKind::Conflict,
                    format!("an option that {who} ignores"),
                    expected,
                );
            }
        }
    }
}

/// Where an agent comes from.
pub(super) enum AgentSource<'a> {
    BuiltIn(&'static BuiltInAgent),
    OwnScripts,
    Catalogue { entry: &'a AgentEntry, version: Option<String> },
}

/// An agent without its model.
pub(super) struct Definition {
    pub(super) kind: AgentKind,
    /// Dialects that it speaks, the preferred one first.
    pub(super) dialects: Vec<ModelDialect>,
    pub(super) needs_model: bool,
    /// Variables of its scripts.
    pub(super) variables: BTreeMap<String, Template>,
    /// Whether its install script may run once for all trials with an image.
    pub(super) install_once: bool,
    /// Parts of tasks that it can use.
    pub(super) task_support: TaskSupport,
    /// How its session files count its model calls.
    pub(super) session: Option<SessionFormat>,
}

impl<'a> AgentSource<'a> {
    /// Finds the source of the agent called `name`; `None` if there is none, which is recorded.
    pub(super) fn find(
        item: &Field<'_>,
        name: Option<&str>,
        scripts: &Scripts<'_>,
        catalogue: &'a AgentCatalogue,
    ) -> Option<Self> {
        let has_scripts = scripts.all().iter().any(|field| field.is_present());
        if let Some(built_in) = name.and_then(BuiltInAgent::find) {
            for script in scripts.all().into_iter().filter(|script| script.is_present()) {
                script.reject_with_hint(
                    ErrorKind::Conflict,
                    format!("a script for the built-in agent `{}`", built_in.name),
                    "no script",
                    "give the agent another name to use your own scripts",
                );
            }
            return Some(Self::BuiltIn(built_in));
        }
        if has_scripts {
            return Some(Self::OwnScripts);
        }
        Self::find_catalogued(
            item,
            name?,
            catalogue,
            "an `execute` or `install` script, a `harness`, or ",
        )
    }

    /// Finds the agent called `name` among those that need no scripts in the file; `None` if there is
    /// none, which is recorded. `others` are other ways to define an agent, for messages.
    pub(super) fn find_catalogued(
        item: &Field<'_>,
        name: &str,
        catalogue: &'a AgentCatalogue,
        others: &str,
    ) -> Option<Self> {
        if let Some(built_in) = BuiltInAgent::find(name) {
            return Some(Self::BuiltIn(built_in));
        }
        let (plain, version) = match name.split_once('@') {
            Some((plain, version)) => (plain, Some(version.to_owned())),
            None => (name, None),
        };
        if let Some(entry) = catalogue.find(plain) {
            return Some(Self::Catalogue { entry, version });
        }
        reject_unknown(item, plain, catalogue, others);
        None
    }

    /// Reads the rest of the agent; errors are recorded.
    pub(super) fn define(
        self,
        item: &Field<'_>,
        scripts: Option<&Scripts<'_>>,
        options: &OptionFields<'_>,
    ) -> Option<Definition> {
        let plain = |kind, dialects: &[ModelDialect], needs_model| Definition {
            kind,
            dialects: dialects.to_vec(),
            needs_model,
            variables: BTreeMap::new(),
            install_once: false,
            task_support: TaskSupport::default(),
            session: None,
        };
        match self {
            Self::BuiltIn(agent) => {
                options.reject_others(&format!("the agent `{}`", agent.name), agent.options);
                let kind = match agent.name {
                    "oracle" => AgentKind::Oracle,
                    "nop" => AgentKind::Nop,
                    _ => AgentKind::Shell(shell(options)),
                };
                Some(plain(kind, agent.dialects, !agent.dialects.is_empty()))
            }
            Self::OwnScripts => {
                options.reject_others("an agent with scripts of its own", &[]);
                let kind = own_scripts(scripts?)?;
                let all = [ModelDialect::Openai, ModelDialect::Anthropic, ModelDialect::Gemini];
                Some(plain(kind, &all, false))
            }
            Self::Catalogue { entry, version } => catalogued(item, entry, version, options),
        }
    }
}

fn max_turns(options: &OptionFields<'_>) -> Option<u32> {
    let turns = options.max_turns.integer(&(1..=100_000));
    turns.and_then(|turns| u32::try_from(turns).ok())
}

fn shell(options: &OptionFields<'_>) -> ShellSpec {
    let default = ShellSpec::default();
    let limit = "a number of seconds above 0, at most 86400";
    let command = options.command_timeout_sec.number(limit, |sec| sec > 0.0 && sec <= 86400.0);
    ShellSpec {
        max_turns: max_turns(options).unwrap_or(default.max_turns),
        command_sec: command.unwrap_or(default.command_sec),
        system_prompt: options.system_prompt.non_empty_string(),
    }
}

fn own_scripts(scripts: &Scripts<'_>) -> Option<AgentKind> {
    let Scripts { install, execute, harness } = scripts;
    if harness.is_present() {
        return harness::read(harness, install, execute)
            .map(|spec| AgentKind::Harness(Box::new(spec)));
    }
    let (install, execute) = (install.non_empty_string(), execute.non_empty_string());
    Some(AgentKind::Script { install, execute })
}

fn catalogued(
    item: &Field<'_>,
    entry: &AgentEntry,
    version: Option<String>,
    options: &OptionFields<'_>,
) -> Option<Definition> {
    let mut accepted: Vec<_> = OPTIONS_OF_ENTRIES
        .into_iter()
        .filter(|option| entry.accepts(*option))
        .map(AgentOption::as_str)
        .collect();
    if entry.version.is_some() {
        accepted.push("version");
    }
    options.reject_others(&format!("the agent `{}`", entry.name), &accepted);
    if version.is_some() && (entry.version.is_none() || options.version.is_present()) {
        let expected = if entry.version.is_none() { "no version" } else { "one version" };
        item.reject(ErrorKind::Conflict, "a version after `@`", expected);
    }
    let args = options.args.items().unwrap_or_default();
    let choices = AgentChoices {
        version: version.or_else(|| options.version.text()),
        args: args.iter().filter_map(Field::text).collect(),
        effort: options.effort.text(),
        system_prompt: options.system_prompt.non_empty_string(),
        max_turns: max_turns(options).map(|turns| turns.to_string()),
    };
    Some(Definition {
        kind: entry.kind(&choices),
        dialects: entry.dialects.clone(),
        needs_model: !entry.dialects.is_empty(),
        variables: entry.variables(&choices),
        install_once: entry.install.is_some(),
        task_support: TaskSupport::of_entry(entry),
        session: entry.session_calls.as_ref().map(SessionEntry::format),
    })
}

fn reject_unknown(item: &Field<'_>, name: &str, catalogue: &AgentCatalogue, others: &str) {
    let catalogued = catalogue.entries().map(|entry| entry.name.as_str());
    let known: Vec<&str> =
        BUILT_IN_AGENTS.iter().map(|agent| agent.name).chain(catalogued).collect();
    let found = format!("no agent with the name `{name}`, and no scripts");
    let expected = format!("{others}one of {}", known.join(", "));
    match nearest(name, known.iter().copied()) {
        Some(near) => {
            let hint = format!("did you mean `{near}`?");
            item.reject_with_hint(ErrorKind::MissingKey, found, expected, hint);
        }
        None => item.reject(ErrorKind::MissingKey, found, expected),
    }
}
