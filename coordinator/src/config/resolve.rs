//! Resolution of a job file into the job to run.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use jiff::Zoned;
use rollout_base::secrets::TrialVariables;
use rollout_environment::image_access::ImageAccess;
use rollout_protocol::retry::RetryPolicy;
use rollout_protocol::spec::budget::RunBudget;
use rollout_protocol::spec::gateway::GatewaySpec;
use rollout_protocol::spec::guardrail::Guardrail;
use rollout_protocol::spec::metric::MetricKind;
use rollout_protocol::spec::settings::{TrialSettings, VerifierSettings};
use rollout_protocol::wire::offer::RunRateLimits;

use super::cli_overrides::CliSetting;
use super::diagnostics::{Diagnostics, ErrorKind};
use super::elements::agents::Agent;
use super::elements::datasets::{DatasetRef, TaskRef};
use super::elements::environment::EnvironmentChanges;
use super::elements::resources::ResourceOverrides;
use super::elements::timeouts::TimeoutRules;
use super::elements::variables;
use super::elements::verifier::RuleOverrides;
use super::fetch_access::{FetchAccess, FetchNetwork};
use super::host_path::HostAccess;
use super::inline_secrets;
use super::job_file::{self, JobDocument, JobFile, LogLevel};
use super::local_time;
use super::location::COMMAND_LINE;
use super::provenance::KeyProvenance;

/// A job, resolved except for the content of its datasets.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    /// The job file, or `command line` if there is none.
    pub file: PathBuf,
    /// Name of the run directory.
    pub name: String,
    /// Parent of the run directory; relative to the current directory.
    pub jobs_dir: PathBuf,
    /// Attempts per agent and task.
    pub n_attempts: u32,
    /// Concurrent trials.
    pub n_concurrent_trials: u32,
    /// Rate limits of each worker.
    pub worker_rate_limits: RunRateLimits,
    /// Retry of infrastructure failures.
    pub retry: RetryPolicy,
    /// Log level.
    pub log_level: LogLevel,
    /// Metrics to show.
    pub metrics: Vec<MetricKind>,
    /// Bounds on metrics; metadata.
    pub guardrails: Vec<Guardrail>,
    /// Budgets of the run and of its agents.
    pub budget: RunBudget,
    /// Worker pool; `None` means the default pool.
    pub pool: Option<String>,
    /// Host variables that task files may use.
    pub task_env: BTreeSet<String>,
    /// Settings of every trial.
    pub settings: TrialSettings,
    /// Rules for the tasks' time limits.
    pub timeout_rules: TimeoutRules,
    /// Overrides of the tasks' resources.
    pub resource_overrides: ResourceOverrides,
    /// Changes of the tasks' environments.
    pub environment_changes: EnvironmentChanges,
    /// Compose files for the agents' environments, as written; their texts are in `settings`.
    pub compose_overlays: Vec<PathBuf>,
    /// Hosts that test scripts may reach in tasks without network or with an allowlist.
    pub verifier_hosts: Vec<String>,
    /// Overrides of the script rules of the tasks' formats.
    pub rule_overrides: RuleOverrides,
    /// The agents, in file order; names are distinct even if case is ignored.
    pub agents: Vec<Agent>,
    /// The datasets, in file order.
    pub datasets: Vec<DatasetRef>,
    /// Single tasks beside the datasets, in file order.
    pub tasks: Vec<TaskRef>,
    /// Source of every value that is not a default.
    pub provenance: Vec<KeyProvenance>,
    /// Secrets typed on the command line; the agents and the verifier refer to them by name.
    pub inline_secrets: TrialVariables,
    /// Whether tasks that cannot run are errors.
    pub is_strict: bool,
}

