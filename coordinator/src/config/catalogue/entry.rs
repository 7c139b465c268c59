//! Entries of the catalogue.

use std::collections::BTreeMap;

use rollout_protocol::name;
use rollout_protocol::spec::agent::AgentKind;
use rollout_protocol::spec::gateway::ModelDialect;
use rollout_protocol::template::{Template, is_variable_name};
use serde::Deserialize;

use super::session::{SessionEntry, session_fault};

/// Functions for install scripts.
const INSTALL_LIBRARY: &str = include_str!("../../../agents/install.sh");

/// Directory below which agents are installed, each in a directory with its name.
const INSTALL_ROOT: &str = "/opt/rollout-agents";

/// An agent of the catalogue, as its TOML file has it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AgentEntry {
    /// Its name.
    pub name: String,
    /// Description, one line.
    pub summary: String,
    /// Address of its project.
    #[serde(default)]
    pub homepage: Option<String>,
    /// Version that is installed unless a job names another one.
    #[serde(default)]
    pub version: Option<String>,
    /// Whether the entry has never been run.
    #[serde(default)]
    pub untried: bool,
    /// Dialects of model servers that it speaks, the preferred one first; empty if it calls no model.
    #[serde(default)]
    pub dialects: Vec<ModelDialect>,
    /// Options of a job that its scripts read.
    #[serde(default)]
    pub accepts: Vec<AgentOption>,
    /// Where it leaves sessions and events of its own, below `/logs/agent`; patterns.
    #[serde(default)]
    pub sessions: Vec<String>,
    /// How these files count its model calls.
    #[serde(default)]
    pub session_calls: Option<SessionEntry>,
    /// Variables of its scripts.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Bash script that installs it, with the functions of `install.sh`.
    #[serde(default)]
    pub install: Option<String>,
    /// Bash script that attempts a task.
    pub execute: String,
}

/// An option of a job that scripts of an agent read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AgentOption {
    /// Further arguments, as the positional parameters of the execute script.
    Args,
    /// Reasoning effort, as `ROLLOUT_EFFORT`.
    Effort,
    /// System prompt, as `ROLLOUT_SYSTEM_PROMPT`.
    SystemPrompt,
    /// Most turns of an attempt, as `ROLLOUT_MAX_TURNS`.
    MaxTurns,
    /// Tool servers of a task over standard streams and streamable HTTP, from `ROLLOUT_MCP_CONFIG`.
    Mcp,
    /// Those with server-sent events.
    McpSse,
    /// Skills of a task, from `ROLLOUT_SKILLS_DIR`.
    Skills,
    /// Its conversation in the step before, which it continues if `ROLLOUT_RESUME` is set.
    Resume,
    /// An initial conversation of a task, from `ROLLOUT_CONVERSATION`.
    Trajectory,
}

impl AgentOption {
    /// The name used in entries and job files.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Args => "args",
            Self::Effort => "effort",
            Self::SystemPrompt => "system_prompt",
            Self::MaxTurns => "max_turns",
            Self::Mcp => "mcp",
            Self::McpSse => "mcp_sse",
            Self::Skills => "skills",
            Self::Resume => "resume",
            Self::Trajectory => "trajectory",
        }
    }
}

/// Why an entry is invalid.
#[derive(Debug, thiserror::Error)]
pub enum InvalidEntry {
    /// It is no TOML, or has wrong keys.
    #[error("{}", .0.message())]
    Toml(#[from] toml::de::Error),
    /// Its name cannot be used.
    #[error("`name` {0}")]
    Name(name::InvalidPathComponent),
    /// A variable's name.
    #[error("`env` has `{0}`, which is not a variable name")]
    Variable(String),
    /// A text that must not be empty.
    #[error("`{0}` is empty")]
    Empty(&'static str),
    /// Its table `session_calls`.
    #[error("cannot use `session_calls`: {0}")]
    Session(String),
}

/// The choices that a job makes for an agent of the catalogue.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct AgentChoices {
    /// Version to install.
    pub(crate) version: Option<String>,
    /// Further arguments.
    pub(crate) args: Vec<String>,
    /// Reasoning effort.
    pub(crate) effort: Option<String>,
    /// System prompt.
    pub(crate) system_prompt: Option<String>,
    /// Most turns of an attempt.
    pub(crate) max_turns: Option<String>,
}

impl AgentEntry {
    /// Reads an entry.
    ///
    /// # Errors
    /// [`InvalidEntry`].
    pub fn parse(text: &str) -> Result<Self, InvalidEntry> {
        let entry: Self = toml::from_str(text)?;
        name::check(&entry.name).map_err(InvalidEntry::Name)?;
        if let Some(wrong) = entry.env.keys().find(|name| !is_variable_name(name)) {
            return Err(InvalidEntry::Variable(wrong.clone()));
        }
        for (key, text) in [("summary", &entry.summary), ("execute", &entry.execute)] {
            if text.trim().is_empty() {
                return Err(InvalidEntry::Empty(key));
            }
        }
        let session = entry.session_calls.as_ref().map(SessionEntry::format);
        match session.as_ref().and_then(session_fault) {
            Some(fault) => Err(InvalidEntry::Session(fault)),
            None => Ok(entry),
        }
    }

