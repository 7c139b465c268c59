//! Task files (`task.toml`) of both formats as written, defaults filled in. One reader serves both:
//! only their defaults differ, a key means the same in either.

mod agent;
mod collect;
mod environment;
mod format;
mod harbor_detection;
mod healthcheck;
mod mcp;
mod metadata;
mod network;
mod script_commands;
mod steps;
#[cfg(test)]
mod tests;
pub(super) mod toml;
mod verifier;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::LazyLock;

use rollout_base::confined::leads_outside;
use rollout_protocol::spec::task::{
    Artifact, McpServer, StepSpec, StepStrategy, TaskEnvironment, TaskFormat,
};
use rollout_protocol::template::Template;

use super::diagnostics::{Diagnostics, ErrorKind};
use super::elements::artifacts;
use super::elements::variables::{self, Variable};
use super::location::SourceLocation;
use super::read;
use super::reader::{ConfigReader, Field, Fields, UnknownKeys};
use super::reference::KeyReference;
use super::value::{ConfigNode, ConfigValue};
pub(super) use environment::docker_image;
use format::FormatDefaults;
pub(super) use mcp::{McpKeys, read as read_mcp_servers};
pub(super) use network::host as read_host;

pub use format::{FormatChoice, FormatHints, FormatReason, PlannedFormat};
pub use metadata::TaskMetadata;

keys! {
    /// The keys of task files. Both formats accept all of them; a format marks where a key comes
    /// from.
    pub(crate) table TaskKeys {
        "" => format::VersionKeys::ALL;
        "" => metadata::AboutKeys::ALL;
        agent: Value("table"), "empty", "How agents run.", "agent" => agent::AgentPhaseKeys::ALL;
        verifier: Value("table"), "empty", "How the result is verified.",
            "verifier" => verifier::VerifierPhaseKeys::ALL;
        environment: Value("table"), "empty", "Environment of the agent.",
            "environment" => environment::TaskEnvironmentKeys::ALL;
        solution (Harbor): Value("table"), "empty", "How the oracle runs the solution.",
            "solution" => SolutionKeys::ALL;
        artifacts (Harbor): Value("list of text or tables"), "empty",
            "Files to collect, and to copy to a separate verifier.",
            "artifacts[]" => artifacts::ArtifactKeys::ALL,
            "" => steps::StepsKeys::ALL;
    }

    /// The keys of `solution`.
    pub(crate) table SolutionKeys {
        env: Value("table NAME = text"), "empty", "Variables of `solve.sh`.";
    }
}

/// The reference of task files. Both formats accept all keys; a key's format helps to detect the
/// format of a file if the job does not set it.
pub static TASK_REFERENCE: LazyLock<KeyReference> =
    LazyLock::new(|| KeyReference::new("task.toml", TaskKeys::ALL, EQUIVALENT_TABLES));

const EQUIVALENT_TABLES: &[(&str, &str)] = &[
    ("steps[].verifier.environment", "environment"),
    ("steps[].verifier", "verifier"),
    ("steps[].agent", "agent"),
    ("steps[].healthcheck", "environment.healthcheck"),
    ("steps[].artifacts[]", "artifacts[]"),
    ("verifier.environment", "environment"),
];

/// A task file.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskFile {
    /// The format of the file, and the reason for it.
    pub format: FormatChoice,
    /// Metadata for users and registries.
    pub metadata: TaskMetadata,
    /// The agent's environment, without the files of its directory. Time limits and resources are
    /// the task's own, without the job's changes.
    pub environment: TaskEnvironment,
    /// Time limit of the agent's install script, seconds.
    pub install_sec: f64,
    /// The steps, without files. At least one; a single step may have no name.
    pub steps: Vec<StepSpec>,
    /// How the rewards of several steps are combined.
    pub strategy: StepStrategy,
    /// MCP servers.
    pub mcp_servers: Vec<McpServer>,
    /// Directory with skills, inside the environment.
    pub skills_dir: Option<String>,
    /// Values that may refer to host variables, under every agent.
    pub variables: Vec<Variable>,
    /// Values of the solution that may refer to host variables; only the oracle uses them.
    pub solution_variables: Vec<Variable>,
    /// Features that not every provider supports.
    pub demands: Vec<Demand>,
}

/// A feature that not every provider supports, and where the task asks for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Demand {
    /// The feature.
    pub kind: DemandKind,
    /// Location of the key that asks for it.
    pub location: SourceLocation,
}

/// A feature that not every provider supports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DemandKind {
    /// Scripts run as a user other than root.
    User(String),
    /// A phase has another network policy than the environment.
    NetworkOfPhase,
    /// Network access is limited to a list of hosts.
    Allowlist,
    /// GPUs.
    Gpus,
    /// GPUs of one of these types.
    GpuTypes(Vec<String>),
    /// TPUs.
    Tpu,
    /// Windows.
    Windows,
    /// A command runs in, or an artifact comes from, a service beside the environment.
    Service(String),
}

/// State shared by the parts of a file while it is read.
struct TaskReadContext {
    defaults: FormatDefaults,
    variables: Vec<Variable>,
    demands: Vec<Demand>,
    /// Whether an environment is of Windows: the task is unsupported as a whole.
    is_windows: bool,
}