/// Inputs to a job from the command line and the host.
pub struct JobOptions<'a> {
    /// Settings from the command line, which override the job file.
    pub settings: Vec<CliSetting>,
    /// Local time, for the default name.
    pub now: Zoned,
    /// Whether a variable is set where trials will run. Its value is never read.
    pub is_set: &'a dyn Fn(&str) -> bool,
    /// Variables from a file given on the command line; tasks may use them.
    pub variables: Vec<(String, String)>,
    /// Whether task files may use every host variable that they ask for.
    pub trust_tasks: bool,
    /// Whether tasks that cannot be read, lack files, or that the environment cannot run are errors.
    pub strict: bool,
    /// The access of the job to paths of this host.
    pub host: HostAccess<'a>,
    /// How repositories and registries are fetched.
    pub fetch: FetchAccess,
    /// The registries whose images tasks may use.
    pub images: ImageAccess,
    /// Cache of fetched tasks; below the directory of runs if absent.
    pub cache: Option<PathBuf>,
}

impl<'a> JobOptions<'a> {
    /// Default options: no settings, the current time, the variables that `is_set` reports, nothing of
    /// this host, fetches without credentials, and images of public registries.
    pub fn new(is_set: &'a dyn Fn(&str) -> bool) -> Self {
        Self {
            settings: Vec::new(),
            now: local_time::now(),
            is_set,
            variables: Vec::new(),
            trust_tasks: false,
            strict: false,
            host: HostAccess::Nothing,
            fetch: FetchAccess::default(),
            images: ImageAccess::default(),
            cache: None,
        }
    }

    /// The same for a user who started this program: the job may name every file of this host and every
    /// image, and is fetched with the user's credentials.
    pub fn for_command_line(is_set: &'a dyn Fn(&str) -> bool) -> Self {
        let fetch = FetchAccess { network: FetchNetwork::OwnUser, cancelled: None };
        let images = ImageAccess::Everything;
        Self { host: HostAccess::Everything, fetch, images, ..Self::new(is_set) }
    }

    /// Whether the job is of a user who may not use the network of the hosts that run it.
    pub fn is_guarded(&self) -> bool {
        self.images != ImageAccess::Everything
    }
}

impl Job {
    /// The job's rate limits for workers, with the wait limit of its retry policy.
    pub fn rate_limits(&self) -> RunRateLimits {
        let default = RetryPolicy::default().max_park_sec;
        let max_park_sec = Some(self.retry.max_park_sec).filter(|sec| *sec != default);
        RunRateLimits { max_park_sec, ..self.worker_rate_limits }
    }

    /// The variables that trials may see or that are declared as secrets: only they are read from
    /// the environment of this process.
    pub fn variables(&self) -> BTreeSet<String> {
        let mut names: BTreeSet<String> = &self.task_env | &self.settings.secrets;
        let agents = self.agents.iter().flat_map(|agent| agent.spec.env.values());
        let keys = self.settings.gateway.iter().flat_map(GatewaySpec::keys);
        let changes = self.environment_changes.variables().map(|variable| &variable.template);
        for template in agents.chain(self.settings.verifier.env.values()).chain(changes).chain(keys)
        {
            names.extend(template.variables().into_iter().map(|(name, _)| name));
        }
        names
    }

    /// The run directory.
    pub fn run_dir(&self) -> PathBuf {
        self.jobs_dir.join(&self.name)
    }

    /// The directory that relative dataset paths are relative to.
    pub fn base_dir(&self) -> &Path {
        match self.file.parent() {
            Some(dir) if dir != Path::new("") => dir,
            _ => Path::new("."),
        }
    }
}

/// Reads, checks and resolves a job file. Returns a job even if errors were recorded, so that its
/// datasets can be checked too; `None` only if the file has no structure at all.
pub fn read_job(file: &Path, options: &JobOptions<'_>, problems: &mut Diagnostics) -> Option<Job> {
    read(Some(file), options, problems)
}

/// Resolves a job from command-line settings alone.
pub fn job_from_settings(options: &JobOptions<'_>, problems: &mut Diagnostics) -> Option<Job> {
    read(None, options, problems)
}

