//! Job files of Harbor, translated into job files of this program before they are read: one reader
//! checks both. A key without a counterpart is dropped at its default and refused otherwise.

mod options;
mod orchestrator;
mod tables;

#[cfg(test)]
mod tests;

use std::path::Path;

use self::options::catalogued_name;
use self::tables::{
    AGENT, DATASET, DECISIVE, ENVIRONMENT, HARBOR_ONLY, METRIC, RETRY, ROLLOUT_ONLY, TASK, TOP,
    VERIFIER,
};
use super::diagnostics::{ConfigWarning, Diagnostics, ErrorKind};
use super::host_path::HostAccess;
use super::location::SourceLocation;
use super::reader::join;
use super::value::{ConfigEntry, ConfigNode, ConfigValue};

/// Trials at a time in a file that does not say.
const DEFAULT_CONCURRENCY: i64 = 4;

/// Tries of a trial in a file that does not say.
const DEFAULT_TRIES: i64 = 1;

/// The first and the longest wait before a further try, ms, in a file that does not say.
const DEFAULT_WAITS_MS: [i64; 2] = [1000, 60_000];

/// The factor from one wait to the next in a file that does not say.
const DEFAULT_MULTIPLIER: f64 = 1.0;

/// Exceptions of Harbor after which its infrastructure is at fault, as failures that a run repeats.
const INFRASTRUCTURE: [&str; 8] = [
    "AddTestsDirError",
    "DownloadVerifierDirError",
    "EnvironmentStartTimeoutError",
    "GKEExecStreamClosedError",
    "GKEPodNotFoundError",
    "RuntimeRequestError",
    "SSHAccessError",
    "SandboxBuildFailedError",
];

/// End of the keys of policies, whose default is a word.
const POLICY: &str = "_enforcement_policy";

