//! Which format a task file is in, and what that makes of absent keys.

use std::fmt;

use rollout_protocol::spec::resources::Ceilings;
use rollout_protocol::spec::task::TaskFormat;

use super::super::fields::Fields;
use super::super::reference::TASK;
use super::super::tree::{Node, Value};

/// The format a task file is read in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FormatChoice {
    /// The format.
    pub format: TaskFormat,
    /// Why this one.
    pub reason: FormatReason,
}

/// Why a task file is read in a format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FormatReason {
    /// The job, or whoever asks, says so.
    Asked,
    /// A key that only this format has by itself.
    OwnKey(String),
    /// No key of either format alone.
    NoOwnKey,
}

impl FormatChoice {
    /// The format that was asked for, or else the one that the keys say: Harbor's for
    /// `schema_version`, Rollout's for a key of its own, Harbor's for one of its own, and Rollout's
    /// when there is none. Which keys are whose is in the reference.
    pub(super) fn of(root: &Node, asked: Option<TaskFormat>) -> Self {
        if let Some(format) = asked {
            return Self { format, reason: FormatReason::Asked };
        }
        let mut keys = Vec::new();
        collect(root, "", &mut keys);
        let first_of = |format| keys.iter().find(|key| owner(key) == Some(format)).cloned();
        let own = |format, key| Self { format, reason: FormatReason::OwnKey(key) };
        if keys.iter().any(|key| key == "schema_version") {
            own(TaskFormat::Harbor, "schema_version".to_owned())
        } else if let Some(key) = first_of(TaskFormat::Rollout) {
            own(TaskFormat::Rollout, key)
        } else if let Some(key) = first_of(TaskFormat::Harbor) {
            own(TaskFormat::Harbor, key)
        } else {
            Self { format: TaskFormat::Rollout, reason: FormatReason::NoOwnKey }
        }
    }
}

impl fmt::Display for FormatReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Asked => f.write_str("as asked for"),
            Self::OwnKey(key) => write!(f, "because of `{key}`"),
            Self::NoOwnKey => f.write_str(
                "for want of a key that only Harbor has; `format: harbor` reads it as Harbor does",
            ),
        }
    }
}

fn owner(key: &str) -> Option<TaskFormat> {
    TASK.find(key).and_then(|entry| entry.format)
}

/// Paths of all keys, those of lists with `[]`. The user's own tables are not looked into.
fn collect(node: &Node, path: &str, keys: &mut Vec<String>) {
    match &node.value {
        Value::Mapping(entries) => {
            for entry in entries {
                let key = match path {
                    "" => entry.key.clone(),
                    _ => format!("{path}.{}", entry.key),
                };
                if key != "metadata" {
                    collect(&entry.node, &key, keys);
                }
                keys.push(key);
            }
        }
        Value::Sequence(items) => {
            let path = format!("{path}[]");
            items.iter().for_each(|item| collect(item, &path, keys));
        }
        _ => {}
    }
}

/// What holds when a key is absent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Defaults {
    /// `agent.timeout_sec`.
    pub(super) agent_sec: Option<f64>,
    /// `agent.install_timeout_sec`.
    pub(super) install_sec: f64,
    /// `verifier.timeout_sec`.
    pub(super) verifier_sec: f64,
    /// `environment.build_timeout_sec`.
    pub(super) build_sec: f64,
    /// Which resources are ceilings although the file does not name them.
    pub(super) ceilings: Ceilings,
}

impl Defaults {
    /// Those of a format.
    pub(super) const fn of(format: TaskFormat) -> Self {
        let common = Self {
            agent_sec: Some(600.0),
            install_sec: 300.0,
            verifier_sec: 600.0,
            build_sec: 600.0,
            ceilings: Ceilings::ALL,
        };
        match format {
            TaskFormat::Rollout => common,
            TaskFormat::Harbor => {
                Self { agent_sec: None, install_sec: 360.0, ceilings: Ceilings::NONE, ..common }
            }
        }
    }
}

/// `version` or `schema_version`: each format knows the other's word for it.
pub(super) fn version(format: TaskFormat, fields: &mut Fields<'_>) {
    let version = fields.take("version");
    let schema = fields.take("schema_version");
    let given = if version.is_present() { &version } else { &schema };
    match given.text() {
        Some(text) if text == "1" || text.starts_with("1.") => {}
        Some(text) => given.warn(format!("version {text:?} is not known; read as \"1.0\"")),
        None if given.is_present() => {}
        None if format == TaskFormat::Rollout => version.warn("absent; read as \"1.0\""),
        None => {}
    }
    if format == TaskFormat::Harbor && version.is_present() {
        version.warn("deprecated: use `schema_version`");
    }
}
