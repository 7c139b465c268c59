//! Task files (`task.toml`) as written, defaults filled in.

use std::collections::BTreeMap;
use std::path::Path;

use rollout_protocol::spec::resources::Resources;

use super::elements::timeouts::TaskTimeouts;
use super::elements::variables::Variable;
use super::elements::{resources, timeouts, variables};
use super::fields::{Field, Fields, Reader, Spot, UnknownKeys};
use super::problem::{ErrorKind, Problems};
use super::{read, task_toml};

/// A task file.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TaskFile {
    /// `source`: where the task comes from.
    pub source: Option<String>,
    /// The time limits.
    pub timeouts: TaskTimeouts,
    /// `environment.docker_image`.
    pub docker_image: Option<String>,
    /// The resources of `environment`.
    pub resources: Resources,
    /// `environment.env`: variables of every script.
    pub env: BTreeMap<String, Variable>,
}

/// Reads a task file; nothing when it cannot be read or is not TOML. Keys that are not known are
/// warnings: task files are shared with other tools.
pub fn read_task(file: &Path, problems: &mut Problems) -> Option<TaskFile> {
    let text = read::text(file, problems)?;
    let root = match task_toml::parse(&text) {
        Ok(root) => root,
        Err(faults) => {
            for fault in faults {
                let spot = Spot { key: String::new(), line: fault.line };
                let expected = "a TOML document";
                problems.error(spot.error(file, ErrorKind::Syntax, fault.message, expected));
            }
            return None;
        }
    };
    let reader = Reader::new(file, UnknownKeys::Warnings);
    let task = reader.root(&root).map(|mut fields| {
        let task = task(&mut fields);
        fields.finish();
        task
    });
    problems.extend(reader.into_problems());
    task
}

fn task(fields: &mut Fields<'_>) -> TaskFile {
    version(fields);
    let mut task = TaskFile { source: fields.take("source").string(), ..TaskFile::default() };
    if let Some(metadata) = Some(fields.take("metadata")).filter(Field::is_present) {
        // Anything may stand below, as long as it is a table.
        metadata.entries();
    }
    let default = TaskTimeouts::default();
    if let Some(mut verifier) = fields.take("verifier").mapping() {
        let field = verifier.take("timeout_sec");
        task.timeouts.verifier_sec = timeouts::read(&field, default.verifier_sec);
        verifier.finish();
    }
    if let Some(mut agent) = fields.take("agent").mapping() {
        let install = agent.take("install_timeout_sec");
        task.timeouts.install_sec = timeouts::read(&install, default.install_sec);
        task.timeouts.agent_sec = Some(timeouts::read(&agent.take("timeout_sec"), 600.0));
        agent.finish();
    }
    if let Some(mut environment) = fields.take("environment").mapping() {
        let build = environment.take("build_timeout_sec");
        task.timeouts.build_sec = timeouts::read(&build, default.build_sec);
        task.docker_image = docker_image(&environment.take("docker_image"));
        task.resources = resources::read_task(&mut environment);
        task.env = variables::read(&environment.take("env"));
        environment.finish();
    }
    task
}

/// `version`, or `schema_version` as other tools of the format spell it.
fn version(fields: &mut Fields<'_>) {
    let version = fields.take("version");
    let alias = fields.take("schema_version");
    let given = if version.is_present() { &version } else { &alias };
    match given.text() {
        Some(text) if text == "1" || text.starts_with("1.") => {}
        Some(text) => given.warn(format!("version {text:?} is not known; read as \"1.0\"")),
        None if given.is_present() => {}
        None => version.warn("absent; read as \"1.0\""),
    }
}

fn docker_image(field: &Field<'_>) -> Option<String> {
    let image = field.name()?;
    if image.chars().any(|c| c.is_whitespace() || c.is_control()) || image.starts_with('-') {
        field.bad_value("an image reference such as `debian:bookworm-slim`");
        return None;
    }
    Some(image)
}
