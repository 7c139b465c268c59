//! `rollout serve`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use rollout_base::supervise;
use rollout_environment::egress::AllowedHosts;
use rollout_environment::image_access::ImageAccess;
use rollout_protocol::exit::ExitCode;
use rollout_protocol::limits::TRIALS_PER_RUN;
use rollout_protocol::spec::environment::ProviderKind;
use rollout_protocol::spec::task::HostRule;

use super::ca_bundle::CaBundleArgs;
use super::error::CliError;
use super::logging::LogArgs;
use super::output::Printer;
use super::server_user::{ServerUser, ServerUsers};
use super::{logging, store_url, value_parsers};
use crate::api::{ApiError, ApiOptions, ApiServer, TlsFiles, TokenFile};
use crate::config::{FetchNetwork, LogLevel, env_vars};
use crate::daemon::{Daemon, DaemonOptions, DocumentPolicy, RecordError, RunFailure, RunFault};
use crate::launch::host::{OperatorOptions, StateDir};
use crate::launch::signals;
use crate::providers;

/// Name of the user of a server without a file of users.
const USER: &str = "local";

/// Disk for uploads and exports unless an option says otherwise.
const USER_DISK: &str = "64g";

/// Trials of a run unless an option says otherwise: each takes up to a kilobyte of memory while the
/// run is open.
const MAX_TRIALS: u64 = 100_000;

/// Beginning of errors before the server runs.
pub(super) const CANNOT_START: &str = "cannot start the server";

/// Run jobs that are submitted over HTTP, many in one process, until a signal ends it
///
/// Every run has a directory below `--dir`, without directories of its trials: clients read their
/// files over HTTP. A daemon that is started again, also after `kill -9`, continues every run that
/// has not ended. The first SIGTERM or Ctrl-C lets running trials finish their phase; the second
/// ends them at once.
///
/// Without `--tokens` it has one user, an administrator, whose token it makes: `client.env` in its
/// directory has the address and the token, and `. DIR/client.env` exports them for clients. The token
/// stays the same when the server is started again. Documents may name no path of this host, no
/// process sandbox, no setting of a provider and no registry, unless an option lists it. Git
/// repositories are fetched without credentials and from public addresses only, and images come from
/// public registries only, unless an option lists the host.
#[derive(Debug, Args)]
pub(super) struct ServeArgs {
    /// Directory of records and runs [default: $XDG_STATE_HOME/rollout/serve or
    /// ~/.local/state/rollout/serve]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,

    /// Address to listen on; port 0 chooses a free port
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:4280")]
    listen: SocketAddr,

    /// File of users: names, roles and the SHA-256 of their bearer tokens; read again when it changes
    #[arg(long, value_name = "FILE")]
    tokens: Option<PathBuf>,

    /// Variable of the server that documents of its one user may use
    #[arg(long, value_name = "NAME", conflicts_with = "tokens")]
    variable: Vec<String>,

    /// Certificate for HTTPS, in PEM, with its chain; read again when it changes
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,

    /// Key of the certificate, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,

    /// Runs at a time; others wait. Those of the user with the fewest start first, and no user has all
    #[arg(long, value_name = "N", default_value_t = 8)]
    max_running: u16,

    /// Runs that wait, are paused or failed; submissions beyond it, or a user's part, are refused with 429
    #[arg(long, value_name = "N", default_value_t = 1000)]
    max_queued: u16,

    /// Farms that have not ended; further ones, and those beyond a user's part, are refused with 429.
    /// They do not count as runs
    #[arg(long, value_name = "N", default_value_t = 64)]
    max_farms: u16,

    /// Trials of a run: agents x tasks x attempts. A job with more is refused with 422, or fails when
    /// its tasks are known
    #[arg(long, value_name = "N", default_value_t = MAX_TRIALS, value_parser = clap::value_parser!(u64).range(1..=TRIALS_PER_RUN))]
    max_trials: u64,

    /// Disk for uploaded datasets and for exports until they are sent; no user has all of it
    #[arg(long, value_name = "SIZE", default_value = USER_DISK, value_parser = value_parsers::size)]
    user_disk: u64,

    /// Trials, samples of farms and evals of searches at a time; free slots go to the user who holds
    /// the fewest, then by priority [default: one per processor]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    slots: Option<u16>,

    #[command(flatten)]
    ca_bundle: CaBundleArgs,

