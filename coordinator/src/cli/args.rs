//! Command line types. Their doc comments are the help texts.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{ArgGroup, Args, CommandFactory as _, Parser, Subcommand};
use rollout_engine::{LockWaitPolicy, OutcomeFilter, ReopenSelection, TrialFilter};
use rollout_protocol::limits::LOCK_STALE;
#[cfg(feature = "nats")]
use rollout_protocol::spec::environment::ProviderKind;

use super::ca_bundle::CaBundleArgs;
use super::executor::ExecutorArgs;
use super::gc::GcArgs;
use super::listen::ListenArgs;
use super::live::{CancelArgs, ControlArgs, PauseArgs, ServerArgs};
use super::logging::LogArgs;
#[cfg(feature = "nats")]
use super::nats::{DoctorArgs, RequiredNatsArgs, SetupArgs, WorkersArgs};
use super::overrides::JobArgs;
use super::tree::TreeCommand;
use super::value_parsers;
#[cfg(feature = "nats")]
use super::worker_value_parsers;
use crate::config::{LogLevel, env_vars};
use crate::events::MaterializeMode;
use crate::launch::parameters::RunSink;

/// Run agents on tasks in isolated environments, without losing or double-counting results
///
/// `rollout job.yaml` is short for `rollout run job.yaml`.
#[derive(Debug, Parser)]
#[command(name = "rollout", version, disable_help_subcommand = true, max_term_width = 100)]
pub(super) struct Cli {
    #[command(subcommand)]
    pub(super) command: Command,
}

/// Subcommands of `rollout`.
#[derive(Debug, Subcommand)]
pub(super) enum Command {
    Run(Box<RunArgs>),
    #[command(visible_alias = "continue")]
    Resume(Box<super::resume::ResumeArgs>),
    Retry(Box<RetryArgs>),
    Status(super::status::StatusArgs),
    List(super::list::ListArgs),
    Show(super::show::ShowArgs),
    Logs(super::logs::LogsArgs),
    Events(super::events::EventsArgs),
    Gc(GcArgs),
    #[cfg(feature = "nats")]
    Worker(Box<WorkerArgs>),
    #[cfg(feature = "serve")]
    Serve(Box<super::serve::ServeArgs>),
    #[cfg(feature = "serve")]
    Up(super::up::UpArgs),
    #[command(visible_alias = "stop")]
    Cancel(CancelArgs),
    Pause(PauseArgs),
    Control(Box<ControlArgs>),
    #[cfg(feature = "nats")]
    Workers(WorkersArgs),
    #[cfg(feature = "nats")]
    Setup(SetupArgs),
    #[cfg(feature = "nats")]
    Doctor(DoctorArgs),
    Check(super::check::CheckArgs),
    /// Create tasks
    #[command(subcommand)]
    Task(super::task_init::TaskCommand),
    /// List, show and check agents
    #[command(subcommand)]
    Agents(super::agents::AgentsCommand),
    #[cfg(feature = "gateway")]
    Gateway(super::gateway::GatewayArgs),
    Keys(super::keys::KeysArgs),
    /// Search over the commits of a repository
    #[command(subcommand)]
    Tree(TreeCommand),
    /// Show the farms of a server
    #[command(subcommand)]
    Farm(super::farm::FarmCommand),
    Export(super::export::ExportArgs),
    Repair(super::repair::RepairArgs),
    Completions(super::shell::CompletionsArgs),
    Man(super::shell::ManArgs),
    /// Read and verify blobs of a store
    #[command(subcommand)]
    Blob(super::blob::BlobCommand),
    /// Measure this machine with trials that do nothing
    #[command(subcommand)]
    Bench(BenchCommand),
}