/// Treatment of a key of Harbor.
#[derive(Debug, Clone, Copy)]
enum HarborKey {
    /// It has the same meaning here.
    Same,
    /// It has this name here.
    Named(&'static str),
    /// It changes no result.
    WithoutEffect,
    /// Only its default can be read.
    OnlyDefault,
    /// Read by itself.
    Special,
}

/// The keys of a table.
type HarborTable = [(&'static str, HarborKey)];

/// The exceptions that can be chosen for repetitions, or the absence of them, if this one of Harbor cannot
/// be: choices say what holds anyway.
pub(crate) fn expected_retry(exception: &str, is_included: bool) -> Option<&'static str> {
    match (INFRASTRUCTURE.contains(&exception), is_included) {
        (true, true) | (false, false) => None,
        (true, false) => Some("no failure of the infrastructure: these are repeated, all of them"),
        (false, true) => {
            Some("a failure of the infrastructure: these are repeated, never an agent's")
        }
    }
}

/// Translates the document of a job file of Harbor; returns any other one as it is.
pub(super) fn translate(
    root: ConfigNode,
    file: &Path,
    host: HostAccess<'_>,
    problems: &mut Diagnostics,
) -> ConfigNode {
    if !is_of_harbor(&root) {
        return root;
    }
    problems.warning(ConfigWarning {
        file: file.to_owned(),
        line: None,
        key: String::new(),
        message: "this is a job file of Harbor: it is read with Harbor's keys and defaults".into(),
    });
    let is_of_this_user = host.is_of_this_user();
    Translation { file, is_of_this_user, problems }.job(root)
}

/// Whether the file has a key that decides for Harbor, or two others of Harbor, and none of this program.
fn is_of_harbor(root: &ConfigNode) -> bool {
    let count = |keys: &[&str]| keys.iter().filter(|key| has_key(root, key)).count();
    (count(DECISIVE) > 0 || count(HARBOR_ONLY) > 1) && count(ROLLOUT_ONLY) == 0
}

/// Whether there is a value at a path such as `agents[].name`.
fn has_key(node: &ConfigNode, path: &str) -> bool {
    let (first, rest) = path.split_once('.').map_or((path, None), |(key, rest)| (key, Some(rest)));
    let (key, is_list) = first.strip_suffix("[]").map_or((first, false), |key| (key, true));
    let ConfigValue::Mapping(entries) = &node.value else { return false };
    let Some(entry) = entries.iter().find(|entry| entry.key == key) else { return false };
    let Some(rest) = rest else { return true };
    match &entry.node.value {
        ConfigValue::Sequence(items) if is_list => items.iter().any(|item| has_key(item, rest)),
        _ => has_key(&entry.node, rest),
    }
}

/// Whether the value at a key is what Harbor writes for one that was not set.
fn is_default(key: &str, value: &ConfigValue) -> bool {
    match value {
        ConfigValue::Null | ConfigValue::Bool { value: false, .. } => true,
        ConfigValue::Sequence(items) => items.is_empty(),
        ConfigValue::Mapping(entries) => entries.is_empty(),
        ConfigValue::String(text) => {
            key.ends_with(POLICY) && ["auto", "limit"].contains(&text.to_lowercase().as_str())
        }
        _ => false,
    }
}

/// A translation in progress.
struct Translation<'a> {
    file: &'a Path,
    /// Whether relative paths are those of the current directory: it is that of the user who wrote them.
    is_of_this_user: bool,
    problems: &'a mut Diagnostics,
}

impl Translation<'_> {
    fn job(&mut self, mut root: ConfigNode) -> ConfigNode {
        self.flatten_orchestrator(&mut root);
        let line = root.line;
        let mut has_agents = false;
        let mut entries = self.table(root, "", &TOP, |this, entry, at| match entry.key.as_str() {
            "debug" if is_true(&entry.node) => Some(renamed(&entry, "log_level", text("debug"))),
            "debug" => None,
            "schema_version" => {
                this.schema_version(&entry);
                None
            }
            "retry" => Some(this.inner(entry, at, Self::retry)),
            "environment" => Some(this.inner(entry, at, Self::environment)),
            "verifier" => {
                Some(this.inner(entry, at, |this, node, at| this.mapping(node, at, &VERIFIER)))
            }
            "metrics" => Some(this.items(entry, |this, node, at| this.mapping(node, at, &METRIC))),
            "agents" => {
                has_agents = true;
                Some(this.items(entry, Self::agent))
            }
            "datasets" => Some(this.items(entry, Self::dataset)),
            _ => Some(this.items(entry, Self::task)),
        });
        self.make_absolute(&mut entries, "extra_instruction_paths");
        let has = |entries: &[ConfigEntry], key: &str| entries.iter().any(|e| e.key == key);
        if !has(&entries, "n_concurrent_trials") {
            entries.push(entry("n_concurrent_trials", line, integer(DEFAULT_CONCURRENCY)));
        }
        if !has(&entries, "retry") {
            entries.push(entry("retry", line, mapping(with_retry_defaults(Vec::new(), line))));
        }
        if !has_agents {
            let name = vec![entry("name", line, text("oracle"))];
            let oracle = ConfigNode { line, value: mapping(name) };
            entries.push(entry("agents", line, ConfigValue::Sequence(vec![oracle])));
        }
        ConfigNode { line, value: mapping(entries) }
    }

    /// The entries of a table after its translation. Values of other types are left to the reader.
    fn table(
        &mut self,
        node: ConfigNode,
        at: &str,
        keys: &HarborTable,
        mut special: impl FnMut(&mut Self, ConfigEntry, &str) -> Option<ConfigEntry>,
    ) -> Vec<ConfigEntry> {
        let ConfigValue::Mapping(entries) = node.value else { return Vec::new() };
        let mut translated = Vec::new();
        for entry in entries {
            let path = join(at, &entry.key);
            let known = keys.iter().find(|(key, _)| *key == entry.key).map(|(_, known)| *known);
            let is_empty = |value: &ConfigValue| match value {
                ConfigValue::Null => true,
                ConfigValue::Sequence(items) => items.is_empty(),
                ConfigValue::Mapping(entries) => entries.is_empty(),
                _ => false,
            };
            translated.extend(match known {
                Some(HarborKey::WithoutEffect) => None,
                Some(_) if is_empty(&entry.node.value) => None,
                // Its reader names an unknown key.
                None | Some(HarborKey::Same) => Some(entry),
                Some(HarborKey::Named(name)) => Some(ConfigEntry { key: name.to_owned(), ..entry }),
                Some(HarborKey::OnlyDefault) if is_default(&entry.key, &entry.node.value) => None,
                Some(HarborKey::OnlyDefault) => {
                    self.refuse(
                        &path,
                        entry.line,
                        &entry.node,
                        "its default: it has no counterpart",
                    );
                    None
                }
                Some(HarborKey::Special) => special(self, entry, &path),
            });
        }
        translated
    }