    /// How long a request to delete a farm waits for the end of its samples. Those in this process are
    /// killed then, those on workers end later
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = value_parsers::duration)]
    removal_wait: Duration,

    /// How long the tasks of a run may take to be fetched and read. The run fails then, and can be
    /// continued
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = value_parsers::duration)]
    prepare_timeout: Duration,

    /// Blob store of all runs: a directory, or `s3://bucket/prefix?endpoint=URL` [default:
    /// <DIR>/jobs/.rollout/blobs]
    #[arg(long, value_name = "STORE", env = env_vars::STORE.name)]
    store: Option<String>,

    /// Size of the local cache of what is read from a store in S3; 0 for none
    #[arg(long, value_name = "SIZE", default_value = value_parsers::STORE_CACHE, value_parser = value_parsers::size)]
    store_cache: u64,

    /// Largest body of a request, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=1024))]
    max_body: u16,

    /// Largest archive of a dataset that is uploaded, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..))]
    max_dataset: u32,

    /// Connections at a time; when all are taken, a new one replaces the oldest idle one
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u16).range(1..))]
    max_connections: u16,

    /// Directory of this host below which datasets of documents may be
    #[arg(long, value_name = "DIR", help_heading = "Rules for documents")]
    allow_path: Vec<PathBuf>,

    /// Registry that documents may name: its URL, or the beginning of it
    #[arg(long, value_name = "URL", help_heading = "Rules for documents")]
    allow_registry: Vec<String>,

    /// Model server that gateways of documents may call: its URL, or the beginning of it
    #[arg(long, value_name = "URL", help_heading = "Rules for documents")]
    allow_model_server: Vec<String>,

    /// Host whose git repositories are fetched with the credentials of this user, also over ssh and also
    /// if its address is not public: a name, `*.` and a name, an address or a network, with `:port` for
    /// one port
    #[arg(long, value_name = "HOST", help_heading = "Rules for documents")]
    allow_git_host: Vec<HostRule>,

    /// Image registry that tasks may use though its address is not public: a name, `*.` and a name, an
    /// address or a network, with `:port` for one port. Frontends of builds may be of listed registries
    #[arg(long, value_name = "HOST", help_heading = "Rules for documents")]
    allow_image_registry: Vec<HostRule>,

    /// Provider that documents may name beside `docker` and `kubernetes`: `process`
    #[arg(long, value_name = "KIND", help_heading = "Rules for documents", value_parser = provider)]
    allow_provider: Vec<ProviderKind>,

    /// Let documents have settings of providers (`environment.provider_config`), and environments
    /// that are kept (`environment.preserve_env`)
    #[arg(long, help_heading = "Rules for documents")]
    allow_provider_settings: bool,

    /// Pool of workers that documents may name beside `default`
    #[arg(long, value_name = "NAME", help_heading = "Rules for documents")]
    allow_pool: Vec<String>,

    #[cfg(feature = "nats")]
    #[command(flatten)]
    nats: super::nats::NatsArgs,

    #[command(flatten)]
    log: LogArgs,

    /// Log level
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    log_level: LogLevel,
}

/// A kind of environment that this program was built with.
fn provider(text: &str) -> Result<ProviderKind, String> {
    let names = || providers::names().collect::<Vec<_>>();
    providers::kind_by_name(text).ok_or_else(|| format!("expected one of {}", names().join(", ")))
}

/// Number of processors.
pub(super) fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// Everything that a server needs to start.
pub(super) struct ServerSetup {
    /// The daemon behind the API.
    pub(super) daemon: DaemonOptions,
    /// Certificate and key.
    pub(super) tls: Option<(PathBuf, PathBuf)>,
    /// Address to listen on.
    pub(super) listen: SocketAddr,
    /// Largest body of a request, in MiB.
    pub(super) max_body: u16,
    /// Largest archive of a dataset, in MiB.
    pub(super) max_dataset: u32,
    /// Connections at a time.
    pub(super) max_connections: u16,
    /// Who may use it.
    pub(super) users: ServerUsers,
}

impl ServerSetup {
    /// Runs the server until it is stopped, and prints its URL when it listens.
    pub(super) async fn run(self, printer: &Printer) -> Result<ExitCode, CliError> {
        // Runs without a name have that of the local time.
        printer.warn_of_unknown_zone();
        let Self { daemon, tls, listen, max_body, max_dataset, max_connections, users } = self;
        let file_of = users.clone();
        let opened = supervise::blocking(move || {
            // It locks the directory: a second server changes no file of the first one.
            let daemon = Daemon::open(daemon)?;
            let tokens = TokenFile::open(&file_of.prepare()?);
            let tokens = tokens.map_err(|error| CliError::config(CANNOT_START, &error))?;
            let tls = tls.map(|(certificate, key)| TlsFiles::open(&certificate, &key));
            let tls = tls.transpose().map_err(|error| CliError::config(CANNOT_START, &error))?;
            Ok::<_, CliError>((daemon, tokens, tls))
        });
        let (daemon, tokens, tls) = opened.await?;
        let scheme = if tls.is_some() { "https" } else { "http" };
        let options = ApiOptions {
            address: listen,
            tokens,
            tls,
            max_body_bytes: usize::from(max_body) * 1024 * 1024,
            max_dataset_bytes: u64::from(max_dataset) * 1024 * 1024,
            max_connections: usize::from(max_connections),
        };
        let (stops, _listening) = signals::listen()
            .map_err(|error| CliError::failure("cannot listen for signals", &error))?;
        let server = ApiServer::start(options, std::sync::Arc::clone(&daemon))?;
        let url = format!("{scheme}://{}", server.address());
        let announcement = supervise::blocking(move || users.announcement(&url)).await?;
        printer.data(&announcement)?;
        if printer.prints_to_terminal() {
            printer.hint("the server runs until Ctrl-C; use another shell for clients");
        }
        daemon.run(stops).await;
        drop(server);
        leave()
    }
}

