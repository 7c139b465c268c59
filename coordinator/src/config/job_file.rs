//! Job files as written: every value checked on its own, nothing resolved.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use rollout_protocol::limits::TRIALS_PER_RUN;
use rollout_protocol::retry::RetryPolicy;
use rollout_protocol::spec::environment::EnvironmentSpec;
use rollout_protocol::spec::guardrail::Guardrail;
use rollout_protocol::spec::metric::MetricKind;
use rollout_protocol::spec::task::Artifact;
use rollout_protocol::wire::offer::RunRateLimits;
use serde::{Deserialize, Serialize};

use super::agents_directory;
use super::catalogue::{AgentCatalogue, PriceTable};
use super::cli_overrides;
use super::diagnostics::{Diagnostics, ErrorKind};
use super::elements::agents::AgentConfig;
use super::elements::budget::BudgetConfig;
use super::elements::compose_overlays::ComposeOverlays;
use super::elements::datasets::{DatasetRef, TaskRef};
use super::elements::environment::EnvironmentChanges;
use super::elements::extra_instructions::ExtraInstructionFields;
use super::elements::gateway::GatewayConfig;
use super::elements::resources::ResourceOverrides;
use super::elements::timeouts::TimeoutRules;
use super::elements::verifier::VerifierConfig;
use super::elements::{
    agents, artifacts, budget, datasets, environment, gateway, guardrails, metrics, names, retry,
    timeouts, variables, verifier,
};
use super::harbor_job;
use super::location::{COMMAND_LINE, SourceLocation};
use super::provenance::{self, KeyProvenance};
use super::read;
use super::reader::{ConfigReader, Field, Fields, UnknownKeys};
use super::reference::KeyReference;
use super::resolve::JobOptions;
use super::value::{ConfigNode, ConfigValue, flag_line};
use super::yaml::{self, YamlError, YamlErrorKind};

keys! {
    /// The keys of job files.
    pub(crate) table JobKeys {
        name: Value("text"), "local time", "Name of the run and of its directory.";
        jobs_dir: HostOutput("path"), "jobs", "Parent of the run directory; relative to the current directory.";
        n_attempts: Value("integer"), "1", "Attempts of every agent on every task.";
        n_concurrent_trials: Value("integer"), "1", "Concurrent trials.";
        install_only: Value("true|false"), "false",
            "Install the agents and end: nothing attempts or verifies a task, and no key of a model server is needed.";
        n_concurrent_agents: Value("integer"), "no limit",
            "Concurrent agent executions on each worker; setup and verification are not limited.",
            "" => timeouts::MultiplierKeys::ALL;
        retry: Value("table"), "", "Retry of infrastructure failures.", "retry" => retry::RetryKeys::ALL;
        log_level: Value("error|warn|info|debug|trace"), "info", "Log level.";
        instruction_path: EnvironmentPath("absolute path"), "/tmp/instruction.md",
            "Path of the instruction in environments; agents get it as ROLLOUT_TASK_INSTRUCTION.";
        extra_instructions: Value("list of text"), "none", "Texts after the instruction of every task.";
        extra_instruction_paths: HostFile("list of paths", "write the texts in `extra_instructions`"), "none",
            "Files with further such texts; relative to the file.";
        environment: Value("table"), "", "Environment of the trials.",
            "environment" => environment::EnvironmentKeys::ALL;
        verifier: Value("table"), "", "How trials are verified.",
            "verifier" => verifier::VerifierKeys::ALL;
        artifacts: Value("list"), "none", "Files to collect from every trial: paths or tables.",
            "artifacts[]" => artifacts::ArtifactKeys::ALL;
        metrics: Value("list"), "mean", "Metrics to show for every agent.",
            "metrics[]" => metrics::MetricKeys::ALL;
        guardrails: Value("list"), "none",
            "Bounds on metrics, carried into results as metadata; nothing enforces them.",
            "guardrails[]" => guardrails::GuardrailKeys::ALL;
        agents: Value("list"), "required", "The agents.", "agents[]" => agents::AgentKeys::ALL;
        agents_dir: HostFile("path", "define the agents in `agents`, by their scripts"), "none",
            "Directory with further agents of the catalogue, a TOML file each; relative to the file.";
        datasets: Value("list"), "required unless `tasks`", "The datasets.",
            "datasets[]" => datasets::DatasetKeys::ALL;
        tasks: Value("list"), "none", "Single tasks, which form the dataset `tasks`.",
            "tasks[]" => datasets::TaskRefKeys::ALL;
        gateway: Value("table"), "none", "Model servers that agents call through their worker.",
            "gateway" => gateway::GatewayKeys::ALL;
        budget: Value("table"), "none", "What model calls may use; a trial over its budget fails, and the rest is skipped.",
            "budget" => budget::BudgetKeys::ALL;
        prices: HostFile("path", "give `prices` to the servers in `gateway.upstreams[]`"), "the shipped table",
            "File with prices of models, TOML or the JSON of LiteLLM; relative to the file.";
        pool: Value("text"), "default", "Worker pool that runs the job; needs a server.";
        task_env: Value("list of names"), "none", "Host variables that task files may use.";
        secrets: Value("list of names"), "none",
            "Variables whose values are secrets: masked in all output, and no artifact holds one.";
    }
}

