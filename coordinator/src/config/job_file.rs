//! Job files as written: every value checked by itself, nothing resolved.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use rollout_protocol::limits::TRIALS_PER_RUN;
use rollout_protocol::retry::RetryPolicy;
use rollout_protocol::spec::environment::EnvironmentSpec;
use rollout_protocol::spec::metric::MetricKind;
use rollout_protocol::spec::task::Artifact;
use rollout_protocol::wire::offer::RunRateLimits;
use serde::{Deserialize, Serialize};

use super::cli_overrides::{self, CliSetting};
use super::diagnostics::{Diagnostics, ErrorKind};
use super::elements::agents::AgentConfig;
use super::elements::datasets::{DatasetRef, TaskRef};
use super::elements::environment::EnvironmentConfig;
use super::elements::resources::ResourceOverrides;
use super::elements::timeouts::TimeoutRules;
use super::elements::verifier::VerifierConfig;
use super::elements::{
    agents, artifacts, datasets, environment, metrics, names, retry, timeouts, variables, verifier,
};
use super::location::{COMMAND_LINE, SourceLocation};
use super::provenance::{self, KeyProvenance};
use super::reader::{ConfigReader, Field, Fields, UnknownKeys};
use super::reference::KeyReference;
use super::value::{ConfigNode, ConfigValue, flag_line};
use super::{read, yaml};

keys! {
    /// The keys of job files.
    pub(crate) table JobKeys {
        name: "text", "the local time", "Name of the run and of its directory.";
        jobs_dir: "path", "jobs", "Parent of the run directory; counts from the current one.";
        n_attempts: "integer", "1", "Trials of every agent on every task.";
        n_concurrent_trials: "integer", "1", "Trials that run at once.";
        n_concurrent_agents: "integer", "no limit",
            "Agents that execute at once, on each worker; setup and verification go on beside them.",
            "" => timeouts::MultiplierKeys::ALL;
        retry: "table", "", "Retry of infrastructure failures.", "retry" => retry::RetryKeys::ALL;
        log_level: "error|warn|info|debug|trace", "info", "How much is logged.";
        instruction_path: "absolute path", "/tmp/instruction.md",
            "Where agents find the instruction; they get it as ROLLOUT_TASK_INSTRUCTION.";
        environment: "table", "", "Where trials run.",
            "environment" => environment::EnvironmentKeys::ALL;
        verifier: "table", "", "How trials are verified.",
            "verifier" => verifier::VerifierKeys::ALL;
        artifacts: "list", "none", "Files to keep of every trial: paths, or tables.",
            "artifacts[]" => artifacts::ArtifactKeys::ALL;
        metrics: "list", "mean", "Figures shown for every agent.",
            "metrics[]" => metrics::MetricKeys::ALL;
        agents: "list", "required", "The agents.", "agents[]" => agents::AgentKeys::ALL;
        datasets: "list", "required unless `tasks`", "The datasets.",
            "datasets[]" => datasets::DatasetKeys::ALL;
        tasks: "list", "none", "Single tasks, together the dataset `tasks`.",
            "tasks[]" => datasets::TaskRefKeys::ALL;
        pool: "text", "default", "Pool of workers that runs the job, with a server.";
        task_env: "list of names", "none", "Variables of the host that task files may use.";
    }
}

/// The reference of job files.
pub static JOB_REFERENCE: LazyLock<KeyReference> =
    LazyLock::new(|| KeyReference::new("job.yaml", JobKeys::ALL, &[]));

/// Path of the instruction inside environments unless the job says otherwise.
const INSTRUCTION_PATH: &str = "/tmp/instruction.md";

/// Trials that may run at once in one run: far above any host, so that a slip of a key is seen.
const MAX_CONCURRENT_TRIALS: u64 = 100_000;

/// A job file.
#[derive(Debug, Clone, PartialEq)]
pub struct JobFile {
    /// `name`.
    pub name: Option<String>,
    /// `jobs_dir`.
    pub jobs_dir: PathBuf,
    /// `n_attempts`.
    pub n_attempts: u32,
    /// `n_concurrent_trials`.
    pub n_concurrent_trials: u32,
    /// `n_concurrent_agents` and `environment.max_starts_per_minute`.
    pub pacing: RunRateLimits,
    /// The multipliers of time limits, and the time limits of `verifier`.
    pub timeouts: TimeoutRules,
    /// `retry`.
    pub retry: RetryPolicy,
    /// `log_level`.
    pub log_level: LogLevel,
    /// `instruction_path`.
    pub instruction_path: String,
    /// `environment`, without the overrides.
    pub environment: EnvironmentSpec,
    /// The overrides in `environment`.
    pub resources: ResourceOverrides,
    /// `verifier`, without the time limits.
    pub verifier: VerifierConfig,
    /// `artifacts`.
    pub artifacts: Vec<Artifact>,
    /// `metrics`.
    pub metrics: Vec<MetricKind>,
    /// `agents`.
    pub agents: Vec<AgentConfig>,
    /// `datasets`.
    pub datasets: Vec<DatasetRef>,
    /// `tasks`.
    pub tasks: Vec<TaskRef>,
    /// `pool`: name of the workers' pool.
    pub pool: Option<String>,
    /// `task_env`: variables of the host that task files may use.
    pub task_env: BTreeSet<String>,
}

/// How much is logged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum LogLevel {
    /// Errors.
    Error,
    /// And warnings.
    Warn,
    /// And what happens.
    #[default]
    Info,
    /// And how.
    Debug,
    /// Everything.
    Trace,
}