/// Run a job: every agent on every task, `n_attempts` times
///
/// `rollout resume DIR` resumes a run that was stopped by a signal or a crash: settled trials are
/// not repeated. The first Ctrl-C lets running trials finish their phase; the second ends them at
/// once.
#[derive(Debug, Args)]
pub(super) struct RunArgs {
    /// Job file, YAML or JSON; optional with `-p`, `-d` or `--repo`
    #[arg(required_unless_present_any = ["config", "path", "dataset", "repo"])]
    pub(super) job: Option<PathBuf>,

    #[command(flatten)]
    pub(super) keys: JobArgs,

    /// Job file, as an option
    #[arg(long, short = 'c', value_name = "JOB", conflicts_with = "job")]
    pub(super) config: Option<PathBuf>,

    /// Print the resolved plan and its digest, and start nothing
    #[arg(long)]
    pub(super) dry_run: bool,

    /// Print events as lines of JSON on standard output; the last line is the job's result
    #[arg(long)]
    pub(super) json: bool,

    /// Which result files to write [default: full; metadata_only on a remote executor or with `--sink
    /// catalog`]
    #[arg(long, value_name = "WHAT")]
    pub(super) materialize: Option<MaterializeMode>,

    /// Where to keep the run [default: as in its last session, else local]
    #[arg(long, value_name = "WHERE")]
    pub(super) sink: Option<RunSink>,

    /// Blob store: a directory, or `s3://bucket/prefix?endpoint=URL` [default: <jobs_dir>/.rollout/blobs]
    #[arg(long, env = env_vars::STORE.name)]
    pub(super) store: Option<String>,

    /// Size of the local cache of what is read from a store in S3; 0 for none
    #[arg(long, value_name = "SIZE", default_value = value_parsers::STORE_CACHE, value_parser = value_parsers::size)]
    pub(super) store_cache: u64,

    /// File of options of the provider `kubernetes` that jobs cannot change
    #[cfg(feature = "kubernetes")]
    #[arg(long, value_name = "FILE", env = env_vars::KUBERNETES_CONFIG.name)]
    pub(super) kubernetes_config: Option<PathBuf>,

    #[command(flatten)]
    pub(super) ca_bundle: CaBundleArgs,

    /// Seconds without a heartbeat before the run is taken over [default: 30]
    ///
    /// Without `--nats`, an owner whose process exists on this host is taken over only if this
    /// option is given.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) lock_stale_seconds: Option<u32>,

    /// Take the run over at once from any owner; later work of the former owner does not count
    #[arg(long, conflicts_with_all = ["no_wait", "dry_run"])]
    pub(super) force: bool,

    /// Exit with 6 instead of waiting for an owner that may be dead
    #[arg(long)]
    pub(super) no_wait: bool,

    /// Continue a run whose agents, tasks or attempts with results are no longer planned: these
    /// results are kept and no longer count
    #[arg(long)]
    pub(super) accept_changed: bool,

    /// Exit with 5 if the pass rate is below RATE, with 4 if failures of the infrastructure or of
    /// tasks could change that
    ///
    /// The rate counts completed trials and failures of agents, verifiers and tasks. A run without
    /// one of these exits with 13, or with 4 after infrastructure failures.
    #[arg(long, value_name = "RATE", value_parser = share)]
    pub(super) fail_under: Option<f64>,

    /// Refuse a job whose tasks lack a file or cannot run here, instead of settling their trials
    #[arg(long)]
    pub(super) strict: bool,

    /// File of variables, one `NAME=VALUE` a line, that tasks may use; they override those of this
    /// process
    #[arg(long, value_name = "FILE")]
    pub(super) env_file: Option<PathBuf>,

    /// Let task files use every variable of this process that they ask for
    #[arg(long, short)]
    pub(super) yes: bool,

    /// Show errors only: no progress, no table
    #[arg(long, short, alias = "silent")]
    pub(super) quiet: bool,

    /// Log debug messages
    #[arg(long, short, visible_alias = "debug", conflicts_with_all = ["quiet", "log_level"])]
    pub(super) verbose: bool,

    /// Log level, instead of the job file's `log_level`
    #[arg(long, value_name = "LEVEL", conflicts_with = "quiet")]
    pub(super) log_level: Option<LogLevel>,

