//! Constructor's arguments of Harbor's agents, as options of the agents of the catalogue.

use super::super::diagnostics::ErrorKind;
use super::super::location::SourceLocation;
use super::super::reader::join;
use super::super::value::{ConfigEntry, ConfigNode, ConfigValue};
use super::{HarborKey, Translation, text};

/// Agents of the catalogue that have another name in Harbor, with that name first.
const ALIASES: [(&str, &str); 2] = [("cline-cli", "cline"), ("qwen-coder", "qwen-code")];

/// Arguments that have a key here.
const KEYS: [(&str, HarborKey); 4] = [
    ("reasoning_effort", HarborKey::Named("effort")),
    ("version", HarborKey::Same),
    ("max_turns", HarborKey::Same),
    ("append_system_prompt", HarborKey::Named("system_prompt")),
];

/// Arguments of an agent that Harbor gives its program as flags, which `args` are here.
const FLAGS: [(&str, &str, &str); 9] = [
    ("aider", "map_tokens", "--map-tokens"),
    ("aider", "test_cmd", "--test-cmd"),
    ("aider", "thinking_tokens", "--thinking-tokens"),
    ("claude-code", "allowed_tools", "--allowedTools"),
    ("claude-code", "disallowed_tools", "--disallowedTools"),
    ("claude-code", "fallback_model", "--fallback-model"),
    ("claude-code", "max_budget_usd", "--max-budget-usd"),
    ("claude-code", "thinking_display", "--thinking-display"),
    ("mini-swe-agent", "cost_limit", "--cost-limit"),
];

/// The name in the catalogue of an agent of Harbor, if it is another one.
pub(super) fn catalogued_name(of_harbor: &str) -> Option<&'static str> {
    ALIASES.iter().find(|(name, _)| *name == of_harbor).map(|(_, here)| *here)
}

impl Translation<'_> {
    /// The keys of an agent in place of its arguments. The reader of the agent names the keys that it does
    /// not have.
    pub(super) fn options(&mut self, node: ConfigNode, at: &str, agent: &str) -> Vec<ConfigEntry> {
        let line = node.line;
        let entries = self.table(node, at, &KEYS, |_, entry, _| Some(entry));
        let here = KEYS.map(|(name, known)| match known {
            HarborKey::Named(here) => here,
            _ => name,
        });
        let (mut known, others): (Vec<_>, Vec<_>) =
            entries.into_iter().partition(|entry| here.contains(&entry.key.as_str()));
        let mut args = Vec::new();
        let is_set = |entry: &ConfigEntry| !matches!(entry.node.value, ConfigValue::Null);
        for entry in others.into_iter().filter(is_set) {
            match flag(agent, &entry) {
                Some(words) => args.extend(words.map(|value| ConfigNode { line, value })),
                None => self.refuse_argument(&entry, at, agent),
            }
        }
        if !args.is_empty() {
            let node = ConfigNode { line, value: ConfigValue::Sequence(args) };
            known.push(ConfigEntry { key: "args".to_owned(), line, node });
        }
        known
    }

    fn refuse_argument(&mut self, entry: &ConfigEntry, at: &str, agent: &str) {
        let at = join(at, &entry.key);
        if flag_of(agent, &entry.key).is_some() {
            // Harbor reads no other value either.
            let spot = SourceLocation { key: at, line: Some(entry.line) };
            let (kind, found) = (ErrorKind::WrongType, entry.node.describe());
            self.problems.error(spot.error(self.file, kind, found, "a text or a number"));
            return;
        }
        let flags = FLAGS.iter().filter(|(of, ..)| *of == agent).map(|(_, name, _)| *name);
        let names = KEYS.iter().map(|(name, _)| *name).chain(flags);
        let names: Vec<_> = names.map(|name| format!("`{name}`")).collect();
        let expected = format!("one of {}", names.join(", "));
        self.refuse(&at, entry.line, &entry.node, &expected);
    }
}

/// The flag of an agent's program for an argument, if it is one.
fn flag_of(agent: &str, argument: &str) -> Option<&'static str> {
    let known = FLAGS.iter().find(|(of, name, _)| *of == agent && *name == argument)?;
    Some(known.2)
}

/// The words that an argument of an agent is for its program.
fn flag(agent: &str, entry: &ConfigEntry) -> Option<[ConfigValue; 2]> {
    let flag = flag_of(agent, &entry.key)?;
    match &entry.node.value {
        ConfigValue::String(value)
        | ConfigValue::Integer { text: value, .. }
        | ConfigValue::Float { text: value, .. } => Some([text(flag), text(value)]),
        _ => None,
    }
}