fn read(file: Option<&Path>, options: &JobOptions<'_>, problems: &mut Diagnostics) -> Option<Job> {
    let JobDocument { mut job, provenance } = job_file::read(file, options, problems)?;
    if job.install_only {
        // Nothing is verified, and nothing calls a model.
        job.verifier.settings.disable = true;
        job.gateway = None;
    }
    let file = file.unwrap_or(Path::new(COMMAND_LINE));
    let given = inline_secrets::extract(&mut job, file, problems);
    let inline_secrets = TrialVariables::new(options.variables.iter().cloned()).with(&given);
    job.task_env.extend(options.variables.iter().map(|(name, _)| name.clone()));
    let is_set =
        |name: &str| inline_secrets.names().any(|known| known == name) || (options.is_set)(name);
    check_variables(file, &job, &is_set, problems);
    Some(Job { provenance, inline_secrets, ..resolve(file, job, options) })
}

fn resolve(file: &Path, file_settings: JobFile, options: &JobOptions<'_>) -> Job {
    let name = file_settings.name;
    let agents = file_settings.agents.into_iter();
    Job {
        file: file.to_owned(),
        name: name.unwrap_or_else(|| options.now.strftime("%Y-%m-%d__%H-%M-%S").to_string()),
        jobs_dir: file_settings.jobs_dir,
        n_attempts: file_settings.n_attempts,
        n_concurrent_trials: file_settings.n_concurrent_trials,
        worker_rate_limits: file_settings.worker_rate_limits,
        retry: file_settings.retry,
        log_level: file_settings.log_level,
        metrics: file_settings.metrics,
        guardrails: file_settings.guardrails,
        budget: file_settings.budget.run,
        pool: file_settings.pool,
        task_env: file_settings.task_env,
        settings: TrialSettings {
            instruction_path: file_settings.instruction_path,
            environment: file_settings.environment,
            extra_instructions: file_settings.extra_instructions,
            compose_overlays: file_settings.compose_overlays.texts,
            install_only: file_settings.install_only,
            verifier: VerifierSettings {
                env: variables::templates(file_settings.verifier.env),
                ..file_settings.verifier.settings
            },
            artifacts: file_settings.artifacts,
            gateway: file_settings.gateway.map(|gateway| gateway.spec),
            budget: file_settings.budget.each_try,
            secrets: file_settings.secrets,
        },
        timeout_rules: file_settings.timeouts,
        resource_overrides: file_settings.resources,
        environment_changes: file_settings.environment_changes,
        compose_overlays: file_settings.compose_overlays.paths,
        verifier_hosts: file_settings.verifier.hosts,
        rule_overrides: file_settings.verifier.rules,
        agents: agents.map(|agent| Agent::new(agent, &file_settings.timeouts)).collect(),
        datasets: file_settings.datasets,
        tasks: file_settings.tasks,
        provenance: Vec::new(),
        inline_secrets: TrialVariables::default(),
        is_strict: options.strict,
    }
}

/// Checks that every variable that an agent or the verifier refers to without a default is set: an
/// error now is better than one in the first trial.
fn check_variables(
    file: &Path,
    written: &JobFile,
    is_set: &dyn Fn(&str) -> bool,
    problems: &mut Diagnostics,
) {
    let agents = written.agents.iter().flat_map(|agent| agent.env.values());
    let keys = written.gateway.iter().flat_map(|gateway| &gateway.keys);
    let scripts = written.verifier.env.values().chain(written.environment_changes.variables());
    for variable in agents.chain(scripts).chain(keys) {
        for (name, has_default) in variable.template.variables() {
            if !has_default && !is_set(&name) {
                let found = format!("`${{{name}}}`, which is not set in the environment");
                let expected = "variables that are set";
                problems.error(super::ConfigError {
                    hint: Some(format!("export {name}, or write `${{{name}:-default}}`")),
                    ..variable.location.error(file, ErrorKind::UnsetVariable, found, expected)
                });
            }
        }
    }
}
