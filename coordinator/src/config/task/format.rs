//! Which format a task file is in, and what that makes of absent keys.

use std::fmt;
use std::path::Path;

use rollout_protocol::spec::resources::ResourceCeilings;
use rollout_protocol::spec::task::TaskFormat;

use super::super::reader::Fields;
use super::super::value::{ConfigNode, ConfigValue};
use super::TASK_REFERENCE;
use super::harbor_detection::{self, TaskFileError};

keys! {
    /// Versions of the formats.
    pub(crate) table VersionKeys {
        schema_version (Harbor): "text", "1.4", "Version of the format.";
        version: "text", "1.0", "Version of the format; Harbor's older word for it, too.";
    }
}

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
    /// The job or the registry says so.
    Asked,
    /// The plan of the run records it.
    Planned,
    /// A key that only this format has by itself.
    OwnKey(String),
    /// No key of either format alone; the task was fetched from a registry or a repository.
    Fetched,
    /// No key of either format alone; this file is a sign of Harbor.
    Sign(String),
    /// No key of either format alone and no sign of Harbor.
    NoSign,
}

/// Hints at a task's format that are there before its file is read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FormatHints {
    /// The format that the job or the registry asks for.
    pub asked: Option<TaskFormat>,
    /// Answer of the plan of the run that is resumed.
    pub planned: PlannedFormat,
    /// Whether the task comes from a registry or a repository.
    pub fetched: bool,
}

/// Answer of the plan of a run that is resumed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum PlannedFormat {
    /// There is no plan, or the task is not in it.
    #[default]
    Absent,
    /// The task is in the plan of a version that recorded no formats: keys alone decided.
    ByKeys,
    /// The format that it records.
    Recorded(TaskFormat),
}

impl FormatChoice {
    /// The format that was asked for, else that of the run's plan, else the one that the keys say:
    /// Harbor's for `schema_version`, Rollout's for a key of its own, Harbor's for one of its own.
    /// Which keys belong to which format is in the reference. Without any, the format is guessed:
    /// Harbor's for a fetched task and for one with a sign of it in `dir`, else Rollout's.
    ///
    /// # Errors
    /// When the files of the task cannot be read.
    pub(super) fn detect(
        root: &ConfigNode,
        hints: FormatHints,
        dir: &Path,
    ) -> Result<Self, TaskFileError> {
        let asked = hints.asked.map(|format| Self { format, reason: FormatReason::Asked });
        let planned = match hints.planned {
            PlannedFormat::Recorded(format) => Some(Self { format, reason: FormatReason::Planned }),
            PlannedFormat::ByKeys | PlannedFormat::Absent => None,
        };
        if let Some(choice) = asked.or(planned).or_else(|| Self::from_keys(root)) {
            return Ok(choice);
        }
        let harbor = |reason| Ok(Self { format: TaskFormat::Harbor, reason });
        if hints.planned != PlannedFormat::ByKeys {
            if hints.fetched {
                return harbor(FormatReason::Fetched);
            }
            if let Some(sign) = harbor_detection::find_harbor_evidence(dir)? {
                return harbor(FormatReason::Sign(sign));
            }
        }
        Ok(Self { format: TaskFormat::Rollout, reason: FormatReason::NoSign })
    }

    /// The format that the keys of the file say.
    fn from_keys(root: &ConfigNode) -> Option<Self> {
        let mut keys = Vec::new();
        collect_key_paths(root, "", &mut keys);
        let first_of = |format| keys.iter().find(|key| format_of_key(key) == Some(format)).cloned();
        let own = |format, key| Self { format, reason: FormatReason::OwnKey(key) };
        if keys.iter().any(|key| key == "schema_version") {
            return Some(own(TaskFormat::Harbor, "schema_version".to_owned()));
        }
        let rollout = first_of(TaskFormat::Rollout).map(|key| own(TaskFormat::Rollout, key));
        rollout.or_else(|| Some(own(TaskFormat::Harbor, first_of(TaskFormat::Harbor)?)))
    }
}

impl FormatReason {
    /// Whether neither the job nor the task file nor a plan says the format.
    pub const fn is_guess(&self) -> bool {
        matches!(self, Self::Fetched | Self::Sign(_) | Self::NoSign)
    }
}

impl fmt::Display for FormatReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Asked => f.write_str("as asked for"),
            Self::Planned => f.write_str("as the plan of the run says"),
            Self::OwnKey(key) => write!(f, "because of `{key}`"),
            Self::Fetched => f.write_str(
                "guessed: it comes from a registry or a repository; `format: rollout` reads it as \
                 Rollout does",
            ),
            Self::Sign(sign) => {
                write!(f, "guessed: {sign}; `format: rollout` reads it as Rollout does")
            }
            Self::NoSign => f.write_str(
                "guessed: no key and no file that only Harbor has; `format: harbor` reads it as \
                 Harbor does",
            ),
        }
    }
}

fn format_of_key(key: &str) -> Option<TaskFormat> {
    TASK_REFERENCE.find(key).and_then(|entry| entry.format)
}

/// Paths of all keys, those of lists with `[]`. The user's own tables are not looked into.
fn collect_key_paths(node: &ConfigNode, path: &str, keys: &mut Vec<String>) {
    match &node.value {
        ConfigValue::Mapping(entries) => {
            for entry in entries {
                let key = match path {
                    "" => entry.key.clone(),
                    _ => format!("{path}.{}", entry.key),
                };
                if key != "metadata" {
                    collect_key_paths(&entry.node, &key, keys);
                }
                keys.push(key);
            }
        }
        ConfigValue::Sequence(items) => {
            let path = format!("{path}[]");
            items.iter().for_each(|item| collect_key_paths(item, &path, keys));
        }
        _ => {}
    }
}

/// What holds when a key is absent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct FormatDefaults {
    /// `agent.timeout_sec`.
    pub(super) agent_sec: Option<f64>,
    /// `agent.install_timeout_sec`.
    pub(super) install_sec: f64,
    /// `verifier.timeout_sec`.
    pub(super) verifier_sec: f64,
    /// `environment.build_timeout_sec`.
    pub(super) build_sec: f64,
    /// Which resources are ceilings although the file does not name them.
    pub(super) ceilings: ResourceCeilings,
}

impl FormatDefaults {
    /// Those of a format.
    pub(super) const fn for_format(format: TaskFormat) -> Self {
        let common = Self {
            agent_sec: Some(600.0),
            install_sec: 300.0,
            verifier_sec: 600.0,
            build_sec: 600.0,
            ceilings: ResourceCeilings::ALL,
        };
        match format {
            TaskFormat::Rollout => common,
            TaskFormat::Harbor => Self {
                agent_sec: None,
                install_sec: 360.0,
                ceilings: ResourceCeilings::NONE,
                ..common
            },
        }
    }
}

/// `version` or `schema_version`: each format knows the other's word for it.
pub(super) fn version(choice: &FormatChoice, fields: &mut Fields<'_>) {
    let format = choice.format;
    let version = fields.take(VersionKeys::version);
    let schema = fields.take(VersionKeys::schema_version);
    let given = if version.is_present() { &version } else { &schema };
    match given.text() {
        Some(text) if text == "1" || text.starts_with("1.") => {}
        Some(text) => given.warn(format!("version {text:?} is not known; read as \"1.0\"")),
        None if given.is_present() => {}
        None if format == TaskFormat::Rollout => version.warn("absent; read as \"1.0\""),
        None => {}
    }
    // A guess is no ground to find fault with the other format's word.
    if format == TaskFormat::Harbor && version.is_present() && !choice.reason.is_guess() {
        version.warn("deprecated: use `schema_version`");
    }
}
