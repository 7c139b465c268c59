//! Format of a task file, and the defaults that follow from it.

use std::fmt;
use std::path::Path;

use rollout_protocol::spec::resources::ResourceCeilings;
use rollout_protocol::spec::task::TaskFormat;

use super::super::reader::Fields;
use super::super::value::{ConfigNode, ConfigValue};
use super::TASK_REFERENCE;
use super::harbor_detection::{self, TaskFileError};

/// Words of `format`.
const FORMATS: &[(&str, TaskFormat)] =
    &[("rollout", TaskFormat::Rollout), ("harbor", TaskFormat::Harbor)];

keys! {
    /// The format and its version.
    pub(crate) table VersionKeys {
        schema_version (Harbor): Value("text"), "1.4", "Version of the format.";
        version: Value("text"), "1.0",
            "Version of the format; in Harbor the older spelling of `schema_version`.";
        format: Value("rollout|harbor"), "guessed from other keys and files",
            "Format of the file and of the task's scripts.";
    }
}

/// The format of a task file, and the reason for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FormatChoice {
    /// The format.
    pub format: TaskFormat,
    /// Reason for the choice.
    pub reason: FormatReason,
}

/// Reason for reading a task file in a format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FormatReason {
    /// Set by the job or the registry.
    Requested,
    /// Recorded in the run's plan.
    Planned,
    /// Guessed when the run was planned, and recorded in its plan.
    PlannedGuess,
    /// The file has this key, which states the format or which only this format defines.
    SpecificKey(String),
    /// No key is specific to a format; this file indicates Harbor.
    HarborEvidence(String),
    /// No key is specific to a format and no file indicates Harbor.
    NoEvidence,
}

/// Hints at a task's format, known before its file is read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FormatHints {
    /// The format set by the job or the registry.
    pub requested: Option<TaskFormat>,
    /// The format in the plan of the resumed run.
    pub planned: PlannedFormat,
}

/// The format of a task in the plan of a resumed run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum PlannedFormat {
    /// There is no plan, or the task is not in it.
    #[default]
    Absent,
    /// The task is in a plan of an older version, which recorded no formats: only keys decide.
    ByKeys,
    /// The recorded format.
    Recorded(TaskFormat),
    /// The recorded format, which was a guess.
    Guessed(TaskFormat),
}

impl FormatChoice {
    /// Chooses the format. A requested format wins, then that of the run's plan, then the keys:
    /// `format`, Harbor for `schema_version`, Rollout for a key that only it defines, Harbor for one
    /// that only it defines. The reference says which format defines a key. Without such keys the
    /// format is guessed: Harbor for a task with files that indicate it in `dir`, else Rollout. The
    /// source of the task has no influence.
    ///
    /// # Errors
    /// If the files of the task cannot be read.
    pub(super) fn detect(
        root: &ConfigNode,
        hints: FormatHints,
        dir: &Path,
    ) -> Result<Self, TaskFileError> {
        let requested =
            hints.requested.map(|format| Self { format, reason: FormatReason::Requested });
        let planned = match hints.planned {
            PlannedFormat::Recorded(format) => Some(Self { format, reason: FormatReason::Planned }),
            PlannedFormat::Guessed(format) => {
                Some(Self { format, reason: FormatReason::PlannedGuess })
            }
            PlannedFormat::ByKeys | PlannedFormat::Absent => None,
        };
        if let Some(choice) = requested.or(planned).or_else(|| Self::from_keys(root)) {
            return Ok(choice);
        }
        if hints.planned != PlannedFormat::ByKeys
            && let Some(sign) = harbor_detection::find_harbor_evidence(dir)?
        {
            let reason = FormatReason::HarborEvidence(sign);
            return Ok(Self { format: TaskFormat::Harbor, reason });
        }
        Ok(Self { format: TaskFormat::Rollout, reason: FormatReason::NoEvidence })
    }

    /// The format that the keys of the file determine.
    fn from_keys(root: &ConfigNode) -> Option<Self> {
        if let Some(format) = stated_format(root) {
            let key = VersionKeys::format.name.to_owned();
            return Some(Self { format, reason: FormatReason::SpecificKey(key) });
        }
        let mut keys = Vec::new();
        collect_key_paths(root, "", &mut keys);
        let first_of = |format| keys.iter().find(|key| format_of_key(key) == Some(format)).cloned();
        let own = |format, key| Self { format, reason: FormatReason::SpecificKey(key) };
        if keys.iter().any(|key| key == "schema_version") {
            return Some(own(TaskFormat::Harbor, "schema_version".to_owned()));
        }
        let rollout = first_of(TaskFormat::Rollout).map(|key| own(TaskFormat::Rollout, key));
        rollout.or_else(|| Some(own(TaskFormat::Harbor, first_of(TaskFormat::Harbor)?)))
    }
}

impl FormatReason {
    /// Whether the format is set by neither the job, the task file nor a plan.
    pub const fn is_guess(&self) -> bool {
        matches!(self, Self::PlannedGuess | Self::HarborEvidence(_) | Self::NoEvidence)
    }
}

impl fmt::Display for FormatReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Requested => f.write_str("as requested"),
            Self::Planned => f.write_str("as recorded in the run's plan"),
            Self::SpecificKey(key) => write!(f, "because of `{key}`"),
            Self::PlannedGuess => f.write_str("as guessed when the run was planned"),
            Self::HarborEvidence(sign) => {
                write!(f, "guessed: {sign}; write `format = \"rollout\"` if it is a Rollout task")
            }
            Self::NoEvidence => f.write_str(
                "guessed: no key, file or command is specific to Harbor; write `format = \
                 \"harbor\"` if it is a Harbor task",
            ),
        }
    }
}

/// The format that the file states; an invalid word is an error of the key.
fn stated_format(root: &ConfigNode) -> Option<TaskFormat> {
    let ConfigValue::Mapping(entries) = &root.value else { return None };
    let entry = entries.iter().find(|entry| entry.key == VersionKeys::format.name)?;
    let ConfigValue::String(word) = &entry.node.value else { return None };
    FORMATS.iter().find(|(known, _)| known == word).map(|(_, format)| *format)
}

fn format_of_key(key: &str) -> Option<TaskFormat> {
    TASK_REFERENCE.find(key).and_then(|entry| entry.format)
}

/// Collects the paths of all keys, those of lists with `[]`. `metadata` is skipped: its keys are
/// the user's.
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

/// Defaults of absent keys.
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
    /// Resources that are ceilings although the file does not set them.
    pub(super) ceilings: ResourceCeilings,
}

impl FormatDefaults {
    /// The defaults of a format.
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

/// Checks `format`, and `version` or `schema_version`; each format also accepts the other's key.
pub(super) fn version(choice: &FormatChoice, fields: &mut Fields<'_>) {
    let format = choice.format;
    let _stated = fields.take(VersionKeys::format).keyword(FORMATS);
    let version = fields.take(VersionKeys::version);
    let schema = fields.take(VersionKeys::schema_version);
    let given = if version.is_present() { &version } else { &schema };
    match given.text() {
        Some(text) if text == "1" || text.starts_with("1.") => {}
        Some(text) => given.warn(format!("unknown version {text:?}; read as \"1.0\"")),
        None if given.is_present() => {}
        None if format == TaskFormat::Rollout => version.warn("absent; read as \"1.0\""),
        None => {}
    }
    // A guessed format does not justify a warning about the other format's key.
    if format == TaskFormat::Harbor && version.is_present() && !choice.reason.is_guess() {
        version.warn("deprecated: use `schema_version`");
    }
}