    fn mapping(&mut self, node: ConfigNode, at: &str, keys: &HarborTable) -> ConfigNode {
        let line = node.line;
        if !matches!(node.value, ConfigValue::Mapping(_)) {
            return node;
        }
        ConfigNode { line, value: mapping(self.table(node, at, keys, |_, entry, _| Some(entry))) }
    }

    fn inner(
        &mut self,
        entry: ConfigEntry,
        at: &str,
        translate: impl FnOnce(&mut Self, ConfigNode, &str) -> ConfigNode,
    ) -> ConfigEntry {
        let node = match &entry.node.value {
            ConfigValue::Mapping(_) => translate(self, entry.node, at),
            _ => entry.node,
        };
        ConfigEntry { node, ..entry }
    }

    fn items(
        &mut self,
        entry: ConfigEntry,
        mut translate: impl FnMut(&mut Self, ConfigNode, &str) -> ConfigNode,
    ) -> ConfigEntry {
        let ConfigEntry { key, line, node } = entry;
        let ConfigNode { line: at, value } = node;
        let value = match value {
            ConfigValue::Sequence(items) => {
                let items = items.into_iter().enumerate();
                let one = |(index, item): (usize, ConfigNode)| match &item.value {
                    ConfigValue::Mapping(_) => translate(self, item, &format!("{key}[{index}]")),
                    _ => item,
                };
                ConfigValue::Sequence(items.map(one).collect())
            }
            other => other,
        };
        ConfigEntry { key, line, node: ConfigNode { line: at, value } }
    }

    fn schema_version(&mut self, entry: &ConfigEntry) {
        if !matches!(entry.node.value, ConfigValue::Integer { value: 1, .. }) {
            self.refuse("schema_version", entry.line, &entry.node, "1");
        }
    }

    fn retry(&mut self, node: ConfigNode, at: &str) -> ConfigNode {
        let line = node.line;
        let entries = self.table(node, at, &RETRY, |this, entry, at| match entry.key.as_str() {
            "include_exceptions" | "exclude_exceptions" => {
                this.exceptions(&entry, at);
                None
            }
            "max_retries" => Some(match entry.node.value {
                ConfigValue::Integer { value, .. } => {
                    renamed(&entry, "max_attempts", integer(value.saturating_add(1)))
                }
                _ => entry,
            }),
            "min_wait_sec" => Some(milliseconds(entry, "initial_delay_ms")),
            _ => Some(milliseconds(entry, "max_delay_ms")),
        });
        ConfigNode { line, value: mapping(with_retry_defaults(entries, line)) }
    }

    fn exceptions(&mut self, entry: &ConfigEntry, at: &str) {
        let ConfigValue::Sequence(names) = &entry.node.value else { return };
        for name in names {
            let ConfigValue::String(text) = &name.value else { continue };
            if let Some(expected) = expected_retry(text, entry.key == "include_exceptions") {
                self.refuse(at, name.line, name, expected);
            }
        }
    }

    fn environment(&mut self, node: ConfigNode, at: &str) -> ConfigNode {
        let line = node.line;
        let mut entries =
            self.table(node, at, &ENVIRONMENT, |this, entry, at| match entry.key.as_str() {
                "override_cpus" => this.cpus(entry, at),
                "delete" if is_true(&entry.node) => None,
                "delete" => Some(renamed(&entry, "preserve_env", text("always"))),
                // An older spelling is a list of `NAME=VALUE`.
                _ => Some(ConfigEntry { node: variables(entry.node), ..entry }),
            });
        self.make_absolute(&mut entries, "extra_docker_compose");
        ConfigNode { line, value: mapping(entries) }
    }

