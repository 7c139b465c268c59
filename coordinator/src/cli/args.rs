//! The command line as types. The comments are the help.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{ArgGroup, Args, CommandFactory as _, Parser, Subcommand};
use rollout_protocol::limits::LOCK_STALE;
#[cfg(feature = "nats")]
use rollout_protocol::spec::environment::ProviderKind;

#[cfg(feature = "nats")]
use super::nats::{CancelArgs, DoctorArgs, RequiredNatsArgs, SetupArgs, WorkersArgs};
use super::overrides::JobArgs;
use super::tree::TreeCommand;
#[cfg(any(feature = "docker", feature = "nats"))]
use super::value_parsers;
#[cfg(feature = "nats")]
use super::worker_value_parsers;
use crate::config::LogLevel;
use crate::engine::{LockWaitPolicy, ReopenSelection};
use crate::events::MaterializeMode;

/// Runs agents on tasks in isolated environments and never loses or double-counts a result.
///
/// `rollout job.yaml` is short for `rollout run job.yaml`.
#[derive(Debug, Parser)]
#[command(name = "rollout", version, disable_help_subcommand = true, max_term_width = 100)]
pub(super) struct Cli {
    #[command(subcommand)]
    pub(super) command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(super) enum Command {
    Run(Box<RunArgs>),
    Retry(RetryArgs),
    Gc(GcArgs),
    #[cfg(feature = "nats")]
    Worker(Box<WorkerArgs>),
    #[cfg(feature = "nats")]
    Cancel(CancelArgs),
    #[cfg(feature = "nats")]
    Workers(WorkersArgs),
    #[cfg(feature = "nats")]
    Setup(SetupArgs),
    #[cfg(feature = "nats")]
    Doctor(DoctorArgs),
    Check(super::check::CheckArgs),
    /// Make tasks
    #[command(subcommand)]
    Task(super::task_init::TaskCommand),
    Keys(super::keys::KeysArgs),
    /// Search over the commits of a repository
    #[command(subcommand)]
    Tree(TreeCommand),
    Export(super::export::ExportArgs),
    Repair(super::repair::RepairArgs),
    /// Measure this machine with trials that do nothing
    #[command(subcommand)]
    Bench(BenchCommand),
}

/// Run a job: every agent on every task, as often as the job says
///
/// A run that was stopped, by a signal or by a crash, is gone on with by the same command: settled
/// trials are not repeated. The first Ctrl-C lets running trials finish their phase, the second
/// ends them at once.
#[derive(Debug, Args)]
pub(super) struct RunArgs {
    /// The job file, YAML or JSON; none is needed when `-p`, `-d` or `--repo` says what to run
    #[arg(required_unless_present_any = ["config", "path", "dataset", "repo"])]
    pub(super) job: Option<PathBuf>,

    /// The job file, as an option
    #[arg(long, short = 'c', value_name = "JOB", conflicts_with = "job")]
    pub(super) config: Option<PathBuf>,

    /// Print the resolved plan and its digest, and start nothing
    #[arg(long)]
    pub(super) dry_run: bool,

    /// Print events as lines of JSON on standard output; the last line is the job's result
    #[arg(long)]
    pub(super) json: bool,

    /// What becomes files beside `config.json` and `result.json`
    #[arg(long, value_name = "WHAT", default_value = "full")]
    pub(super) materialize: MaterializeMode,

    /// Blob store: a directory, or `file:///directory` [default: <jobs_dir>/.rollout/blobs]
    #[arg(long)]
    pub(super) store: Option<String>,

    /// Seconds that a run's owner says nothing before it is taken over [default: 30]
    ///
    /// Without `--nats` an owner whose process exists on this host is taken over only if this is
    /// given.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) lock_stale_seconds: Option<u32>,

    /// Take the run over at once, whoever owns it; what the former owner still does does not count
    #[arg(long, conflicts_with_all = ["no_wait", "dry_run"])]
    pub(super) force: bool,

    /// Exit with 6 instead of watching an owner that may be dead
    #[arg(long)]
    pub(super) no_wait: bool,

    /// Exit with 5 when the pass rate is below this share: of completed trials and of the failures of
    /// agents, verifiers and tasks. Exit with 4 when infrastructure failures could change the verdict
    #[arg(long, value_name = "RATE", value_parser = share)]
    pub(super) fail_under: Option<f64>,

    /// Refuse a job with tasks that lack a file or that cannot run here, instead of settling their
    /// trials
    #[arg(long)]
    pub(super) strict: bool,