/// Reads a task file in the format that the hints, its keys or the files beside it determine.
/// `None` if it cannot be read or is not TOML. Unknown keys are warnings: task files are shared
/// with other tools.
pub fn read_task(file: &Path, hints: FormatHints, problems: &mut Diagnostics) -> Option<TaskFile> {
    let dir = file.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let text = read::task_text(dir, Path::new(file.file_name()?), problems)?;
    let root = match toml::parse(&text) {
        Ok(root) => root,
        Err(faults) => {
            for fault in faults {
                let spot = SourceLocation { key: String::new(), line: fault.line };
                let message = format!("cannot parse the file as TOML: {}", fault.message);
                problems.error(spot.failure(file, ErrorKind::Syntax, message));
            }
            return None;
        }
    };
    let format = match FormatChoice::detect(&root, hints, dir) {
        Ok(format) => format,
        Err(error) if leads_outside(&error.source) => {
            problems.error(read::outside_task(&error.path));
            return None;
        }
        Err(error) => {
            let spot = SourceLocation { key: String::new(), line: None };
            let found = format!("an entry that cannot be read: {}", error.source);
            let expected = "the files of a task";
            problems.error(spot.error(&error.path, ErrorKind::Unreadable, found, expected));
            return None;
        }
    };
    let reader = ConfigReader::new(file, UnknownKeys::Warnings);
    let task = reader.root(&root).map(|mut fields| {
        let task = task(format, &mut fields);
        fields.finish();
        task
    });
    problems.extend(reader.into_problems());
    task
}

/// Stands for a task file that cannot be read: the defaults of the format that the readable part of
/// the file determines.
pub(crate) fn unreadable_task(file: &Path, hints: FormatHints) -> TaskFile {
    let dir = file.parent().unwrap_or(Path::new(""));
    let name = Path::new(file.file_name().unwrap_or_default());
    let text = read::task_text(dir, name, &mut Diagnostics::default()).unwrap_or_default();
    let root = toml::parse_readable_part(&text);
    let guess = |_| FormatChoice { format: TaskFormat::Rollout, reason: FormatReason::NoEvidence };
    let format = FormatChoice::detect(&root, hints, dir).unwrap_or_else(guess);
    let empty = ConfigNode { line: 1, value: ConfigValue::Mapping(Vec::new()) };
    let reader = ConfigReader::new(file, UnknownKeys::Warnings);
    let mut fields = reader.root(&empty).expect("an empty table is a table");
    let file = task(format, &mut fields);
    fields.finish();
    file
}

fn task(format: FormatChoice, fields: &mut Fields<'_>) -> TaskFile {
    let defaults = FormatDefaults::for_format(format.format);
    let mut context =
        TaskReadContext { defaults, variables: Vec::new(), demands: Vec::new(), is_windows: false };
    format::version(&format, fields);
    let metadata = metadata::read(fields);
    let environment = environment::read_main(&fields.take(TaskKeys::environment), &mut context);
    let (agent, install_sec) =
        agent::read(&fields.take(TaskKeys::agent), &environment.task, &mut context);
    let verifier =
        verifier::read(&fields.take(TaskKeys::verifier), &environment.task, &mut context);
    let solution = solution(&fields.take(TaskKeys::solution));
    let artifacts = context.artifacts(&fields.take(TaskKeys::artifacts));
    let common = steps::StepDefaults { environment: &environment.task, agent, verifier, artifacts };
    let mut steps = steps::read(fields, common, &mut context);
    for step in &mut steps.steps {
        step.solution_env = variables::templates(solution.clone());
    }
    TaskFile {
        format,
        metadata,
        environment: environment.task,
        install_sec,
        steps: steps.steps,
        strategy: steps.strategy,
        mcp_servers: environment.mcp_servers,
        skills_dir: environment.skills_dir,
        variables: context.variables,
        solution_variables: solution.into_values().collect(),
        demands: context.demands,
    }
}

fn solution(field: &Field<'_>) -> BTreeMap<String, Variable> {
    let Some(mut fields) = field.mapping() else { return BTreeMap::new() };
    let env = variables::read(&fields.take(SolutionKeys::env));
    fields.finish();
    env
}

impl TaskReadContext {
    /// Records a demand of the task.
    fn demand(&mut self, kind: DemandKind, field: &Field<'_>) {
        self.demands.push(Demand { kind, location: field.location() });
    }

    /// Whether a path is an absolute one of Windows in a task of Windows, where it is no error.
    fn is_windows_path(&self, path: &str) -> bool {
        self.is_windows && artifacts::has_drive(path)
    }

    /// Reads variables whose values are needed under every agent.
    fn env(&mut self, field: &Field<'_>) -> BTreeMap<String, Template> {
        let variables = variables::read(field);
        self.variables.extend(variables.values().cloned());
        variables::templates(variables)
    }

    /// Reads a user name or number.
    fn user(&mut self, field: &Field<'_>) -> Option<String> {
        let user = field.text()?;
        let good = !user.is_empty()
            && user.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.-$:".contains(&b))
            && !user.starts_with('-');
        if !good {
            field.bad_value("the name or number of a user of the environment");
            return None;
        }
        if !matches!(user.as_str(), "root" | "0") {
            self.demand(DemandKind::User(user.clone()), field);
        }
        Some(user)
    }

    /// The service beside the environment; `None` for the environment itself.
    fn service(&mut self, name: Option<String>, field: &Field<'_>) -> Option<String> {
        let name = name.filter(|name| name != "main")?;
        self.demand(DemandKind::Service(name.clone()), field);
        Some(name)
    }

    /// Reads the artifacts.
    fn artifacts(&mut self, field: &Field<'_>) -> Vec<Artifact> {
        let mut artifacts = artifacts::read_of_task(field, &|path| self.is_windows_path(path));
        for artifact in &mut artifacts {
            artifact.service = self.service(artifact.service.take(), field);
            if artifact.destination.as_deref() == Some("manifest.json") {
                field.reject(
                    ErrorKind::BadValue,
                    "the destination `manifest.json`",
                    "another destination: this name is reserved for the list of artifacts",
                );
            }
        }
        artifacts
    }
}