/// Ends the process of a server whose sessions have ended. Reading of documents and datasets that goes
/// on would keep it: it cannot be cut short, and nothing waits for its result.
#[expect(clippy::exit, reason = "the end of the runtime waits for work that blocks")]
fn leave() -> ! {
    std::process::exit(ExitCode::Success.code().into())
}

/// Runs the command.
pub(super) async fn run(args: ServeArgs, printer: &Printer) -> Result<ExitCode, CliError> {
    logging::start(args.log_level, args.log, printer.screen(), printer.err);
    let directory = match args.dir {
        Some(directory) => directory,
        None => default_directory("serve")?,
    };
    let users = match args.tokens {
        Some(file) => ServerUsers::File(file),
        None => ServerUsers::One(ServerUser::new(&directory, USER, args.variable)),
    };
    #[cfg(feature = "nats")]
    let nats = args.nats.url.as_ref().map(|url| args.nats.access.options(url)).transpose()?;
    #[cfg(feature = "nats")]
    if let Some(nats) = &nats {
        super::nats::check_tls(nats).await?;
    }
    #[cfg(feature = "nats")]
    let has_remote_workers = nats.is_some();
    #[cfg(not(feature = "nats"))]
    let has_remote_workers = false;
    let daemon = DaemonOptions {
        directory,
        store: store_url::parse_optional(args.store.as_deref())?,
        store_cache_mb: args.store_cache,
        max_running: usize::from(args.max_running),
        max_queued: usize::from(args.max_queued),
        max_farms: usize::from(args.max_farms),
        max_trials: Some(args.max_trials),
        disk_bytes: args.user_disk.saturating_mul(1024 * 1024),
        slots: args.slots.map_or_else(processors, usize::from),
        removal_wait: args.removal_wait,
        prepare_timeout: args.prepare_timeout,
        policy: DocumentPolicy {
            paths: args.allow_path,
            registries: args.allow_registry,
            model_servers: args.allow_model_server,
            providers: args.allow_provider.into_iter().collect(),
            provider_settings: args.allow_provider_settings,
            pools: args.allow_pool.into_iter().collect(),
            network: FetchNetwork::Guarded(AllowedHosts::public(args.allow_git_host)),
            images: ImageAccess::Guarded(AllowedHosts::public(args.allow_image_registry)),
            uploads: None,
        },
        host: None,
        operator: OperatorOptions {
            ca_bundle: args.ca_bundle.of_process(has_remote_workers, printer),
            ..OperatorOptions::default()
        },
        #[cfg(feature = "nats")]
        nats,
        explain,
    };
    let setup = ServerSetup {
        daemon,
        tls: args.tls_cert.zip(args.tls_key),
        listen: args.listen,
        max_body: args.max_body,
        max_dataset: args.max_dataset,
        max_connections: args.max_connections,
        users,
    };
    setup.run(printer).await
}

/// The directory of the server of a command, in the user's state directory.
pub(super) fn default_directory(command: &str) -> Result<PathBuf, CliError> {
    let state = StateDir::for_user(|name| std::env::var_os(name));
    state.map(|state| state.root().join(command)).ok_or_else(|| {
        CliError::usage("cannot choose a state directory: this user has no home directory")
            .hint("name one with `--dir`")
    })
}

/// Puts the faults of runs into words.
pub(super) fn explain(fault: RunFault) -> RunFailure {
    let error = match fault {
        RunFault::Config(errors) => errors.into(),
        RunFault::Launch(error) => (*error).into(),
        RunFault::View(error) => error.into(),
        RunFault::Captured(error) => super::logs::failed(&error),
        RunFault::Export(error) => error.into(),
    };
    // A user of the server has no command line of the run.
    let CliError { code, message, details, mut hints, command_hints } = error;
    hints.extend(command_hints.iter().filter_map(|hint| hint.first().map(str::to_owned)));
    RunFailure { code: code.code(), message, details, hints, is_temporary: false }
}

impl From<RecordError> for CliError {
    fn from(error: RecordError) -> Self {
        match &error {
            RecordError::InUse { .. } => Self::from_cause(ExitCode::LockHeld, CANNOT_START, &error)
                .hint("stop the other daemon, or name another directory with `--dir`"),
            RecordError::Damaged { .. } | RecordError::Newer { .. } => {
                Self::from_cause(ExitCode::RunDamaged, CANNOT_START, &error)
            }
            RecordError::File { .. } => Self::failure(CANNOT_START, &error),
        }
    }
}

impl From<ApiError> for CliError {
    fn from(error: ApiError) -> Self {
        Self::from_cause(ExitCode::Config, CANNOT_START, &error)
            .hint("choose an address of this host and a free port with `--listen`")
    }
}