    /// How long trials that no worker can run wait before they fail [default: 10m; in an elastic
    /// pool without limit, or that of the pool]
    #[cfg(feature = "nats")]
    #[arg(long, value_name = "TIME", value_parser = super::value_parsers::duration)]
    pub(super) unplaceable_timeout: Option<Duration>,

    /// At the first signal, end and let trials on workers continue: the next session of the run takes
    /// their results
    #[cfg(feature = "nats")]
    #[arg(long, requires = "url")]
    pub(super) hand_over: bool,

    #[command(flatten)]
    pub(super) executor: ExecutorArgs,

    #[cfg(feature = "nats")]
    #[command(flatten)]
    pub(super) nats: super::nats::NatsArgs,

    #[command(flatten)]
    pub(super) listen: ListenArgs,

    #[command(flatten)]
    pub(super) log: LogArgs,

    /// Settled trials that run again, by `rollout retry`.
    #[arg(skip)]
    pub(super) reopen: Option<ReopenSelection>,

    /// The run directory whose options these are, by `rollout retry` and `resume`.
    #[arg(skip)]
    pub(super) again: Option<PathBuf>,

    /// The options that this session adds to those of the run directory.
    #[arg(skip)]
    pub(super) session_options: Vec<String>,
}

/// Run trials from a NATS server on this host
///
/// Workers on any number of hosts can share a pool, and start and stop at any time. The first
/// SIGTERM or Ctrl-C drains: the worker takes no more work and lets running trials end; the second
/// ends them at once. The next worker on the same host reports what a dead worker ran or finished.
/// Exits with 11 when the server was unreachable for too long, with 12 when the pool uses another
/// blob store.
#[cfg(feature = "nats")]
#[derive(Debug, Args)]
pub(super) struct WorkerArgs {
    #[command(flatten)]
    pub(super) nats: RequiredNatsArgs,

    /// Blob store that all hosts share: a directory, or `s3://bucket/prefix?endpoint=URL`
    #[arg(long, value_name = "STORE", env = env_vars::STORE.name)]
    pub(super) store: String,

    /// Size of the local cache of what is read from a store in S3; 0 for none
    #[arg(long, value_name = "SIZE", default_value = value_parsers::STORE_CACHE, value_parser = value_parsers::size)]
    pub(super) store_cache: u64,

    /// Pool to take work from
    #[arg(long, value_name = "NAME", default_value = "default")]
    pub(super) pool: String,

    /// Trials at a time; `auto` is one per processor
    #[arg(long, value_name = "N|auto", default_value = "auto", value_parser = worker_value_parsers::slots)]
    pub(super) slots: worker_value_parsers::SlotCount,

    /// Processors for all its trials together [default: no limit]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) cpus: Option<u32>,

    /// Memory for all its trials together, such as `8g` [default: no limit]
    #[arg(long, value_name = "AMOUNT", value_parser = worker_value_parsers::memory)]
    pub(super) memory: Option<u64>,

    /// Variable of this process that trials may see; `PREFIX_*` for all with that prefix
    #[arg(long, value_name = "NAME")]
    pub(super) trial_env: Vec<String>,

    /// Providers to offer [default: all available on this host]
    #[arg(long, value_name = "KIND", value_parser = worker_value_parsers::provider)]
    pub(super) provider: Vec<ProviderKind>,

    /// File of options of the provider `kubernetes` that jobs cannot change
    #[cfg(feature = "kubernetes")]
    #[arg(long, value_name = "FILE", env = env_vars::KUBERNETES_CONFIG.name)]
    pub(super) kubernetes_config: Option<PathBuf>,

    #[command(flatten)]
    pub(super) ca_bundle: CaBundleArgs,

    /// Directory of state that outlives the worker; workers of one host may share it
    /// [default: $XDG_STATE_HOME/rollout or ~/.local/state/rollout]
    #[arg(long, value_name = "DIR")]
    pub(super) dir: Option<PathBuf>,