/// The reference of job files.
pub static JOB_REFERENCE: LazyLock<KeyReference> =
    LazyLock::new(|| KeyReference::new("job.yaml", JobKeys::ALL, &[]));

/// Default path of the instruction inside environments.
const INSTRUCTION_PATH: &str = "/tmp/instruction.md";

/// Largest number of concurrent trials of a run: far above any host, so that typing errors are
/// found.
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
    /// `install_only`.
    pub install_only: bool,
    /// `n_concurrent_agents` and `environment.max_starts_per_minute`.
    pub worker_rate_limits: RunRateLimits,
    /// The multipliers of time limits, and the time limits of `verifier`.
    pub timeouts: TimeoutRules,
    /// `retry`.
    pub retry: RetryPolicy,
    /// `log_level`.
    pub log_level: LogLevel,
    /// `instruction_path`.
    pub instruction_path: String,
    /// `extra_instructions`, and the content of `extra_instruction_paths`.
    pub extra_instructions: Vec<String>,
    /// `environment`, without the overrides.
    pub environment: EnvironmentSpec,
    /// The changes of tasks' environments in `environment`.
    pub environment_changes: EnvironmentChanges,
    /// `environment.extra_docker_compose`.
    pub compose_overlays: ComposeOverlays,
    /// The overrides in `environment`.
    pub resources: ResourceOverrides,
    /// `verifier`, without the time limits.
    pub verifier: VerifierConfig,
    /// `artifacts`.
    pub artifacts: Vec<Artifact>,
    /// `metrics`.
    pub metrics: Vec<MetricKind>,
    /// `guardrails`.
    pub guardrails: Vec<Guardrail>,
    /// `agents`.
    pub agents: Vec<AgentConfig>,
    /// `datasets`.
    pub datasets: Vec<DatasetRef>,
    /// `tasks`.
    pub tasks: Vec<TaskRef>,
    /// `gateway`.
    pub gateway: Option<GatewayConfig>,
    /// `budget`.
    pub budget: BudgetConfig,
    /// `pool`: name of the workers' pool.
    pub pool: Option<String>,
    /// `task_env`: host variables that task files may use.
    pub task_env: BTreeSet<String>,
    /// `secrets`: variables whose values are secrets.
    pub secrets: BTreeSet<String>,
}

/// Log level.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum LogLevel {
    /// Errors only.
    Error,
    /// Errors and warnings.
    Warn,
    /// Also normal progress.
    #[default]
    Info,
    /// Also details for debugging.
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

    /// The word of the format for the level.
    pub fn as_str(self) -> &'static str {
        let word = Self::WORDS.iter().find(|(_, level)| *level == self);
        word.map(|(word, _)| *word).expect("every level has its word")
    }
}

/// A job as written, and the origin of its values.
pub(super) struct JobDocument {
    /// The job.
    pub(super) job: JobFile,
    /// Origin of its values.
    pub(super) provenance: Vec<KeyProvenance>,
}

/// Reads a job file, if there is one, and applies the settings. `None` if it has no structure at
/// all.
pub(super) fn read(
    file: Option<&Path>,
    options: &JobOptions<'_>,
    problems: &mut Diagnostics,
) -> Option<JobDocument> {
    let settings = options.settings.as_slice();
    let mut root = match file {
        Some(file) => {
            let root = parse_document(file, &read::text(file, problems)?, problems)?;
            harbor_job::translate(root, file, options.host, problems)
        }
        None => {
            ConfigNode { line: flag_line(settings.len()), value: ConfigValue::Mapping(Vec::new()) }
        }
    };
    if !settings.is_empty() {
        cli_overrides::apply(settings, &mut root, problems);
    }
    let file = file.unwrap_or(Path::new(COMMAND_LINE));
    let reader = ConfigReader::new(file, UnknownKeys::Errors)
        .with_host(options.host)
        .with_settings(settings)
        .with_reference(&JOB_REFERENCE);
    let job = reader.root(&root).map(|mut fields| {
        let catalogue = agents_directory::catalogue(&fields.take(JobKeys::agents_dir), file);
        let prices = prices(&fields.take(JobKeys::prices), file);
        let extra = ExtraInstructionFields::take(&mut fields);
        let mut job = job(&mut fields, &catalogue, &prices, file);
        job.extra_instructions = extra.read(file);
        fields.finish();
        job
    });
    problems.extend(reader.into_problems());
    Some(JobDocument { job: job?, provenance: provenance::collect(&root, file, settings) })
}

