//! Command-line settings of a job: values at key paths, merged into the tree of the job file before
//! it is read, so that one reader checks both.

mod agent_selection;

use std::path::Path;

use super::diagnostics::{Diagnostics, ErrorKind};
use super::location::{COMMAND_LINE, SourceLocation};
use super::value::{ConfigEntry, ConfigNode, ConfigValue, flag_line, parse_plain};
use super::yaml;

/// A value from the command line and where it goes.
#[derive(Debug, Clone, PartialEq)]
pub struct CliSetting {
    /// The option as it was typed.
    flag: String,
    change: CliSettingChange,
}

#[derive(Debug, Clone, PartialEq)]
enum CliSettingChange {
    /// Sets the value at a key path.
    Set(String, CliSettingText),
    /// Appends an item to the list at a key.
    Append(&'static str, ConfigValue),
    /// Adds a dataset; the first one replaces the file's datasets and tasks.
    Dataset(Vec<(&'static str, ConfigValue)>),
    /// Sets a value in every dataset.
    EachDataset(&'static str, ConfigValue),
    /// Sets a variable of every agent.
    EachAgent(String, String),
    /// Sets a value in every agent.
    EachAgentKey(String, CliSettingText),
    /// Appends text to the list at a key of every agent.
    EachAgentItem(&'static str, String),
    /// Selects an agent; agents of the file that are not selected are dropped.
    Agent(String),
    /// Sets text in every agent with a model.
    EachModel(&'static str, String),
    /// Selects a model: every agent that calls models runs with every model.
    Model(String),
}

#[derive(Debug, Clone, PartialEq)]
enum CliSettingText {
    /// YAML.
    Yaml(String),
    /// A single value, parsed as a YAML plain scalar.
    Plain(String),
    /// Text, never parsed.
    Exact(String),
}

/// A dataset named on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CliDataset {
    /// A directory.
    Path(String),
    /// A dataset of a registry, with an optional version.
    Registered {
        /// Path or URL of the registry.
        registry: String,
        /// Name.
        name: String,
        /// Version.
        version: Option<String>,
    },
    /// A repository, with an optional `@reference`.
    Repository(String),
}

impl CliSetting {
    fn new(flag: &str, change: CliSettingChange) -> Self {
        Self { flag: flag.to_owned(), change }
    }

    /// Sets a YAML value at a key path such as `agents[0].env.NAME`.
    pub fn yaml(flag: &str, key: &str, text: &str) -> Self {
        Self::new(
            flag,
            CliSettingChange::Set(key.to_owned(), CliSettingText::Yaml(text.to_owned())),
        )
    }

    /// Sets a number, word or boolean at a key path.
    pub fn plain(flag: &str, key: &str, text: &str) -> Self {
        Self::new(
            flag,
            CliSettingChange::Set(key.to_owned(), CliSettingText::Plain(text.to_owned())),
        )
    }

    /// Sets text at a key path.
    pub fn text(flag: &str, key: &str, text: &str) -> Self {
        Self::new(
            flag,
            CliSettingChange::Set(key.to_owned(), CliSettingText::Exact(text.to_owned())),
        )
    }

    /// Appends an item to the list at a key, or at a key of a table: `verifier.extra_allowed_hosts`.
    pub fn item(flag: &str, key: &'static str, text: &str) -> Self {
        Self::entry(flag, key, ConfigValue::String(text.to_owned()))
    }

    /// Appends a value to the list at a key, as `item`.
    pub(super) fn entry(flag: &str, key: &'static str, value: ConfigValue) -> Self {
        Self::new(flag, CliSettingChange::Append(key, value))
    }

    /// Adds a dataset.
    pub fn dataset(flag: &str, dataset: CliDataset) -> Self {
        let text = ConfigValue::String;
        let fields = match dataset {
            CliDataset::Path(path) => vec![("path", text(path))],
            CliDataset::Repository(url) => vec![("repo", text(url))],
            CliDataset::Registered { registry, name, version } => {
                let key = if registry.contains("://") { "url" } else { "path" };
                // `at_line` sets the line when the dataset is inserted.
                let registry_node = ConfigNode { line: 0, value: text(registry) };
                let place = ConfigEntry { key: key.to_owned(), line: 0, node: registry_node };
                let mut fields =
                    vec![("registry", ConfigValue::Mapping(vec![place])), ("name", text(name))];
                fields.extend(version.map(|version| ("version", text(version))));
                fields
            }
        };
        Self::new(flag, CliSettingChange::Dataset(fields))
    }

    /// Sets a number, word or boolean in every dataset.
    pub fn each_dataset(flag: &str, key: &'static str, value: &str) -> Self {
        Self::new(flag, CliSettingChange::EachDataset(key, parse_plain(value)))
    }

    /// Sets a list in every dataset.
    pub fn each_dataset_list(flag: &str, key: &'static str, items: &[String]) -> Self {
        let items = items
            .iter()
            .map(|item| ConfigNode { line: 0, value: ConfigValue::String(item.clone()) });
        Self::new(flag, CliSettingChange::EachDataset(key, ConfigValue::Sequence(items.collect())))
    }

    /// Sets a variable of every agent.
    pub fn each_agent(flag: &str, variable: &str, value: &str) -> Self {
        Self::new(flag, CliSettingChange::EachAgent(variable.to_owned(), value.to_owned()))
    }

    /// Sets a YAML value at a key path of every agent.
    pub fn each_agent_key(flag: &str, key: &str, text: &str) -> Self {
        Self::new(
            flag,
            CliSettingChange::EachAgentKey(key.to_owned(), CliSettingText::Yaml(text.to_owned())),
        )
    }

    /// Appends text to the list at a key of every agent.
    pub fn each_agent_item(flag: &str, key: &'static str, text: &str) -> Self {
        Self::new(flag, CliSettingChange::EachAgentItem(key, text.to_owned()))
    }

    /// Selects an agent of the job file, a built-in one, or one of the catalogue.
    pub fn agent(flag: &str, name: &str) -> Self {
        Self::new(flag, CliSettingChange::Agent(name.to_owned()))
    }

    /// Selects a model, `PROVIDER/MODEL`.
    pub fn model(flag: &str, model: &str) -> Self {
        Self::new(flag, CliSettingChange::Model(model.to_owned()))
    }

    /// Sets text in every agent with a model.
    pub fn each_model(flag: &str, key: &'static str, text: &str) -> Self {
        Self::new(flag, CliSettingChange::EachModel(key, text.to_owned()))
    }

    /// The option as it was typed.
    pub(super) fn flag(&self) -> &str {
        &self.flag
    }
}

/// Applies settings to a tree, in order.
pub(super) fn apply(settings: &[CliSetting], root: &mut ConfigNode, problems: &mut Diagnostics) {
    if root.value == ConfigValue::Null {
        root.value = ConfigValue::Mapping(Vec::new());
    }
    agent_selection::apply(settings, root, problems);
    let mut first = true;
    for (index, setting) in settings.iter().enumerate() {
        let line = flag_line(index);
        let done = match &setting.change {
            CliSettingChange::Set(key, text) => {
                value(text, line).and_then(|value| set_key(root, key, value, line))
            }
            CliSettingChange::Append(key, value) => append(root, key, value.clone(), line),
            CliSettingChange::Dataset(fields) => {
                if std::mem::take(&mut first) {
                    for key in ["datasets", "tasks"] {
                        remove(root, key);
                    }
                }
                append(root, "datasets", mapping(fields, line), line)
            }
            CliSettingChange::EachDataset(key, value) => for_each_item(root, "datasets", |node| {
                set_key(node, key, at_line(value.clone(), line), line)
            }),
            CliSettingChange::EachAgent(name, text) => for_each_item(root, "agents", |node| {
                let value = ConfigNode { line, value: ConfigValue::String(text.clone()) };
                let env = KeyPathSegment { text: "env".to_owned(), bracket: false };
                let name = KeyPathSegment { text: name.clone(), bracket: false };
                set_path(node, &[env, name], value, line)
            }),
            CliSettingChange::EachAgentKey(key, text) => value(text, line).and_then(|value| {
                for_each_item(root, "agents", |node| set_key(node, key, value.clone(), line))
            }),
            CliSettingChange::EachAgentItem(key, text) => for_each_item(root, "agents", |node| {
                append(node, key, ConfigValue::String(text.clone()), line)
            }),
            CliSettingChange::EachModel(key, text) => for_each_item(root, "agents", |node| {
                let has_model = matches!(&node.value, ConfigValue::Mapping(entries)
                    if entries.iter().any(|entry| entry.key == "model"));
                let value = ConfigNode { line, value: ConfigValue::String(text.clone()) };
                if has_model { set_key(node, key, value, line) } else { Ok(()) }
            }),
            CliSettingChange::Agent(_) | CliSettingChange::Model(_) => Ok(()),
        };
        if let Err(found) = done {
            reject(setting, &found, "a key of a job", problems);
        }
    }
}

fn reject(setting: &CliSetting, found: &str, expected: &str, problems: &mut Diagnostics) {
    let spot = SourceLocation { key: setting.flag.clone(), line: None };
    problems.error(spot.error(Path::new(COMMAND_LINE), ErrorKind::BadValue, found, expected));
}

fn mapping(fields: &[(&'static str, ConfigValue)], line: usize) -> ConfigValue {
    let entry = |(key, value): &(&'static str, ConfigValue)| ConfigEntry {
        key: (*key).to_owned(),
        line,
        node: at_line(value.clone(), line),
    };
    ConfigValue::Mapping(fields.iter().map(entry).collect())
}

/// The value with every part at one line.
fn at_line(value: ConfigValue, line: usize) -> ConfigNode {
    let value = match value {
        ConfigValue::Sequence(nodes) => {
            ConfigValue::Sequence(nodes.into_iter().map(|node| at_line(node.value, line)).collect())
        }
        ConfigValue::Mapping(entries) => ConfigValue::Mapping(
            entries
                .into_iter()
                .map(|entry| ConfigEntry { line, node: at_line(entry.node.value, line), ..entry })
                .collect(),
        ),
        single => single,
    };
    ConfigNode { line, value }
}

fn value(text: &CliSettingText, line: usize) -> Result<ConfigNode, String> {
    match text {
        CliSettingText::Exact(text) => {
            Ok(ConfigNode { line, value: ConfigValue::String(text.clone()) })
        }
        CliSettingText::Plain(text) => Ok(ConfigNode { line, value: parse_plain(text) }),
        CliSettingText::Yaml(text) => match yaml::parse(text) {
            Ok((node, faults)) if faults.is_empty() => Ok(at_line(node.value, line)),
            Ok((_, faults)) => Err(faults[0].message.clone()),
            Err(fault) => Err(format!("invalid YAML: {}", fault.message)),
        },
    }
}

#[derive(Debug, Clone)]
struct KeyPathSegment {
    text: String,
    bracket: bool,
}

/// Splits a key path such as `a.b[0].c` into segments.
fn segments(key: &str) -> Result<Vec<KeyPathSegment>, String> {
    let mut segments = Vec::new();
    for part in key.split('.') {
        let (name, indices) = part.split_once('[').map_or((part, None), |(n, i)| (n, Some(i)));
        if name.is_empty() {
            return Err(format!("the key path `{key}`"));
        }
        segments.push(KeyPathSegment { text: name.to_owned(), bracket: false });
        let Some(indices) = indices else { continue };
        let Some(indices) = indices.strip_suffix(']') else {
            return Err(format!("the key path `{key}`"));
        };
        for index in indices.split("][") {
            segments.push(KeyPathSegment { text: index.to_owned(), bracket: true });
        }
    }
    Ok(segments)
}

fn set_key(node: &mut ConfigNode, key: &str, value: ConfigNode, line: usize) -> Result<(), String> {
    set_path(node, &segments(key)?, value, line)
}

fn set_path(
    node: &mut ConfigNode,
    path: &[KeyPathSegment],
    value: ConfigNode,
    line: usize,
) -> Result<(), String> {
    let Some((segment, rest)) = path.split_first() else {
        *node = value;
        return Ok(());
    };
    if node.value == ConfigValue::Null {
        let empty = if segment.bracket {
            ConfigValue::Sequence(Vec::new())
        } else {
            ConfigValue::Mapping(Vec::new())
        };
        *node = ConfigNode { line, value: empty };
    }
    let described = node.describe();
    match &mut node.value {
        ConfigValue::Mapping(entries) if !segment.bracket => {
            let at = entries.iter().position(|entry| entry.key == segment.text);
            let at = at.unwrap_or_else(|| {
                let node = ConfigNode { line, value: ConfigValue::Null };
                entries.push(ConfigEntry { key: segment.text.clone(), line, node });
                entries.len() - 1
            });
            if rest.is_empty() {
                entries[at].line = line;
            }
            set_path(&mut entries[at].node, rest, value, line)
        }
        ConfigValue::Sequence(nodes) => {
            let index = segment.text.parse::<usize>().ok().filter(|index| *index <= nodes.len());
            let Some(index) = index else {
                return Err(format!("`{}` in a list of {} items", segment.text, nodes.len()));
            };
            if index == nodes.len() {
                nodes.push(ConfigNode { line, value: ConfigValue::Null });
            }
            set_path(&mut nodes[index], rest, value, line)
        }
        _ => Err(format!("`{}` below {described}", segment.text)),
    }
}

fn append(root: &mut ConfigNode, key: &str, value: ConfigValue, line: usize) -> Result<(), String> {
    if let Some((table, key)) = key.split_once('.') {
        return append(inner_table(root, table, line)?, key, value, line);
    }
    let at = list_len(root, key)?;
    let last = KeyPathSegment { text: at.to_string(), bracket: true };
    let path = [KeyPathSegment { text: key.to_owned(), bracket: false }, last];
    set_path(root, &path, at_line(value, line), line)
}

/// The table at a key, made if absent.
fn inner_table<'a>(
    root: &'a mut ConfigNode,
    key: &str,
    line: usize,
) -> Result<&'a mut ConfigNode, String> {
    if root.value == ConfigValue::Null {
        root.value = ConfigValue::Mapping(Vec::new());
    }
    let described = root.describe();
    let ConfigValue::Mapping(entries) = &mut root.value else {
        return Err(format!("`{key}` below {described}"));
    };
    let at = entries.iter().position(|entry| entry.key == key).unwrap_or_else(|| {
        let node = ConfigNode { line, value: ConfigValue::Null };
        entries.push(ConfigEntry { key: key.to_owned(), line, node });
        entries.len() - 1
    });
    Ok(&mut entries[at].node)
}

fn list_len(root: &ConfigNode, key: &str) -> Result<usize, String> {
    let ConfigValue::Mapping(entries) = &root.value else { return Ok(0) };
    match entries.iter().find(|entry| entry.key == key).map(|entry| &entry.node) {
        None | Some(ConfigNode { value: ConfigValue::Null, .. }) => Ok(0),
        Some(ConfigNode { value: ConfigValue::Sequence(nodes), .. }) => Ok(nodes.len()),
        Some(node) => Err(format!("`{key}` is {}", node.describe())),
    }
}

/// Changes every item of the list at a key.
fn for_each_item(
    root: &mut ConfigNode,
    key: &str,
    mut change: impl FnMut(&mut ConfigNode) -> Result<(), String>,
) -> Result<(), String> {
    let ConfigValue::Mapping(entries) = &mut root.value else { return Ok(()) };
    let entry = entries.iter_mut().find(|entry| entry.key == key);
    let Some(ConfigValue::Sequence(nodes)) = entry.map(|entry| &mut entry.node.value) else {
        return Ok(());
    };
    nodes.iter_mut().try_for_each(&mut change)
}

fn remove(root: &mut ConfigNode, key: &str) {
    if let ConfigValue::Mapping(entries) = &mut root.value {
        entries.retain(|entry| entry.key != key);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Diagnostics, Job, JobOptions, job_document, job_from_settings, read_job};
    use super::*;

    const FILE: &str = "
n_attempts: 2
agents:
  - {name: mine, execute: 'true', env: {A: x}}
  - name: nop
datasets: [{path: d, task_names: [z]}, {path: e}]
tasks: [{path: f}]
";

    /// The job of a file with settings, and its diagnostics.
    fn read(file: Option<&str>, settings: Vec<CliSetting>) -> (Option<Job>, Vec<String>) {
        let dir = tempfile::tempdir().expect("a directory");
        let options = JobOptions { settings, ..JobOptions::for_command_line(&|_| true) };
        let mut problems = Diagnostics::default();
        let job = match file {
            None => job_from_settings(&options, &mut problems),
            Some(text) => {
                let path = dir.path().join("job.yaml");
                std::fs::write(&path, text).expect("written");
                read_job(&path, &options, &mut problems)
            }
        };
        let faults = problems.finish(()).err().map(|errors| errors.lines()).unwrap_or_default();
        (job, faults)
    }

    #[test]
    fn items_of_tables_are_appended() {
        let hosts = |host: &str| CliSetting::item("-x", "verifier.extra_allowed_hosts", host);
        let text = format!("{FILE}verifier: {{extra_allowed_hosts: [a.example]}}\n");
        for (file, expected) in [
            (FILE, ["b.example", "c.example"].as_slice()),
            (&text, &["a.example", "b.example", "c.example"]),
        ] {
            let (job, faults) = read(Some(file), vec![hosts("b.example"), hosts("c.example")]);
            assert_eq!(faults, [] as [&str; 0]);
            assert_eq!(job.expect("a job").verifier_hosts, expected);
        }
    }

    #[test]
    fn job_without_file_is_built_from_options() {
        let settings = vec![
            CliSetting::dataset("-p d", CliDataset::Path("d".to_owned())),
            CliSetting::agent("-a oracle", "oracle"),
            CliSetting::each_dataset_list("-t x*", "task_names", &["x*".to_owned()]),
            CliSetting::each_dataset("-l 10", "n_tasks", "10"),
            CliSetting::plain("-k 2", "n_attempts", "2"),
        ];
        let (job, faults) = read(None, settings);
        assert_eq!(faults, [] as [&str; 0]);
        let job = job.expect("a job");
        let said = job_document(&job);
        assert_eq!(said["n_attempts"], 2);
        assert_eq!(said["agents"][0]["name"], "oracle");
        assert_eq!(said["datasets"][0]["n_tasks"], 10);
        let path = std::path::absolute("d").expect("a path");
        assert_eq!(said["datasets"][0]["path"], path.to_str().expect("text"));
        let sources: Vec<_> =
            job.provenance.iter().map(|p| (p.key.as_str(), p.source.as_str())).collect();
        assert!(sources.contains(&("datasets[0].task_names[0]", "-t x*")), "{sources:?}");
        assert!(sources.contains(&("n_attempts", "-k 2")), "{sources:?}");
    }

    #[test]
    fn cli_override_replaces_file_value_also_by_list_index() {
        let settings = vec![
            CliSetting::yaml("--set agents[0].env.B", "agents[0].env.B", "y"),
            CliSetting::yaml("--set agents.1.description", "agents.1.description", "d"),
            CliSetting::yaml("--set metrics", "metrics", "[{type: max}]"),
            CliSetting::yaml("--set metrics[1].type", "metrics[1].type", "min"),
            CliSetting::yaml("--set n_attempts", "n_attempts", ""),
            CliSetting::each_agent("--agent-env C", "C", "1"),
            CliSetting::each_agent_key("--ak description", "description", "every"),
        ];
        let (job, faults) = read(Some(FILE), settings);
        assert_eq!(faults, [] as [&str; 0]);
        let job = job.expect("a job");
        let said = job_document(&job);
        assert_eq!(said["agents"][0]["env"], serde_json::json!({"A": "x", "B": "y", "C": "1"}));
        assert_eq!(said["agents"][0]["description"], "every");
        assert_eq!(said["agents"][1]["description"], "every", "the last one wins");
        assert_eq!(said["metrics"][1]["type"], "min");
        assert_eq!(said["n_attempts"], 1, "null is the default");
        let source =
            |key: &str| job.provenance.iter().find(|p| p.key == key).map(|p| p.source.clone());
        assert!(source("agents[0].env.A").expect("known").ends_with("job.yaml:4"));
        assert_eq!(source("agents[0].env.B").as_deref(), Some("--set agents[0].env.B"));
    }

    #[test]
    fn cli_agents_and_datasets_replace_those_of_file() {
        let registered = CliDataset::Registered {
            registry: "https://host/r.json".to_owned(),
            name: "n".to_owned(),
            version: Some("2.0".to_owned()),
        };
        let settings = vec![
            CliSetting::dataset("-d n@2.0", registered),
            CliSetting::agent("-a oracle", "oracle"),
            CliSetting::agent("-a mine", "mine"),
        ];
        let (job, faults) = read(Some(FILE), settings);
        assert_eq!(faults, [] as [&str; 0]);
        let said = job_document(&job.expect("a job"));
        let names: Vec<_> =
            said["agents"].as_array().expect("agents").iter().map(|a| &a["name"]).collect();
        assert_eq!(names, ["oracle", "mine"]);
        let place = serde_json::json!({"url": "https://host/r.json"});
        assert_eq!(said["datasets"][0]["registry"], place);
        assert_eq!(
            (&said["datasets"][1], &said["tasks"]),
            (&serde_json::Value::Null, &serde_json::Value::Null)
        );
    }

    #[test]
    fn cli_override_error_names_its_option() {
        let (_, faults) = read(
            Some(FILE),
            vec![
                CliSetting::yaml("--set environment.typ", "environment.typ", "docker"),
                CliSetting::plain("-e dokcer", "environment.type", "dokcer"),
                CliSetting::plain("-k 0", "n_attempts", "0"),
                CliSetting::yaml("--set agents[7].name", "agents[7].name", "x"),
                CliSetting::yaml("--set n_attempts.x", "n_attempts.x", "1"),
                CliSetting::yaml("--set name", "name", "[1"),
                CliSetting::yaml("--set a..b", "a..b", "1"),
                CliSetting::agent("-a mien", "mien"),
            ],
        );
        for expected in [
            "command line: --set environment.typ: found an unknown key",
            "command line: -e dokcer (environment.type): found the text \"dokcer\"",
            "command line: -k 0 (n_attempts): found 0",
            "command line: --set agents[7].name: found `7` in a list of 1 items",
            "command line: --set n_attempts.x: found `x` below 0",
            "command line: --set name: found invalid YAML",
            "command line: --set a..b: found the key path `a..b`",
            "command line: -a mien (agents[0]): found no agent with the name `mien`, and no scripts",
        ] {
            assert!(faults.iter().any(|fault| fault.contains(expected)), "{expected}: {faults:#?}");
        }
        let unknown = CliSetting::each_agent_key("--ak max_steps", "max_steps", "5");
        let (_, faults) = read(Some(FILE), vec![unknown]);
        let said = "command line: --ak max_steps (agents[0].max_steps): found an unknown key, ";
        let short = "command line: --ak max_steps: found an unknown key, ";
        assert!([said, short].iter().any(|said| faults[0].starts_with(said)), "{faults:?}");
        let (_, faults) = read(None, Vec::new());
        assert!(faults[0].starts_with("command line: agents: found nothing"), "{faults:?}");
    }
}