    /// A number of CPUs, which is whole here: Harbor gives an environment a part of one.
    fn cpus(&mut self, entry: ConfigEntry, at: &str) -> Option<ConfigEntry> {
        let number = match &entry.node.value {
            ConfigValue::Float { value, .. } => Some(*value),
            ConfigValue::String(text) => text.trim().parse().ok(),
            _ => None,
        };
        if number.is_some_and(|number: f64| number.is_finite() && number.fract() != 0.0) {
            self.refuse(at, entry.line, &entry.node, "a whole number of CPUs");
            return None;
        }
        Some(entry)
    }

    fn agent(&mut self, node: ConfigNode, at: &str) -> ConfigNode {
        let line = node.line;
        let name = string(&node, "name").unwrap_or_else(|| "oracle".to_owned());
        let is_plain = ["oracle", "nop"].contains(&name.as_str());
        let mut options = Vec::new();
        let mut entries =
            self.table(node, at, &AGENT, |this, entry, at| match entry.key.as_str() {
                "model_name" | "kwargs" if is_plain => this.ignored(&entry, at, &name),
                "model_name" => Some(ConfigEntry { key: "model".to_owned(), ..entry }),
                "kwargs" => {
                    options = this.options(entry.node, at, &name);
                    None
                }
                _ => this.dialect(entry, at),
            });
        entries.extend(options);
        self.make_absolute(&mut entries, "load_trajectory");
        self.make_absolute(&mut entries, "skills");
        if !entries.iter().any(|entry| entry.key == "name") {
            entries.push(entry("name", line, text("oracle")));
        }
        if let Some(here) = catalogued_name(&name) {
            entries.push(entry("agent", line, text(here)));
        }
        ConfigNode { line, value: mapping(entries) }
    }

    /// Drops a key that changes nothing about an agent.
    fn ignored(&mut self, entry: &ConfigEntry, at: &str, agent: &str) -> Option<ConfigEntry> {
        self.problems.warning(ConfigWarning {
            file: self.file.to_owned(),
            line: Some(entry.line),
            key: at.to_owned(),
            message: format!("has no effect on the agent `{agent}`"),
        });
        None
    }

    fn dialect(&mut self, entry: ConfigEntry, at: &str) -> Option<ConfigEntry> {
        let dialect = match &entry.node.value {
            ConfigValue::String(format) => match format.as_str() {
                "openai_chat_completions" | "openai_responses" => "openai",
                "anthropic_messages" => "anthropic",
                "google_generate_content" => "gemini",
                _ => {
                    self.refuse(
                        at,
                        entry.line,
                        &entry.node,
                        "a format of openai, anthropic or google",
                    );
                    return None;
                }
            },
            _ => return Some(entry),
        };
        Some(renamed(&entry, "dialect", text(dialect)))
    }

    fn dataset(&mut self, node: ConfigNode, at: &str) -> ConfigNode {
        let line = node.line;
        let mut registry = Vec::new();
        let mut entries = self.table(node, at, &DATASET, |_, entry, _| {
            let key = if entry.key == "registry_url" { "url" } else { "path" };
            registry.push(ConfigEntry { key: key.to_owned(), ..entry });
            None
        });
        if !entries.iter().any(|entry| entry.key == "repo") {
            self.make_absolute(&mut entries, "path");
        }
        if !registry.is_empty() {
            self.make_absolute(&mut registry, "path");
            entries.push(entry("registry", line, mapping(registry)));
        }
        ConfigNode { line, value: mapping(entries) }
    }

    fn task(&mut self, node: ConfigNode, at: &str) -> ConfigNode {
        let line = node.line;
        let mut entries = self.table(node, at, &TASK, |_, entry, _| Some(entry));
        if !entries.iter().any(|entry| entry.key == "git_url") {
            self.make_absolute(&mut entries, "path");
        }
        ConfigNode { line, value: mapping(entries) }
    }

    /// Makes the paths at a key absolute: those of Harbor are relative to the current directory, not to
    /// the file. On a server they stay relative to the document, which may not use the server's directory.
    fn make_absolute(&self, entries: &mut [ConfigEntry], key: &str) {
        if !self.is_of_this_user {
            return;
        }
        let Some(entry) = entries.iter_mut().find(|entry| entry.key == key) else { return };
        let nodes = match &mut entry.node {
            ConfigNode { value: ConfigValue::Sequence(items), .. } => items.iter_mut().collect(),
            node => vec![node],
        };
        for node in nodes {
            if let ConfigValue::String(path) = &mut node.value
                && let Ok(absolute) = std::path::absolute(&*path)
                && let Some(absolute) = absolute.to_str()
            {
                absolute.clone_into(path);
            }
        }
    }

