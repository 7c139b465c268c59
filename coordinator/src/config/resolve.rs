//! From a job file to the job that will run.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use jiff::Zoned;
use rollout_protocol::retry::RetryPolicy;
use rollout_protocol::spec::metric::MetricKind;
use rollout_protocol::spec::settings::{TrialSettings, VerifierSettings};
use rollout_protocol::wire::offer::RunRateLimits;
use rollout_worker::secrets::TrialVariables;

use super::cli_overrides::CliSetting;
use super::diagnostics::{Diagnostics, ErrorKind};
use super::elements::agents::Agent;
use super::elements::datasets::{DatasetRef, TaskRef};
use super::elements::resources::ResourceOverrides;
use super::elements::timeouts::TimeoutRules;
use super::elements::variables;
use super::elements::verifier::RuleOverrides;
use super::inline_secrets;
use super::job_file::{self, JobDocument, JobFile, LogLevel};
use super::location::COMMAND_LINE;
use super::provenance::KeyProvenance;

/// A job, fully resolved except for the content of its datasets.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    /// The job file; a word for the command line when there is none.
    pub file: PathBuf,
    /// Name of the run directory.
    pub name: String,
    /// Parent of the run directory; relative paths count from the current directory.
    pub jobs_dir: PathBuf,
    /// Samples per agent and task.
    pub n_attempts: u32,
    /// Trials at once.
    pub n_concurrent_trials: u32,
    /// How fast each worker may go about them.
    pub pacing: RunRateLimits,
    /// Retry of infrastructure failures.
    pub retry: RetryPolicy,
    /// How much is logged.
    pub log_level: LogLevel,
    /// Figures shown.
    pub metrics: Vec<MetricKind>,
    /// Pool of workers; nothing means the default one.
    pub pool: Option<String>,
    /// Variables of the host that task files may use.
    pub task_env: BTreeSet<String>,
    /// What every trial runs under.
    pub settings: TrialSettings,
    /// What happens to the tasks' time limits.
    pub timeouts: TimeoutRules,
    /// What replaces the tasks' resources.
    pub resources: ResourceOverrides,
    /// What replaces the rules of the tasks' formats.
    pub rules: RuleOverrides,
    /// The agents, in the order of the file, names distinct also when case is ignored.
    pub agents: Vec<Agent>,
    /// The datasets, in the order of the file.
    pub datasets: Vec<DatasetRef>,
    /// Tasks beside them, in the order of the file.
    pub tasks: Vec<TaskRef>,
    /// Where the values come from that are not defaults.
    pub provenance: Vec<KeyProvenance>,
    /// Secrets that the command line gives by value; the agents and the verifier refer to them by
    /// name.
    pub given: TrialVariables,
}

/// What the command line and the host say about a job.
pub struct JobOptions<'a> {
    /// Keys of the job from the command line, over those of the job file.
    pub settings: Vec<CliSetting>,
    /// Local time, for the name of a job that has none.
    pub now: Zoned,
    /// Whether a variable is set where trials will run. Its value is never asked for.
    pub is_set: &'a dyn Fn(&str) -> bool,
    /// Variables that the command line gives by a file; tasks may use them.
    pub variables: Vec<(String, String)>,
    /// Task files may use every variable of the host that they ask for.
    pub trust_tasks: bool,
    /// Tasks that lack files or that the environment cannot run refuse the run.
    pub strict: bool,
    /// Where what is fetched is kept; below the directory of runs when absent.
    pub cache: Option<PathBuf>,
}

impl<'a> JobOptions<'a> {
    /// No settings, the present time, and the variables that `is_set` says.
    pub fn new(is_set: &'a dyn Fn(&str) -> bool) -> Self {
        Self {
            settings: Vec::new(),
            now: Zoned::now(),
            is_set,
            variables: Vec::new(),
            trust_tasks: false,
            strict: false,
            cache: None,
        }
    }
}

