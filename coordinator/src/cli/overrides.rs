//! Options of `rollout run` that set keys of the job.

use std::path::PathBuf;

use clap::Args;

use super::error::CliError;
use super::harbor_options::HarborOptions;
use crate::config::{
    CliDataset, CliSetting, read_extra_instruction, repository_without_secrets, units,
    without_secrets,
};

/// Keys of the job on the command line. They override the job file or replace it.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Other options")]
pub(super) struct JobArgs {
    /// Directory of tasks, or of one task, instead of the job file's datasets
    #[arg(long, short = 'p', value_name = "DIR")]
    pub(super) path: Vec<String>,

    /// Dataset of the registry, instead of the job file's datasets
    #[arg(long, short = 'd', value_name = "NAME[@VERSION]")]
    pub(super) dataset: Vec<String>,

    /// Path or URL of the registry's `registry.json`
    #[arg(long, aliases = ["registry-path", "registry-url"], value_name = "PATH|URL")]
    registry: Option<String>,

    /// Git repository with tasks, instead of the job file's datasets
    #[arg(long, value_name = "URL[@REF]")]
    pub(super) repo: Vec<String>,

    /// Include only tasks whose name matches, in every dataset
    #[arg(
        long,
        short = 't',
        visible_short_alias = 'i',
        alias = "include-task-name",
        value_name = "GLOB"
    )]
    task_name: Vec<String>,

    /// Exclude tasks whose name matches, in every dataset
    #[arg(long, short = 'x', value_name = "GLOB")]
    exclude_task_name: Vec<String>,

    /// Maximum number of tasks of every dataset
    #[arg(long, short = 'l', value_name = "N", allow_hyphen_values = true)]
    n_tasks: Option<String>,

    /// Format of the tasks of every dataset: auto, rollout or harbor
    #[arg(long, value_name = "FORMAT")]
    format: Option<String>,

    /// Agent: one of the job file, `oracle`, `nop`, `shell`, or one of `rollout agents list`
    #[arg(long, short = 'a', value_name = "NAME[@VERSION]")]
    agent: Vec<String>,

    /// Model that the agents use; several agents and models make their product
    #[arg(long, short = 'm', value_name = "PROVIDER/MODEL")]
    model: Vec<String>,

    /// Model server for `--model`, in place of the provider's
    #[arg(long, value_name = "URL", requires = "model")]
    base_url: Option<String>,

    /// Variable of this process with the key of the server at `--base-url`
    #[arg(long, alias = "api-key-name", value_name = "NAME", requires = "base_url")]
    key_env: Option<String>,

    /// Dialect of the server at `--base-url`
    #[arg(long, value_name = "DIALECT", requires = "base_url")]
    dialect: Option<String>,

    /// Directory with further agents, a TOML file each
    #[arg(long, value_name = "DIR")]
    agents: Option<String>,

    /// Key of every agent, with its value in YAML: `--ak override_timeout_sec=60`
    #[arg(long = "ak", alias = "agent-kwarg", value_name = "KEY=VALUE")]
    agent_key: Vec<String>,

    /// Host that agents may reach in tasks without network or with an allowlist
    #[arg(long, value_name = "HOST")]
    allow_agent_host: Vec<String>,

    /// Let agents continue their conversation in the next step of a task
    #[arg(long)]
    resume_trajectory: bool,

    /// File with a conversation that agents continue, in Harbor's trajectory format (ATIF)
    #[arg(long, value_name = "FILE")]
    load_trajectory: Option<PathBuf>,

    /// Text after the instruction of every task
    #[arg(long, value_name = "TEXT")]
    extra_instruction: Vec<String>,

    /// File with a text after the instruction of every task
    #[arg(long, value_name = "FILE")]
    extra_instruction_path: Vec<PathBuf>,

    /// Variable of every agent; values with a secret's name are not stored
    #[arg(long, alias = "ae", value_name = "NAME=VALUE")]
    agent_env: Vec<String>,

    /// Variable of this process that task files may use
    #[arg(long, value_name = "NAME")]
    task_env: Vec<String>,

    /// Trials of every agent on every task
    #[arg(long, short = 'k', value_name = "N", allow_hyphen_values = true)]
    n_attempts: Option<String>,

    /// Retries after an infrastructure failure
    #[arg(long, short = 'r', value_name = "N")]
    max_retries: Option<u32>,

    /// Trials at a time
    #[arg(long, short = 'n', alias = "n-concurrent", value_name = "N", allow_hyphen_values = true)]
    n_concurrent_trials: Option<String>,

    /// Agents that run at a time on each worker
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    n_concurrent_agents: Option<String>,

    /// Environment: docker, process or kubernetes
    #[arg(long, short = 'e', alias = "env", value_name = "TYPE")]
    environment: Option<String>,

    /// Build images without cache, also for tasks that name an image
    #[arg(long)]
    force_build: bool,

    /// When to keep environments: never, always or on_failure
    #[arg(long, value_name = "WHICH")]
    preserve_env: Option<String>,

    /// Keep every environment: `--preserve-env always`
    #[arg(long, conflicts_with = "preserve_env")]
    no_delete: bool,

    /// Processors of every environment
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    override_cpus: Option<String>,

    /// Memory of every environment, such as 2G
    #[arg(long, value_name = "AMOUNT", allow_hyphen_values = true)]
    override_memory: Option<String>,

    /// Storage of every environment, such as 10G
    #[arg(long, value_name = "AMOUNT", allow_hyphen_values = true)]
    override_storage: Option<String>,

    /// GPUs of every environment
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    override_gpus: Option<String>,

    /// Factor for every time limit without its own factor
    #[arg(long, value_name = "FACTOR", allow_hyphen_values = true)]
    timeout_multiplier: Option<String>,

    /// Factor for the time limits of agents
    #[arg(long, value_name = "FACTOR", allow_hyphen_values = true)]
    agent_timeout_multiplier: Option<String>,

    /// Factor for the time limits of test scripts
    #[arg(long, value_name = "FACTOR", allow_hyphen_values = true)]
    verifier_timeout_multiplier: Option<String>,

    /// Factor for the time limits of agent installation
    #[arg(long, value_name = "FACTOR", allow_hyphen_values = true)]
    agent_setup_timeout_multiplier: Option<String>,

    /// Factor for the time limits of image builds
    #[arg(long, value_name = "FACTOR", allow_hyphen_values = true)]
    environment_build_timeout_multiplier: Option<String>,

    /// Run no test scripts: trials end unverified
    #[arg(long)]
    disable_verification: bool,

    /// Key of the reward to use if there are several
    #[arg(long, value_name = "KEY")]
    reward_key: Option<String>,

    /// File or directory of the environment to keep from every trial
    #[arg(long, value_name = "PATH")]
    artifact: Vec<String>,

    /// Variable of the test scripts; values with a secret's name are not stored
    #[arg(long, alias = "ve", value_name = "NAME=VALUE")]
    verifier_env: Vec<String>,

    /// Name of the run; another name is another run
    #[arg(long, visible_alias = "job-name")]
    name: Option<String>,

    /// Directory of runs
    #[arg(long, short = 'o', value_name = "DIR")]
    jobs_dir: Option<String>,

    /// Any key of the job, with its value in YAML: `--set environment.provider_config.network=none`
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,

    #[command(flatten)]
    pub(super) harbor: HarborOptions,
}