    fn refuse(&mut self, key: &str, line: usize, node: &ConfigNode, expected: &str) {
        let spot = SourceLocation { key: key.to_owned(), line: Some(line) };
        let found = format!("{}, which Harbor reads", node.describe());
        self.problems.error(spot.error(self.file, ErrorKind::Unavailable, found, expected));
    }
}

/// A list of `NAME=VALUE` as a mapping; another value as it is.
fn variables(node: ConfigNode) -> ConfigNode {
    let ConfigNode { line, value } = node;
    let pair = |item: &ConfigNode| match &item.value {
        ConfigValue::String(pair) => {
            let (name, value) = pair.split_once('=')?;
            Some(entry(name.trim(), item.line, text(value.trim())))
        }
        _ => None,
    };
    let value = match value {
        ConfigValue::Sequence(items) => match items.iter().map(pair).collect() {
            Some(pairs) => mapping(pairs),
            None => ConfigValue::Sequence(items),
        },
        other => other,
    };
    ConfigNode { line, value }
}

fn milliseconds(entry: ConfigEntry, name: &str) -> ConfigEntry {
    let sec = match entry.node.value {
        ConfigValue::Integer { value, .. } => value as f64,
        ConfigValue::Float { value, .. } => value,
        _ => return entry,
    };
    renamed(&entry, name, integer((sec * 1000.0).round() as i64))
}

fn is_true(node: &ConfigNode) -> bool {
    matches!(node.value, ConfigValue::Bool { value: true, .. })
}

/// The text at a key of a mapping.
fn string(node: &ConfigNode, key: &str) -> Option<String> {
    let ConfigValue::Mapping(entries) = &node.value else { return None };
    match &entries.iter().find(|entry| entry.key == key)?.node.value {
        ConfigValue::String(text) => Some(text.clone()),
        _ => None,
    }
}

/// The translated entries of `retry`, with Harbor's defaults where they say nothing.
fn with_retry_defaults(mut entries: Vec<ConfigEntry>, line: usize) -> Vec<ConfigEntry> {
    let [first, longest] = DEFAULT_WAITS_MS;
    let text = format!("{DEFAULT_MULTIPLIER:?}");
    for (key, value) in [
        ("max_attempts", integer(DEFAULT_TRIES)),
        ("initial_delay_ms", integer(first)),
        ("max_delay_ms", integer(longest)),
        ("multiplier", ConfigValue::Float { value: DEFAULT_MULTIPLIER, text }),
    ] {
        if !entries.iter().any(|entry| entry.key == key) {
            entries.push(entry(key, line, value));
        }
    }
    // Harbor waits for the longest time at most, also before the second try. Here that is a contradiction.
    if let Some(longest) = whole(&entries, "max_delay_ms")
        && whole(&entries, "initial_delay_ms").is_some_and(|first| first > longest)
    {
        for entry in entries.iter_mut().filter(|entry| entry.key == "initial_delay_ms") {
            entry.node.value = integer(longest);
        }
    }
    entries
}

/// The whole number at a key.
fn whole(entries: &[ConfigEntry], key: &str) -> Option<i64> {
    match &entries.iter().find(|entry| entry.key == key)?.node.value {
        ConfigValue::Integer { value, .. } => Some(*value),
        _ => None,
    }
}

fn renamed(from: &ConfigEntry, name: &str, value: ConfigValue) -> ConfigEntry {
    ConfigEntry {
        key: name.to_owned(),
        line: from.line,
        node: ConfigNode { line: from.node.line, value },
    }
}

fn entry(key: &str, line: usize, value: ConfigValue) -> ConfigEntry {
    ConfigEntry { key: key.to_owned(), line, node: ConfigNode { line, value } }
}

fn mapping(entries: Vec<ConfigEntry>) -> ConfigValue {
    ConfigValue::Mapping(entries)
}

fn text(text: &str) -> ConfigValue {
    ConfigValue::String(text.to_owned())
}

fn integer(value: i64) -> ConfigValue {
    ConfigValue::Integer { value, text: value.to_string() }
}
