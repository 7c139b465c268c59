//! What the command line puts into a job: values at key paths, laid over the tree of the job file
//! before it is read, so that one reader checks both.

use std::path::Path;

use super::elements::agents::BUILT_IN;
use super::problem::{ErrorKind, Problems, nearest};
use super::spot::{COMMAND_LINE, Spot};
use super::tree::{Entry, Node, Value, flag_line, plain};
use super::yaml;

/// A value from the command line.
#[derive(Debug, Clone, PartialEq)]
pub struct Setting {
    /// The option as it was written.
    flag: String,
    change: Change,
}

#[derive(Debug, Clone, PartialEq)]
enum Change {
    /// Puts a value at a key path.
    Put(String, Text),
    /// Adds an item to the list at a key.
    Append(&'static str, Value),
    /// Adds a dataset; the first one takes the place of the file's datasets and tasks.
    Dataset(Vec<(&'static str, Value)>),
    /// Puts a value into every dataset.
    EachDataset(&'static str, Value),
    /// Puts a variable of every agent.
    EachAgent(String, String),
    /// Puts a value into every agent.
    EachAgentKey(String, Text),
    /// Selects an agent; the others of the file are left out.
    Agent(String),
}

#[derive(Debug, Clone, PartialEq)]
enum Text {
    /// YAML.
    Yaml(String),
    /// A single value, read as YAML reads plain text.
    Plain(String),
    /// Text, whatever it looks like.
    Exact(String),
}

/// A dataset that the command line names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GivenDataset {
    /// A directory.
    Path(String),
    /// A dataset of a registry, with its version.
    Registered {
        /// Path or address of the registry.
        registry: String,
        /// Name.
        name: String,
        /// Version.
        version: Option<String>,
    },
    /// A repository, with `@` and a reference perhaps.
    Repository(String),
}

impl Setting {
    fn new(flag: &str, change: Change) -> Self {
        Self { flag: flag.to_owned(), change }
    }

    /// A value in YAML at a key path such as `agents[0].env.NAME`.
    pub fn yaml(flag: &str, key: &str, text: &str) -> Self {
        Self::new(flag, Change::Put(key.to_owned(), Text::Yaml(text.to_owned())))
    }

    /// A number, a word or a boolean at a key path.
    pub fn plain(flag: &str, key: &str, text: &str) -> Self {
        Self::new(flag, Change::Put(key.to_owned(), Text::Plain(text.to_owned())))
    }

    /// Text at a key path.
    pub fn text(flag: &str, key: &str, text: &str) -> Self {
        Self::new(flag, Change::Put(key.to_owned(), Text::Exact(text.to_owned())))
    }

    /// An item of the list at a key.
    pub fn item(flag: &str, key: &'static str, text: &str) -> Self {
        Self::new(flag, Change::Append(key, Value::String(text.to_owned())))
    }

    /// A dataset.
    pub fn dataset(flag: &str, dataset: GivenDataset) -> Self {
        let text = Value::String;
        let fields = match dataset {
            GivenDataset::Path(path) => vec![("path", text(path))],
            GivenDataset::Repository(url) => vec![("repo", text(url))],
            GivenDataset::Registered { registry, name, version } => {
                let key = if registry.contains("://") { "url" } else { "path" };
                // Its own place is that of the dataset, which is given when it is put there.
                let place = Node { line: 0, value: text(registry) };
                let place = Entry { key: key.to_owned(), line: 0, node: place };
                let mut fields =
                    vec![("registry", Value::Mapping(vec![place])), ("name", text(name))];
                fields.extend(version.map(|version| ("version", text(version))));
                fields
            }
        };
        Self::new(flag, Change::Dataset(fields))
    }

    /// A number, a word or a boolean of every dataset.
    pub fn each_dataset(flag: &str, key: &'static str, value: &str) -> Self {
        Self::new(flag, Change::EachDataset(key, plain(value)))
    }

    /// A list of every dataset.
    pub fn each_dataset_list(flag: &str, key: &'static str, items: &[String]) -> Self {
        let items = items.iter().map(|item| Node { line: 0, value: Value::String(item.clone()) });
        Self::new(flag, Change::EachDataset(key, Value::Sequence(items.collect())))
    }

    /// A variable of every agent.
    pub fn each_agent(flag: &str, variable: &str, value: &str) -> Self {
        Self::new(flag, Change::EachAgent(variable.to_owned(), value.to_owned()))
    }

    /// A value in YAML at a key path of every agent.
    pub fn each_agent_key(flag: &str, key: &str, text: &str) -> Self {
        Self::new(flag, Change::EachAgentKey(key.to_owned(), Text::Yaml(text.to_owned())))
    }

    /// An agent of the job file, or a built-in one.
    pub fn agent(flag: &str, name: &str) -> Self {
        Self::new(flag, Change::Agent(name.to_owned()))
    }

    /// The option as it was written.
    pub(super) fn flag(&self) -> &str {
        &self.flag
    }
}

/// Lays settings over a tree, in their order.
pub(super) fn apply(settings: &[Setting], root: &mut Node, problems: &mut Problems) {
    if root.value == Value::Null {
        root.value = Value::Mapping(Vec::new());
    }
    select_agents(settings, root, problems);
    let mut first = true;
    for (index, setting) in settings.iter().enumerate() {
        let line = flag_line(index);
        let done = match &setting.change {
            Change::Put(key, text) => {
                value(text, line).and_then(|value| put(root, key, value, line))
            }
            Change::Append(key, value) => append(root, key, value.clone(), line),
            Change::Dataset(fields) => {
                if std::mem::take(&mut first) {
                    for key in ["datasets", "tasks"] {
                        remove(root, key);
                    }
                }
                append(root, "datasets", mapping(fields, line), line)
            }
            Change::EachDataset(key, value) => {
                each(root, "datasets", |node| put(node, key, placed(value.clone(), line), line))
            }
            Change::EachAgent(name, text) => each(root, "agents", |node| {
                let value = Node { line, value: Value::String(text.clone()) };
                let env = Segment { text: "env".to_owned(), bracket: false };
                let name = Segment { text: name.clone(), bracket: false };
                put_at(node, &[env, name], value, line)
            }),
            Change::EachAgentKey(key, text) => value(text, line)
                .and_then(|value| each(root, "agents", |node| put(node, key, value.clone(), line))),
            Change::Agent(_) => Ok(()),
        };
        if let Err(found) = done {
            refuse(setting, &found, "a key of a job", problems);
        }
    }
}

fn refuse(setting: &Setting, found: &str, expected: &str, problems: &mut Problems) {
    let spot = Spot { key: setting.flag.clone(), line: None };
    problems.error(spot.error(Path::new(COMMAND_LINE), ErrorKind::BadValue, found, expected));
}

/// The agents that the command line selects: those of the file, or built-in ones.
fn select_agents(settings: &[Setting], root: &mut Node, problems: &mut Problems) {
    let mut chosen = Vec::new();
    let Value::Mapping(entries) = &root.value else { return };
    let there = entries.iter().find(|entry| entry.key == "agents");
    let agents = match there.map(|entry| &entry.node.value) {
        Some(Value::Sequence(nodes)) => nodes.as_slice(),
        _ => &[],
    };
    let name_of = |node: &Node| match &node.value {
        Value::Mapping(entries) => entries.iter().find_map(|entry| match &entry.node.value {
            Value::String(name) if entry.key == "name" => Some(name.clone()),
            _ => None,
        }),
        _ => None,
    };
    let mut any = false;
    for (index, setting) in settings.iter().enumerate() {
        let Change::Agent(name) = &setting.change else { continue };
        any = true;
        let own = agents.iter().find(|node| name_of(node).as_deref() == Some(name));
        if let Some(node) = own {
            chosen.push(node.clone());
        } else if BUILT_IN.contains(&name.as_str()) {
            let value = Value::String(name.clone());
            chosen.push(Node {
                line: flag_line(index),
                value: mapping(&[("name", value)], flag_line(index)),
            });
        } else {
            let mut known: Vec<String> = agents.iter().filter_map(name_of).collect();
            for built_in in BUILT_IN {
                if !known.iter().any(|name| name == built_in) {
                    known.push((*built_in).to_owned());
                }
            }
            let near = nearest(name, known.iter().map(String::as_str));
            let near = near.map(|near| format!(" (did you mean `{near}`?)")).unwrap_or_default();
            let found = format!("no agent with that name{near}");
            refuse(setting, &found, &format!("one of {}", known.join(", ")), problems);
        }
    }
    if any {
        let line = there.map_or(root.line, |entry| entry.line);
        let node = Node { line, value: Value::Sequence(chosen) };
        remove(root, "agents");
        if let Value::Mapping(entries) = &mut root.value {
            entries.push(Entry { key: "agents".to_owned(), line, node });
        }
    }
}

fn mapping(fields: &[(&'static str, Value)], line: usize) -> Value {
    let entry = |(key, value): &(&'static str, Value)| Entry {
        key: (*key).to_owned(),
        line,
        node: placed(value.clone(), line),
    };
    Value::Mapping(fields.iter().map(entry).collect())
}

/// The value with all of its parts at one place.
fn placed(value: Value, line: usize) -> Node {
    let value = match value {
        Value::Sequence(nodes) => {
            Value::Sequence(nodes.into_iter().map(|node| placed(node.value, line)).collect())
        }
        Value::Mapping(entries) => Value::Mapping(
            entries
                .into_iter()
                .map(|entry| Entry { line, node: placed(entry.node.value, line), ..entry })
                .collect(),
        ),
        single => single,
    };
    Node { line, value }
}

fn value(text: &Text, line: usize) -> Result<Node, String> {
    match text {
        Text::Exact(text) => Ok(Node { line, value: Value::String(text.clone()) }),
        Text::Plain(text) => Ok(Node { line, value: plain(text) }),
        Text::Yaml(text) => match yaml::parse(text) {
            Ok((node, faults)) if faults.is_empty() => Ok(placed(node.value, line)),
            Ok((_, faults)) => Err(faults[0].message.clone()),
            Err(fault) => Err(format!("no YAML: {}", fault.message)),
        },
    }
}

#[derive(Debug, Clone)]
struct Segment {
    text: String,
    bracket: bool,
}

/// The parts of `a.b[0].c`.
fn segments(key: &str) -> Result<Vec<Segment>, String> {
    let mut segments = Vec::new();
    for part in key.split('.') {
        let (name, indices) = part.split_once('[').map_or((part, None), |(n, i)| (n, Some(i)));
        if name.is_empty() {
            return Err(format!("the key path `{key}`"));
        }
        segments.push(Segment { text: name.to_owned(), bracket: false });
        let Some(indices) = indices else { continue };
        let Some(indices) = indices.strip_suffix(']') else {
            return Err(format!("the key path `{key}`"));
        };
        for index in indices.split("][") {
            segments.push(Segment { text: index.to_owned(), bracket: true });
        }
    }
    Ok(segments)
}

fn put(node: &mut Node, key: &str, value: Node, line: usize) -> Result<(), String> {
    put_at(node, &segments(key)?, value, line)
}

fn put_at(node: &mut Node, path: &[Segment], value: Node, line: usize) -> Result<(), String> {
    let Some((segment, rest)) = path.split_first() else {
        *node = value;
        return Ok(());
    };
    if node.value == Value::Null {
        let empty =
            if segment.bracket { Value::Sequence(Vec::new()) } else { Value::Mapping(Vec::new()) };
        *node = Node { line, value: empty };
    }
    let described = node.describe();
    match &mut node.value {
        Value::Mapping(entries) if !segment.bracket => {
            let at = entries.iter().position(|entry| entry.key == segment.text);
            let at = at.unwrap_or_else(|| {
                let node = Node { line, value: Value::Null };
                entries.push(Entry { key: segment.text.clone(), line, node });
                entries.len() - 1
            });
            if rest.is_empty() {
                entries[at].line = line;
            }
            put_at(&mut entries[at].node, rest, value, line)
        }
        Value::Sequence(nodes) => {
            let index = segment.text.parse::<usize>().ok().filter(|index| *index <= nodes.len());
            let Some(index) = index else {
                return Err(format!("`{}` in a list of {} items", segment.text, nodes.len()));
            };
            if index == nodes.len() {
                nodes.push(Node { line, value: Value::Null });
            }
            put_at(&mut nodes[index], rest, value, line)
        }
        _ => Err(format!("`{}` below {described}", segment.text)),
    }
}

fn append(root: &mut Node, key: &str, value: Value, line: usize) -> Result<(), String> {
    let at = list_len(root, key)?;
    let last = Segment { text: at.to_string(), bracket: true };
    let path = [Segment { text: key.to_owned(), bracket: false }, last];
    put_at(root, &path, placed(value, line), line)
}

fn list_len(root: &Node, key: &str) -> Result<usize, String> {
    let Value::Mapping(entries) = &root.value else { return Ok(0) };
    match entries.iter().find(|entry| entry.key == key).map(|entry| &entry.node) {
        None | Some(Node { value: Value::Null, .. }) => Ok(0),
        Some(Node { value: Value::Sequence(nodes), .. }) => Ok(nodes.len()),
        Some(node) => Err(format!("`{key}` is {}", node.describe())),
    }
}

/// Changes every item of a list.
fn each(
    root: &mut Node,
    key: &str,
    mut change: impl FnMut(&mut Node) -> Result<(), String>,
) -> Result<(), String> {
    let Value::Mapping(entries) = &mut root.value else { return Ok(()) };
    let entry = entries.iter_mut().find(|entry| entry.key == key);
    let Some(Value::Sequence(nodes)) = entry.map(|entry| &mut entry.node.value) else {
        return Ok(());
    };
    nodes.iter_mut().try_for_each(&mut change)
}

fn remove(root: &mut Node, key: &str) {
    if let Value::Mapping(entries) = &mut root.value {
        entries.retain(|entry| entry.key != key);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Job, Options, Problems, document, job_of_settings, read_job};
    use super::*;

    const FILE: &str = "
n_attempts: 2
agents:
  - {name: mine, execute: 'true', env: {A: x}}
  - name: nop
datasets: [{path: d, task_names: [z]}, {path: e}]
tasks: [{path: f}]
";

    /// The job of a file with settings, and what is wrong with it.
    fn read(file: Option<&str>, settings: Vec<Setting>) -> (Option<Job>, Vec<String>) {
        let dir = tempfile::tempdir().expect("a directory");
        let options = Options { settings, ..Options::new(&|_| true) };
        let mut problems = Problems::default();
        let job = match file {
            None => job_of_settings(&options, &mut problems),
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
    fn a_job_without_a_file() {
        let settings = vec![
            Setting::dataset("-p d", GivenDataset::Path("d".to_owned())),
            Setting::agent("-a oracle", "oracle"),
            Setting::each_dataset_list("-t x*", "task_names", &["x*".to_owned()]),
            Setting::each_dataset("-l 10", "n_tasks", "10"),
            Setting::plain("-k 2", "n_attempts", "2"),
        ];
        let (job, faults) = read(None, settings);
        assert_eq!(faults, [] as [&str; 0]);
        let job = job.expect("a job");
        let said = document(&job);
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
    fn options_go_over_the_file_and_lists_are_reached_by_index() {
        let settings = vec![
            Setting::yaml("--set agents[0].env.B", "agents[0].env.B", "y"),
            Setting::yaml("--set agents.1.description", "agents.1.description", "d"),
            Setting::yaml("--set metrics", "metrics", "[{type: max}]"),
            Setting::yaml("--set metrics[1].type", "metrics[1].type", "min"),
            Setting::yaml("--set n_attempts", "n_attempts", ""),
            Setting::each_agent("--agent-env C", "C", "1"),
            Setting::each_agent_key("--ak description", "description", "every"),
        ];
        let (job, faults) = read(Some(FILE), settings);
        assert_eq!(faults, [] as [&str; 0]);
        let job = job.expect("a job");
        let said = document(&job);
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
    fn agents_and_datasets_of_the_command_line_take_the_place_of_the_files() {
        let registered = GivenDataset::Registered {
            registry: "https://host/r.json".to_owned(),
            name: "n".to_owned(),
            version: Some("2.0".to_owned()),
        };
        let settings = vec![
            Setting::dataset("-d n@2.0", registered),
            Setting::agent("-a oracle", "oracle"),
            Setting::agent("-a mine", "mine"),
        ];
        let (job, faults) = read(Some(FILE), settings);
        assert_eq!(faults, [] as [&str; 0]);
        let said = document(&job.expect("a job"));
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
    fn faults_name_the_option() {
        let (_, faults) = read(
            Some(FILE),
            vec![
                Setting::yaml("--set environment.typ", "environment.typ", "docker"),
                Setting::plain("-e dokcer", "environment.type", "dokcer"),
                Setting::plain("-k 0", "n_attempts", "0"),
                Setting::yaml("--set agents[7].name", "agents[7].name", "x"),
                Setting::yaml("--set n_attempts.x", "n_attempts.x", "1"),
                Setting::yaml("--set name", "name", "[1"),
                Setting::yaml("--set a..b", "a..b", "1"),
                Setting::agent("-a mien", "mien"),
            ],
        );
        for expected in [
            "command line: --set environment.typ: found an unknown key",
            "command line: -e dokcer (environment.type): found the text \"dokcer\"",
            "command line: -k 0 (n_attempts): found 0",
            "command line: --set agents[7].name: found `7` in a list of 0 items",
            "command line: --set n_attempts.x: found `x` below 0",
            "command line: --set name: found no YAML",
            "command line: --set a..b: found the key path `a..b`",
            "command line: -a mien: found no agent with that name (did you mean `mine`?)",
        ] {
            assert!(faults.iter().any(|fault| fault.contains(expected)), "{expected}: {faults:#?}");
        }
        let unknown = Setting::each_agent_key("--ak max_turns", "max_turns", "5");
        let (_, faults) = read(Some(FILE), vec![unknown]);
        let said = "command line: --ak max_turns (agents[0].max_turns): found an unknown key, ";
        let short = "command line: --ak max_turns: found an unknown key, ";
        assert!([said, short].iter().any(|said| faults[0].starts_with(said)), "{faults:?}");
        let (_, faults) = read(None, Vec::new());
        assert!(faults[0].starts_with("command line: agents: found nothing"), "{faults:?}");
    }
}