impl JobArgs {
    /// Whether the command line names the run.
    pub(super) fn has_name(&self) -> bool {
        self.name.is_some()
    }

    /// The kind of environment that the command line names.
    #[cfg(all(test, feature = "nats"))]
    pub(super) fn environment(&self) -> Option<&str> {
        self.environment.as_deref()
    }

    /// Names the kind of environment for `option`, which stands for it.
    ///
    /// # Errors
    /// The command line names another one.
    pub(super) fn set_environment(&mut self, kind: &str, option: &str) -> Result<(), CliError> {
        match &self.environment {
            Some(named) if named != kind => {
                Err(CliError::usage(format!("cannot use `{option}` with `-e {named}`")))
            }
            _ => {
                self.environment = Some(kind.to_owned());
                Ok(())
            }
        }
    }

    /// The settings, those of `--set` last.
    ///
    /// # Errors
    /// An option is not `KEY=VALUE`, or a dataset has no registry.
    pub(super) fn settings(&self) -> Result<Vec<CliSetting>, String> {
        if let (Some(name), None) = (self.dataset.first(), &self.registry) {
            return Err(no_registry(name));
        }
        let mut settings = self.datasets();
        settings
            .extend(self.agent.iter().map(|name| CliSetting::agent(&format!("-a {name}"), name)));
        settings
            .extend(self.model.iter().map(|name| CliSetting::model(&format!("-m {name}"), name)));
        self.model_server(&mut settings);
        self.single(&mut settings);
        self.amounts(&mut settings);
        self.lists(&mut settings)?;
        self.harbor.add_to(&mut settings)?;
        for text in &self.set {
            let (key, value) = pair("--set", text)?;
            // The value may be a secret.
            settings.push(CliSetting::yaml(&format!("--set {key}"), key, value));
        }
        Ok(settings)
    }