    /// File with variables, a line `NAME=VALUE` each, over those of this process; tasks may use them
    #[arg(long, value_name = "FILE")]
    pub(super) env_file: Option<PathBuf>,

    /// Let task files use every variable of this process that they ask for
    #[arg(long, short)]
    pub(super) yes: bool,

    /// Show errors only: no progress, no table
    #[arg(long, short)]
    pub(super) quiet: bool,

    /// Log more: debug messages
    #[arg(long, short, visible_alias = "debug", conflicts_with_all = ["quiet", "log_level"])]
    pub(super) verbose: bool,

    /// Log level, instead of the job file's `log_level`
    #[arg(long, value_name = "LEVEL", conflicts_with = "quiet")]
    pub(super) log_level: Option<LogLevel>,

    /// How long trials that no worker could run wait for one that can before they fail
    #[cfg(feature = "nats")]
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = super::value_parsers::duration)]
    pub(super) unplaceable_timeout: Duration,

    #[cfg(feature = "nats")]
    #[command(flatten)]
    pub(super) nats: super::nats::NatsArgs,

    #[command(flatten)]
    pub(super) keys: JobArgs,

    /// Settled trials that run again, by `rollout retry`.
    #[arg(skip)]
    pub(super) reopen: Option<ReopenSelection>,
}

/// Run trials of the runs of a server, on this host
///
/// Any number of workers on any number of hosts share a pool, come and go. A first SIGTERM or Ctrl-C
/// drains: no more work is taken, what runs may end; a second ends it at once. What a dead worker
/// finished or ran is reported by the next worker on its host. Exits with 11 when the server was out
/// of reach for too long, with 12 when the pool uses another blob store.
#[cfg(feature = "nats")]
#[derive(Debug, Args)]
pub(super) struct WorkerArgs {
    #[command(flatten)]
    pub(super) nats: RequiredNatsArgs,

    /// Blob store that all hosts share: a directory, or `file:///directory`
    #[arg(long, value_name = "STORE")]
    pub(super) store: String,

    /// Pool whose work it takes
    #[arg(long, value_name = "NAME", default_value = "default")]
    pub(super) pool: String,

    /// Trials at a time; `auto` is one for each processor
    #[arg(long, value_name = "N|auto", default_value = "auto", value_parser = worker_value_parsers::slots)]
    pub(super) slots: worker_value_parsers::SlotCount,

    /// Processors that its trials may use together [default: no limit]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) cpus: Option<u32>,

    /// Memory that its trials may use together, such as `8g` [default: no limit]
    #[arg(long, value_name = "AMOUNT", value_parser = worker_value_parsers::memory)]
    pub(super) memory: Option<u64>,

    /// Variable of this process that trials may see; `PREFIX_*` for all that begin so
    #[arg(long, value_name = "NAME")]
    pub(super) trial_env: Vec<String>,

    /// Where trials run; every kind that works here by default
    #[arg(long, value_name = "KIND", value_parser = worker_value_parsers::provider)]
    pub(super) provider: Vec<ProviderKind>,

    /// Directory for what must outlive the worker; those of one host may share it
    /// [default: $XDG_STATE_HOME/rollout or ~/.local/state/rollout]
    #[arg(long, value_name = "DIR")]
    pub(super) dir: Option<PathBuf>,

    /// How long running trials may go on when it drains, before they are ended and run again elsewhere
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = value_parsers::duration)]
    pub(super) drain_timeout: Duration,

    /// How long it works on without its server, before it gives up
    #[arg(long, value_name = "TIME", default_value = "30m", value_parser = value_parsers::duration)]
    pub(super) max_offline: Duration,

    /// Log level
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    pub(super) log_level: LogLevel,
}

/// Everything that `rollout gc` removes: one of these has to be named.
#[cfg(feature = "docker")]
const WHAT: [&str; 3] = ["containers", "images", "store"];
#[cfg(not(feature = "docker"))]
const WHAT: [&str; 1] = ["store"];

/// Remove what dead runs left on this host, or a blob store that no run uses
///
/// Only what is provably nobody's: the owner's process is gone, or the host was started anew since.
/// Preserved environments and those of other users stay. Every run does the same when it starts.
///
/// Images of tasks are removed only by age or size, and never while a container is made of one or
/// within an hour of its last use. A run that needs one again builds it again.
///
/// A build without Docker removes blob stores only.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("what").required(true).multiple(true).args(WHAT))]
#[cfg_attr(feature = "docker", command(group = clap::ArgGroup::new("limits").multiple(true).args(["older_than", "max_size"])))]
pub(super) struct GcArgs {
    /// Remove containers
    #[cfg(feature = "docker")]
    #[arg(long)]
    pub(super) containers: bool,