impl LogLevel {
    const WORDS: &[(&str, Self)] = &[
        ("error", Self::Error),
        ("warn", Self::Warn),
        ("info", Self::Info),
        ("debug", Self::Debug),
        ("trace", Self::Trace),
    ];

    /// The word of the format.
    pub fn as_str(self) -> &'static str {
        let word = Self::WORDS.iter().find(|(_, level)| *level == self);
        word.map(|(word, _)| *word).expect("every level has its word")
    }
}

/// A job as it is written, and who wrote what of it.
pub(super) struct JobDocument {
    /// The job.
    pub(super) job: JobFile,
    /// Where its values come from.
    pub(super) provenance: Vec<KeyProvenance>,
}

/// Reads a job file, if there is one, with settings laid over it; nothing when it has no structure
/// at all.
pub(super) fn read(
    file: Option<&Path>,
    settings: &[CliSetting],
    problems: &mut Diagnostics,
) -> Option<JobDocument> {
    let mut root = match file {
        Some(file) => parse_document(file, &read::text(file, problems)?, problems)?,
        None => {
            ConfigNode { line: flag_line(settings.len()), value: ConfigValue::Mapping(Vec::new()) }
        }
    };
    if !settings.is_empty() {
        cli_overrides::apply(settings, &mut root, problems);
    }
    let file = file.unwrap_or(Path::new(COMMAND_LINE));
    let reader = ConfigReader::new(file, UnknownKeys::Errors).with_settings(settings);
    let job = reader.root(&root).map(|mut fields| {
        let job = job(&mut fields);
        fields.finish();
        job
    });
    problems.extend(reader.into_problems());
    Some(JobDocument { job: job?, provenance: provenance::collect(&root, file, settings) })
}

/// The structure of a YAML or JSON text; faults are recorded.
pub(super) fn parse_document(
    file: &Path,
    text: &str,
    problems: &mut Diagnostics,
) -> Option<ConfigNode> {
    let (root, faults) = match yaml::parse(text) {
        Ok((root, faults)) => (Some(root), faults),
        Err(fault) => (None, vec![fault]),
    };
    for fault in faults {
        let (kind, key, expected) = match fault.duplicate {
            Some(key) => (ErrorKind::DuplicateKey, key, "every key once"),
            None => (ErrorKind::Syntax, String::new(), "one YAML or JSON document"),
        };
        let spot = SourceLocation { key, line: Some(fault.line) };
        problems.error(spot.error(file, kind, fault.message, expected));
    }
    root
}

fn job(fields: &mut Fields<'_>) -> JobFile {
    let count = |field: &Field<'_>, most: u64| {
        field.integer(&(1..=most)).and_then(|n| u32::try_from(n).ok())
    };
    let mut timeouts = timeouts::read_multipliers(fields);
    let environment = environment::read(&fields.take(JobKeys::environment));
    let EnvironmentConfig { spec: environment, resources, starts_per_minute } = environment;
    let agents_at_once = count(&fields.take(JobKeys::n_concurrent_agents), MAX_CONCURRENT_TRIALS);
    let tasks = fields.take(JobKeys::tasks);
    let has_tasks = tasks.is_present();
    JobFile {
        name: names::read(&fields.take(JobKeys::name)),
        jobs_dir: fields
            .take(JobKeys::jobs_dir)
            .non_empty_string()
            .unwrap_or_else(|| "jobs".to_owned())
            .into(),
        n_attempts: count(&fields.take(JobKeys::n_attempts), TRIALS_PER_RUN).unwrap_or(1),
        n_concurrent_trials: count(
            &fields.take(JobKeys::n_concurrent_trials),
            MAX_CONCURRENT_TRIALS,
        )
        .unwrap_or(1),
        pacing: RunRateLimits { starts_per_minute, agents_at_once, ..RunRateLimits::default() },
        retry: retry::read(&fields.take(JobKeys::retry)),
        log_level: fields.take(JobKeys::log_level).keyword(LogLevel::WORDS).unwrap_or_default(),
        instruction_path: instruction_path(&fields.take(JobKeys::instruction_path)),
        environment,
        resources,
        verifier: verifier::read(&fields.take(JobKeys::verifier), &mut timeouts),
        timeouts,
        artifacts: artifacts::read(&fields.take(JobKeys::artifacts)),
        metrics: metrics::read(&fields.take(JobKeys::metrics)),
        agents: agents::read(&fields.take(JobKeys::agents)),
        datasets: datasets::read(&fields.take(JobKeys::datasets), has_tasks),
        tasks: datasets::read_tasks(&tasks),
        pool: names::read_pool(&fields.take(JobKeys::pool)),
        task_env: variables::read_names(&fields.take(JobKeys::task_env)),
    }
}

/// An absolute path of a file, outside the directories that are made anew during a trial.
fn instruction_path(field: &Field<'_>) -> String {
    let default = INSTRUCTION_PATH.to_owned();
    let Some(path) = field.non_empty_string() else { return default };
    let plain = path.strip_prefix('/').is_some_and(|rest| {
        rest.split('/').all(|part| !part.is_empty() && part != "." && part != "..")
    });
    if !plain || path.chars().any(char::is_control) {
        field.bad_value("an absolute path of a file without `.`, `..` or `//`");
        return default;
    }
    let taken = ["/logs/verifier", "/tests", "/oracle", "/solution", "/proc", "/sys", "/dev"];
    if taken.iter().any(|dir| Path::new(&path).starts_with(dir)) {
        let expected = format!("a path outside {}", taken.join(", "));
        field.bad_value(&expected);
        return default;
    }
    path
}