    /// Whether its scripts read an option.
    pub fn accepts(&self, option: AgentOption) -> bool {
        self.accepts.contains(&option)
    }

    /// Directory where it is installed.
    pub fn directory(&self) -> String {
        format!("{INSTALL_ROOT}/{}", self.name)
    }

    /// The agent with its scripts, without choices of a job.
    pub fn scripts(&self) -> AgentKind {
        self.kind(&AgentChoices::default())
    }

    /// The agent with its scripts.
    pub(crate) fn kind(&self, choices: &AgentChoices) -> AgentKind {
        let directory = quoted(&self.directory());
        let header = format!("AGENT_DIR={directory}\n");
        let install = self.install.as_ref().map(|script| {
            format!("set -euo pipefail\n{header}{INSTALL_LIBRARY}\n{}\n", script.trim())
        });
        let mut execute = format!("{header}PATH=\"$AGENT_DIR/bin:$PATH\"\n");
        if !choices.args.is_empty() {
            let args: Vec<_> = choices.args.iter().map(|arg| quoted(arg)).collect();
            execute.push_str(&format!("set -- {}\n", args.join(" ")));
        }
        execute.push_str(self.execute.trim());
        execute.push('\n');
        AgentKind::Script { install, execute: Some(execute) }
    }

    /// The variables of its scripts that follow from the choices of a job.
    pub(crate) fn variables(&self, choices: &AgentChoices) -> BTreeMap<String, Template> {
        let own = self.env.iter().map(|(name, value)| (name.as_str(), Some(value)));
        let version = choices.version.as_ref().or(self.version.as_ref());
        let chosen = [
            ("ROLLOUT_AGENT_VERSION", version),
            ("ROLLOUT_EFFORT", choices.effort.as_ref()),
            ("ROLLOUT_SYSTEM_PROMPT", choices.system_prompt.as_ref()),
            ("ROLLOUT_MAX_TURNS", choices.max_turns.as_ref()),
        ];
        let set = own.chain(chosen).filter_map(|(name, value)| Some((name, value?)));
        set.map(|(name, value)| (name.to_owned(), Template::literal(value))).collect()
    }
}

/// A text as one word of a shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> AgentEntry {
        AgentEntry::parse(
            "name = 'a'\nsummary = 's'\nversion = '1'\ninstall = 'x'\nexecute = 'run \"$@\"'\n\
             env = { COST = '$5' }",
        )
        .expect("an entry")
    }

    #[test]
    fn arguments_reach_the_script_as_they_are() {
        let args = vec!["it's".to_owned(), "$HOME *".to_owned()];
        let AgentKind::Script { execute: Some(script), install: Some(install) } =
            entry().kind(&AgentChoices { args, ..AgentChoices::default() })
        else {
            panic!("scripts");
        };
        let script = script.replace("run ", "printf '%s\\n' ");
        let shown = std::process::Command::new("bash").args(["-c", &script]).output();
        let shown = shown.expect("bash").stdout;
        assert_eq!(String::from_utf8_lossy(&shown), "it's\n$HOME *\n");
        assert!(install.starts_with("set -euo pipefail\nAGENT_DIR='/opt/rollout-agents/a'\n"));
        assert!(install.ends_with("\nx\n"), "{install}");
    }

    #[test]
    fn variables_have_the_version_and_values_as_they_are() {
        let variables = entry().variables(&AgentChoices::default());
        let value = |name: &str| variables[name].expand(|_| None).expect("no variable");
        assert_eq!((value("ROLLOUT_AGENT_VERSION"), value("COST")), ("1".into(), "$5".into()));
        assert!(!variables.contains_key("ROLLOUT_EFFORT"));
        let choices = AgentChoices { version: Some("2".into()), ..AgentChoices::default() };
        let variables = entry().variables(&choices);
        assert_eq!(variables["ROLLOUT_AGENT_VERSION"].as_str(), "2");
    }

    #[test]
    fn invalid_entry_names_its_error() {
        let session = |text: &str| {
            let tokens = "input_tokens = ['/i']\noutput_tokens = ['/o']";
            format!("name = 'a'\nsummary = 's'\nexecute = 'x'\n[session_calls]\n{text}\n{tokens}")
        };
        for (text, expected) in [
            ("name = 'a/b'\nsummary = 's'\nexecute = 'x'", "`name` "),
            ("name = 'a'\nsummary = 's'\nexecute = ' '", "`execute` is empty"),
            ("name = 'a'\nsummary = 's'\nexecute = 'x'\nenv = {'1' = 'x'}", "`env` has `1`"),
            ("name = 'a'\nsummary = 's'", "missing field `execute`"),
            (&session("files = 'a/{'"), "cannot use `session_calls`: `files` is no pattern"),
            (
                &session("files = 'a'\nlists = ['m']"),
                "cannot use `session_calls`: `m`, which does not begin with `/`",
            ),
            (&session("files = 'a'\nids = '/m'"), "unknown field `ids`"),
            ("name = 'a'\nsummary = 's'\nexecute = 'x'\ndialects = ['x']", "unknown variant `x`"),
        ] {
            let error = AgentEntry::parse(text).expect_err(text).to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