    /// How long running trials may continue while draining, before other workers run them again
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = value_parsers::duration)]
    pub(super) drain_timeout: Duration,

    /// How long to work without the server before exiting
    #[arg(long, value_name = "TIME", default_value = value_parsers::MAX_OFFLINE, value_parser = value_parsers::duration)]
    pub(super) max_offline: Duration,

    #[command(flatten)]
    pub(super) listen: ListenArgs,

    #[command(flatten)]
    pub(super) log: LogArgs,

    /// Log level
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    pub(super) log_level: LogLevel,
}

/// Subcommands of `rollout bench`.
#[derive(Debug, Subcommand)]
pub(super) enum BenchCommand {
    Dispatch(DispatchArgs),
}

/// Measure how fast trials pass queue, worker, journal and outputs, compared with the disk alone
#[derive(Debug, Args)]
pub(super) struct DispatchArgs {
    /// Number of trials
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) items: u32,

    /// Trials at a time; several values are measured one after the other
    #[arg(long, value_name = "W,…", value_delimiter = ',', default_value = "4,64,1024", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(super) window: Vec<u32>,

    /// Also write the directory of every trial
    #[arg(long)]
    pub(super) materialize: bool,

    /// Directory to write to; the files are removed afterwards [default: the current directory]
    #[arg(long)]
    pub(super) dir: Option<PathBuf>,

    /// Print the figures as JSON, one line per window
    #[arg(long)]
    pub(super) json: bool,
}

impl Cli {
    /// Whether only errors are shown.
    pub(super) fn is_quiet(&self) -> bool {
        match &self.command {
            Command::Run(args) => args.quiet,
            Command::Tree(command) => command.is_quiet(),
            #[cfg(feature = "nats")]
            Command::Worker(_) | Command::Workers(_) | Command::Setup(_) | Command::Doctor(_) => {
                false
            }
            Command::Check(_)
            | Command::Cancel(_)
            | Command::Completions(_)
            | Command::Man(_)
            | Command::Control(_)
            | Command::Pause(_)
            | Command::Resume(_)
            | Command::Retry(_)
            | Command::Status(_)
            | Command::List(_)
            | Command::Show(_)
            | Command::Logs(_)
            | Command::Events(_)
            | Command::Gc(_)
            | Command::Task(_)
            | Command::Export(_)
            | Command::Repair(_)
            | Command::Agents(_)
            | Command::Keys(_)
            | Command::Farm(_)
            | Command::Blob(_)
            | Command::Bench(_) => false,
            #[cfg(feature = "gateway")]
            Command::Gateway(_) => false,
            #[cfg(feature = "serve")]
            Command::Serve(_) | Command::Up(_) => false,
        }
    }

    /// Whether the command serves until it is stopped.
    pub(super) fn runs_for_long(&self) -> bool {
        #[cfg(feature = "serve")]
        if matches!(self.command, Command::Serve(_) | Command::Up(_)) {
            return true;
        }
        #[cfg(feature = "nats")]
        if matches!(self.command, Command::Worker(_)) {
            return true;
        }
        false
    }
}

/// Run settled trials of a run again, under the run's own options
///
/// Their former results are kept as superseded executions, and all other results stay. If the run's
/// coordinator runs, the trials get another try within its session, with its agents, tasks and
/// settings, and this command ends; options after `--` are refused then. If not, this command is the
/// run's next session: pending trials run as well, and the job file must be where it was. Agents,
/// tasks and settings may be corrected before such a session: other trials keep their results. Of a
/// search, `--infra` retries the evals that the infrastructure failed.
#[derive(Debug, Args)]
#[command(
    group = ArgGroup::new("which"),
    group = ArgGroup::new("selection").required(true).multiple(true)
        .args(["failed", "infra", "trial", "agent", "task"])
)]
pub(super) struct RetryArgs {
    /// Directory of a run or a search; a run on a server: `nats://host:4222#RUN`, or with `--nats` its
    /// id; or in a catalog: `s3://bucket/prefix#RUN`
    #[arg(value_name = "RUN")]
    pub(super) run: PathBuf,