    /// The server of the models, for every agent with a model.
    fn model_server(&self, settings: &mut Vec<CliSetting>) {
        for (flag, key, value) in [
            ("--base-url", "base_url", &self.base_url),
            ("--key-env", "key_env", &self.key_env),
            ("--dialect", "dialect", &self.dialect),
        ] {
            if let Some(value) = value {
                let shown = without_secrets(value);
                settings.push(CliSetting::each_model(&format!("{flag} {shown}"), key, value));
            }
        }
    }

    fn datasets(&self) -> Vec<CliSetting> {
        let path = |dir: &String| {
            // It may be the address of a repository by mistake.
            let shown = without_secrets(dir);
            CliSetting::dataset(&format!("-p {shown}"), CliDataset::Path(dir.clone()))
        };
        let repository = |url: &String| {
            let shown = repository_without_secrets(url);
            CliSetting::dataset(&format!("--repo {shown}"), CliDataset::Repository(url.clone()))
        };
        let registered = |text: &String| {
            let (name, version) = match text.rsplit_once('@') {
                Some((name, version)) if !name.is_empty() => (name, Some(version.to_owned())),
                _ => (text.as_str(), None),
            };
            let registry = self.registry.clone().unwrap_or_default();
            let dataset = CliDataset::Registered { registry, name: name.to_owned(), version };
            CliSetting::dataset(&format!("-d {text}"), dataset)
        };
        let mut settings: Vec<CliSetting> = self.path.iter().map(path).collect();
        settings.extend(self.dataset.iter().map(registered));
        settings.extend(self.repo.iter().map(repository));
        for (flag, key, patterns) in [
            ("-t", "task_names", &self.task_name),
            ("-x", "exclude_task_names", &self.exclude_task_name),
        ] {
            if !patterns.is_empty() {
                let flag = format!("{flag} {}", patterns.join(" "));
                settings.push(CliSetting::each_dataset_list(&flag, key, patterns));
            }
        }
        for (flag, key, value) in
            [("-l", "n_tasks", &self.n_tasks), ("--format", "format", &self.format)]
        {
            if let Some(value) = value {
                settings.push(CliSetting::each_dataset(&format!("{flag} {value}"), key, value));
            }
        }
        settings
    }

    /// Keys with one value.
    fn single(&self, settings: &mut Vec<CliSetting>) {
        for (flag, key, value) in [
            ("-k", "n_attempts", &self.n_attempts),
            ("-n", "n_concurrent_trials", &self.n_concurrent_trials),
            ("--n-concurrent-agents", "n_concurrent_agents", &self.n_concurrent_agents),
            ("-e", "environment.type", &self.environment),
            ("--preserve-env", "environment.preserve_env", &self.preserve_env),
            ("--override-cpus", "environment.override_cpus", &self.override_cpus),
            ("--override-gpus", "environment.override_gpus", &self.override_gpus),
            ("--timeout-multiplier", "timeout_multiplier", &self.timeout_multiplier),
            (
                "--agent-timeout-multiplier",
                "agent_timeout_multiplier",
                &self.agent_timeout_multiplier,
            ),
            (
                "--verifier-timeout-multiplier",
                "verifier_timeout_multiplier",
                &self.verifier_timeout_multiplier,
            ),
            (
                "--agent-setup-timeout-multiplier",
                "agent_setup_timeout_multiplier",
                &self.agent_setup_timeout_multiplier,
            ),
            (
                "--environment-build-timeout-multiplier",
                "environment_build_timeout_multiplier",
                &self.environment_build_timeout_multiplier,
            ),
        ] {
            if let Some(value) = value {
                settings.push(CliSetting::plain(&format!("{flag} {value}"), key, value));
            }
        }
        for (flag, key, value) in [
            ("--reward-key", "verifier.reward_key", &self.reward_key),
            ("--name", "name", &self.name),
            ("--jobs-dir", "jobs_dir", &self.jobs_dir),
            ("--agents", "agents_dir", &self.agents),
        ] {
            if let Some(value) = value {
                settings.push(CliSetting::text(&format!("{flag} {value}"), key, value));
            }
        }
        for (flag, key, on) in [
            ("--force-build", "environment.force_build", self.force_build),
            ("--disable-verification", "verifier.disable", self.disable_verification),
            ("--no-delete", "environment.preserve_env", self.no_delete),
        ] {
            if on {
                settings.push(CliSetting::plain(flag, key, "true"));
            }
        }
        if let Some(retries) = self.max_retries {
            let tries = retries.saturating_add(1).to_string();
            settings.push(CliSetting::plain(
                &format!("-r {retries}"),
                "retry.max_attempts",
                &tries,
            ));
        }
    }