impl Job {
    /// How workers go about the job's work.
    pub fn rate_limits(&self) -> RunRateLimits {
        let default = RetryPolicy::default().max_park_sec;
        let max_park_sec = Some(self.retry.max_park_sec).filter(|sec| *sec != default);
        RunRateLimits { max_park_sec, ..self.pacing }
    }

    /// The run directory.
    pub fn run_dir(&self) -> PathBuf {
        self.jobs_dir.join(&self.name)
    }

    /// The directory that relative dataset paths count from.
    pub fn base_dir(&self) -> &Path {
        match self.file.parent() {
            Some(dir) if dir != Path::new("") => dir,
            _ => Path::new("."),
        }
    }
}

/// Reads, checks and resolves a job file. There is a job even when faults were recorded, so that
/// its datasets can be checked too; nothing only when the file has no structure at all.
pub fn read_job(file: &Path, options: &JobOptions<'_>, problems: &mut Diagnostics) -> Option<Job> {
    read(Some(file), options, problems)
}

/// The same for a job that the command line alone describes.
pub fn job_from_settings(options: &JobOptions<'_>, problems: &mut Diagnostics) -> Option<Job> {
    read(None, options, problems)
}

fn read(file: Option<&Path>, options: &JobOptions<'_>, problems: &mut Diagnostics) -> Option<Job> {
    let JobDocument { mut job, provenance } = job_file::read(file, &options.settings, problems)?;
    let file = file.unwrap_or(Path::new(COMMAND_LINE));
    let given = inline_secrets::extract(&mut job, file, problems);
    let given = TrialVariables::new(options.variables.iter().cloned()).with(&given);
    job.task_env.extend(options.variables.iter().map(|(name, _)| name.clone()));
    let is_set = |name: &str| given.names().any(|known| known == name) || (options.is_set)(name);
    check_variables(file, &job, &is_set, problems);
    Some(Job { provenance, given, ..resolve(file, job, options) })
}

fn resolve(file: &Path, written: JobFile, options: &JobOptions<'_>) -> Job {
    let name = written.name;
    let agents = written.agents.into_iter();
    Job {
        file: file.to_owned(),
        name: name.unwrap_or_else(|| options.now.strftime("%Y-%m-%d__%H-%M-%S").to_string()),
        jobs_dir: written.jobs_dir,
        n_attempts: written.n_attempts,
        n_concurrent_trials: written.n_concurrent_trials,
        pacing: written.pacing,
        retry: written.retry,
        log_level: written.log_level,
        metrics: written.metrics,
        pool: written.pool,
        task_env: written.task_env,
        settings: TrialSettings {
            instruction_path: written.instruction_path,
            environment: written.environment,
            verifier: VerifierSettings {
                env: variables::templates(written.verifier.env),
                ..written.verifier.settings
            },
            artifacts: written.artifacts,
        },
        timeouts: written.timeouts,
        resources: written.resources,
        rules: written.verifier.rules,
        agents: agents.map(|agent| Agent::new(agent, &written.timeouts)).collect(),
        datasets: written.datasets,
        tasks: written.tasks,
        provenance: Vec::new(),
        given: TrialVariables::default(),
    }
}

/// Every variable that an agent or the verifier refers to without a default is set: better said
/// now than by the first trial.
fn check_variables(
    file: &Path,
    written: &JobFile,
    is_set: &dyn Fn(&str) -> bool,
    problems: &mut Diagnostics,
) {
    let agents = written.agents.iter().flat_map(|agent| agent.env.values());
    for variable in agents.chain(written.verifier.env.values()) {
        for (name, has_default) in variable.template.variables() {
            if !has_default && !is_set(&name) {
                let found = format!("`${{{name}}}`, which is not set in the environment");
                let expected = "variables that are set";
                problems.error(super::ConfigError {
                    hint: Some(format!("export {name}, or write `${{{name}:-default}}`")),
                    ..variable.spot.error(file, ErrorKind::UnsetVariable, found, expected)
                });
            }
        }
    }
}