    /// All trials that failed
    #[arg(long, group = "which")]
    pub(super) failed: bool,

    /// All trials that failed because of the infrastructure
    #[arg(long, group = "which")]
    pub(super) infra: bool,

    /// This trial, whatever its outcome: `agent/dataset/task__attempt` or its item; can be repeated
    #[arg(long, value_name = "KEY", group = "which")]
    pub(super) trial: Vec<String>,

    /// Only trials of this agent; without `--failed` and `--infra`, whatever their outcome; can be
    /// repeated
    #[arg(long, value_name = "NAME", conflicts_with = "trial")]
    pub(super) agent: Vec<String>,

    /// Only trials of this task, `task` or `dataset/task`; can be repeated
    #[arg(long, value_name = "TASK", conflicts_with = "trial")]
    pub(super) task: Vec<String>,

    /// Print the receipt of a running coordinator, or the events of a new session, as JSON
    #[arg(long)]
    pub(super) json: bool,

    #[command(flatten)]
    pub(super) server: ServerArgs,

    /// Further options of `rollout run` for a new session, added to those of the run's first start;
    /// one that the run has replaces its value
    #[arg(last = true, value_name = "OPTION")]
    pub(super) options: Vec<String>,
}

impl RetryArgs {
    /// The settled trials that run again.
    pub(super) fn selection(&self) -> ReopenSelection {
        let outcome = match (self.failed, self.infra) {
            (true, _) => OutcomeFilter::Failed,
            (false, true) => OutcomeFilter::Infrastructure,
            (false, false) => OutcomeFilter::Any,
        };
        let (agents, tasks) = (self.agent.clone(), self.task.clone());
        match outcome {
            _ if !agents.is_empty() || !tasks.is_empty() => {
                ReopenSelection::Filtered(TrialFilter { outcome, agents, tasks })
            }
            OutcomeFilter::Failed => ReopenSelection::Failed,
            OutcomeFilter::Infrastructure => ReopenSelection::Infrastructure,
            OutcomeFilter::Any => ReopenSelection::Trials(self.trial.clone()),
        }
    }
}

impl RunArgs {
    /// Whether trials run on the workers of a server.
    #[cfg(feature = "nats")]
    pub(super) fn has_remote_workers(&self) -> bool {
        self.nats.url.is_some()
    }

    /// Whether trials run on the workers of a server.
    #[cfg(not(feature = "nats"))]
    pub(super) const fn has_remote_workers(&self) -> bool {
        false
    }

    /// Policy for taking the run from an owner that may be dead.
    pub(super) fn lock_wait_policy(&self) -> LockWaitPolicy {
        let stale = self.lock_stale_seconds.map(|seconds| Duration::from_secs(seconds.into()));
        LockWaitPolicy {
            stale: stale.unwrap_or(LOCK_STALE),
            force: self.force,
            wait: !self.no_wait,
            hung: stale.is_some(),
        }
    }
}

/// A number from 0 to 1.
fn share(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        _ => Err("expected a number from 0 to 1".to_owned()),
    }
}

/// Inserts `run` where the first argument that is not an option names a job file.
pub(super) fn with_run(mut arguments: Vec<OsString>) -> Vec<OsString> {
    let first = arguments.iter().skip(1).find(|a| !a.to_string_lossy().starts_with('-'));
    if first.is_some_and(|first| !is_command(first) && is_job_file(Path::new(first))) {
        arguments.insert(1, "run".into());
    }
    arguments
}

fn is_command(word: &OsString) -> bool {
    Cli::command().get_subcommands().any(|command| word == command.get_name())
}

fn is_job_file(path: &Path) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str());
    extension.is_some_and(|e| ["yaml", "yml", "json"].contains(&e)) || path.is_file()
}