    /// Amounts of memory and storage.
    fn amounts(&self, settings: &mut Vec<CliSetting>) {
        for (flag, key, value) in [
            ("--override-memory", "environment.override_memory", &self.override_memory),
            ("--override-storage", "environment.override_storage", &self.override_storage),
        ] {
            if let Some(value) = value {
                let flag = format!("{flag} {value}");
                settings.push(CliSetting::plain(&flag, key, &amount_of_key(value)));
            }
        }
    }

    /// Keys with several values. Values of variables may be secrets and are not shown.
    fn lists(&self, settings: &mut Vec<CliSetting>) -> Result<(), String> {
        for path in &self.artifact {
            settings.push(CliSetting::item(&format!("--artifact {path}"), "artifacts", path));
        }
        for text in &self.extra_instruction {
            settings.push(CliSetting::item("--extra-instruction", "extra_instructions", text));
        }
        for path in &self.extra_instruction_path {
            let flag = format!("--extra-instruction-path {}", path.display());
            let text = read_extra_instruction(path)
                .map_err(|error| format!("cannot read the file of {flag}: {error}"))?;
            settings.push(CliSetting::item(&flag, "extra_instructions", &text));
        }
        for host in &self.allow_agent_host {
            let flag = format!("--allow-agent-host {host}");
            settings.push(CliSetting::each_agent_item(&flag, "extra_allowed_hosts", host));
        }
        if self.resume_trajectory {
            let flag = "--resume-trajectory";
            settings.push(CliSetting::each_agent_key(flag, "resume_trajectory", "true"));
        }
        if let Some(path) = &self.load_trajectory {
            let flag = format!("--load-trajectory {}", path.display());
            let path = path.to_str().ok_or_else(|| format!("{flag}: the path is no UTF-8"))?;
            let text = serde_json::Value::from(path).to_string();
            settings.push(CliSetting::each_agent_key(&flag, "load_trajectory", &text));
        }
        for name in &self.task_env {
            settings.push(CliSetting::item(&format!("--task-env {name}"), "task_env", name));
        }
        for text in &self.agent_key {
            let (key, value) = pair("--ak", text)?;
            settings.push(CliSetting::each_agent_key(&format!("--ak {key}"), key, value));
        }
        for text in &self.agent_env {
            let (name, value) = pair("--agent-env", text)?;
            settings.push(CliSetting::each_agent(&format!("--agent-env {name}"), name, value));
        }
        for text in &self.verifier_env {
            let (name, value) = pair("--verifier-env", text)?;
            let flag = format!("--verifier-env {name}");
            settings.push(CliSetting::text(&flag, &format!("verifier.env.{name}"), value));
        }
        Ok(())
    }
}

/// An amount of an option as its key has it: options have Docker's units, where `m` is a MiB, keys those
/// of Kubernetes. A number without unit, which the key warns of, and text that is no amount stay.
fn amount_of_key(text: &str) -> String {
    match units::mebibytes(text) {
        Some(amount) if !amount.guessed => format!("{}Mi", amount.mib),
        _ => text.to_owned(),
    }
}

/// The parts of the value of an option.
///
/// # Errors
/// It is not `KEY=VALUE`.
pub(super) fn pair<'a>(flag: &str, text: &'a str) -> Result<(&'a str, &'a str), String> {
    let pair = text.split_once('=').filter(|(key, _)| !key.is_empty());
    pair.ok_or_else(|| format!("{flag} expects KEY=VALUE"))
}

/// The error of a dataset without a registry.
fn no_registry(name: &str) -> String {
    let hub = if name.contains('/') { "packages of a hub are not supported; " } else { "" };
    format!(
        "cannot find the dataset `{name}`: {hub}add `--registry PATH` or `--registry URL` with the \
         registry.json that has it, or use `-p DIR` for tasks on this disk and `--repo URL` for those \
         of a git repository"
    )
}