    /// Remove images that were built for tasks, by `--older-than` or `--max-size`
    #[cfg(feature = "docker")]
    #[arg(long, requires = "limits")]
    pub(super) images: bool,

    /// Remove images that no run of this user on this host has used for so long
    #[cfg(feature = "docker")]
    #[arg(long, value_name = "TIME", requires = "images", value_parser = value_parsers::age)]
    pub(super) older_than: Option<Duration>,

    /// Remove the images used longest ago until all together have at most this size
    #[cfg(feature = "docker")]
    #[arg(long, value_name = "SIZE", requires = "images", value_parser = value_parsers::size)]
    pub(super) max_size: Option<u64>,

    /// Remove this blob store, if no run uses it: a directory, or `file:///directory`
    #[arg(long, value_name = "DIR")]
    #[cfg_attr(feature = "docker", arg(conflicts_with_all = ["containers", "images"]))]
    pub(super) store: Option<String>,

    /// Remove the store although directories of runs that used it are gone: they may have moved
    #[arg(long, requires = "store")]
    pub(super) force: bool,

    /// Print what would be removed, and remove nothing
    #[arg(long)]
    pub(super) dry_run: bool,

    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

/// What to measure.
#[derive(Debug, Subcommand)]
pub(super) enum BenchCommand {
    Dispatch(DispatchArgs),
}

/// Measure how fast trials go through queue, worker, journal and outputs, against what the disk can do
///
/// With `--nats` the queue is a server and the worker a process of its own, and the floor a bare
/// loop of the same messages and bytes over the same server. Whether the server syncs what it
/// acknowledges is its own setting (`sync_interval`), and decides both.
#[derive(Debug, Args)]
pub(super) struct DispatchArgs {
    /// Number of trials
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) items: u32,

    /// Trials at a time; several are measured one after the other
    #[arg(long, value_name = "W,…", value_delimiter = ',', default_value = "4,64,1024", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(super) window: Vec<u32>,

    /// Write the directory of every trial, too
    #[arg(long)]
    pub(super) materialize: bool,

    /// Over this server, which keeps nothing of it: nats://[user:password@]host[:port]
    #[cfg(feature = "nats")]
    #[arg(long, value_name = "URL", conflicts_with = "materialize")]
    pub(super) nats: Option<String>,

    /// Process of the server, to measure its processor time, too
    #[cfg(feature = "nats")]
    #[arg(long, value_name = "PID", requires = "nats")]
    pub(super) server_pid: Option<u32>,

    /// Measurements per window over a server, in turns with the floor; the median counts
    #[cfg(feature = "nats")]
    #[arg(long, value_name = "N", default_value_t = 3, requires = "nats", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) rounds: u32,

    /// Where to write; what is written is removed afterwards [default: the current directory]
    #[arg(long)]
    pub(super) dir: Option<PathBuf>,

    /// Print the figures as JSON, a line for each window
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
            Command::Worker(_)
            | Command::Cancel(_)
            | Command::Workers(_)
            | Command::Setup(_)
            | Command::Doctor(_) => false,
            Command::Check(_)
            | Command::Retry(_)
            | Command::Gc(_)
            | Command::Task(_)
            | Command::Export(_)
            | Command::Repair(_)
            | Command::Keys(_)
            | Command::Bench(_) => false,
        }
    }
}

/// Run settled trials of a run again, under the run's own options
///
/// Their former results are kept as superseded executions. Everything else of the run stays as it
/// is, and pending trials run, too. Needs the job file where it was.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("which").required(true))]
pub(super) struct RetryArgs {
    /// The run's directory
    #[arg(value_name = "RUN_DIR")]
    pub(super) run_dir: PathBuf,

    /// All trials that failed
    #[arg(long, group = "which")]
    pub(super) failed: bool,

    /// Trials that failed by the infrastructure's fault
    #[arg(long, group = "which")]
    pub(super) infra: bool,

    /// This trial, whatever it came to: `agent/dataset/task__attempt`, or its item; can be repeated
    #[arg(long, value_name = "KEY", group = "which")]
    pub(super) trial: Vec<String>,

    /// Options of `rollout run` beside those that the run was started with
    #[arg(last = true, value_name = "OPTION")]
    pub(super) options: Vec<String>,
}

impl RunArgs {
    /// How patiently the run is taken from an owner that may be dead.
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