/// Parses a YAML or JSON text; errors are recorded.
pub(super) fn parse_document(
    file: &Path,
    text: &str,
    problems: &mut Diagnostics,
) -> Option<ConfigNode> {
    let (root, faults) = match yaml::parse(text) {
        Ok((root, faults)) => (Some(root), faults),
        Err(fault) => (None, vec![fault]),
    };
    for YamlError { line, kind, message } in faults {
        let spot = |key| SourceLocation { key, line: Some(line) };
        problems.error(match kind {
            YamlErrorKind::Duplicate(key) => {
                spot(key).error(file, ErrorKind::DuplicateKey, message, "every key once")
            }
            YamlErrorKind::LongList(key, most) => {
                spot(key).error(file, ErrorKind::BadValue, message, format!("at most {most}"))
            }
            YamlErrorKind::Syntax => {
                let message = format!("cannot parse the file as YAML or JSON: {message}");
                spot(String::new()).failure(file, ErrorKind::Syntax, message)
            }
        });
    }
    root
}

/// The prices of models. Errors are recorded.
pub(super) fn prices(field: &Field<'_>, file: &Path) -> Cow<'static, PriceTable> {
    let shipped = Cow::Borrowed(PriceTable::shipped());
    let Some(path) = field.path() else { return shipped };
    match PriceTable::read(&file.parent().unwrap_or(Path::new("")).join(path)) {
        Ok(table) => Cow::Owned(table),
        Err(error) => {
            let expected = "a file with prices of models";
            field.reject(ErrorKind::BadValue, error.to_string(), expected);
            shipped
        }
    }
}

fn job(
    fields: &mut Fields<'_>,
    catalogue: &AgentCatalogue,
    prices: &PriceTable,
    file: &Path,
) -> JobFile {
    let count = |field: &Field<'_>, most: u64| {
        field.integer(&(1..=most)).and_then(|n| u32::try_from(n).ok())
    };
    let mut timeouts = timeouts::read_multipliers(fields);
    let environment = environment::read(&fields.take(JobKeys::environment), file);
    timeouts.start_grace_sec = environment.start_grace_sec;
    let agents_at_once = count(&fields.take(JobKeys::n_concurrent_agents), MAX_CONCURRENT_TRIALS);
    let trials_at_once = count(&fields.take(JobKeys::n_concurrent_trials), MAX_CONCURRENT_TRIALS);
    let tasks = fields.take(JobKeys::tasks);
    let has_tasks = tasks.is_present();
    let agents = fields.take(JobKeys::agents);
    let models = agents.texts_of_items(agents::AgentKeys::model);
    let named: Vec<_> = models.iter().filter_map(|model| Some(model.split_once('/')?.0)).collect();
    let mut gateway = gateway::read(&fields.take(JobKeys::gateway), &named);
    let agents = agents::read(&agents, catalogue, &mut gateway, file);
    if let Some(gateway) = &mut gateway {
        gateway::add_prices(&mut gateway.spec, prices);
    }
    let budget_field = fields.take(JobKeys::budget);
    let budget = budget::read(&budget_field);
    let models = agents.iter().filter_map(|agent| agent.model.as_ref());
    let models: Vec<_> =
        models.map(|model| (model.upstream.as_str(), model.name.as_str())).collect();
    let spec = gateway.as_ref().map(|gateway| &gateway.spec);
    budget::check(&budget_field, &budget, spec, &models);
    JobFile {
        name: names::read(&fields.take(JobKeys::name)),
        jobs_dir: fields
            .take(JobKeys::jobs_dir)
            .non_empty_string()
            .unwrap_or_else(|| "jobs".to_owned())
            .into(),
        n_attempts: count(&fields.take(JobKeys::n_attempts), TRIALS_PER_RUN).unwrap_or(1),
        n_concurrent_trials: trials_at_once.unwrap_or(1),
        install_only: fields.take(JobKeys::install_only).bool().unwrap_or(false),
        worker_rate_limits: RunRateLimits {
            starts_per_minute: environment.starts_per_minute,
            agents_at_once,
            ..RunRateLimits::default()
        },
        retry: retry::read(&fields.take(JobKeys::retry)),
        log_level: fields.take(JobKeys::log_level).keyword(LogLevel::WORDS).unwrap_or_default(),
        instruction_path: instruction_path(&fields.take(JobKeys::instruction_path)),
        extra_instructions: Vec::new(),
        environment: environment.spec,
        environment_changes: environment.changes,
        compose_overlays: environment.overlays,
        resources: environment.resources,
        verifier: verifier::read(&fields.take(JobKeys::verifier), &mut timeouts),
        timeouts,
        artifacts: artifacts::read(&fields.take(JobKeys::artifacts)),
        metrics: metrics::read(&fields.take(JobKeys::metrics)),
        guardrails: guardrails::read(&fields.take(JobKeys::guardrails)),
        agents,
        datasets: datasets::read(&fields.take(JobKeys::datasets), has_tasks),
        tasks: datasets::read_tasks(&tasks),
        gateway,
        budget,
        pool: names::read_pool(&fields.take(JobKeys::pool)),
        task_env: variables::read_names(&fields.take(JobKeys::task_env)),
        secrets: variables::read_names(&fields.take(JobKeys::secrets)),
    }
}

/// Reads an absolute path of a file, outside the directories that are recreated during a trial.
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
