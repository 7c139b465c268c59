//! `rollout up`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use rollout_environment::image_access::ImageAccess;
use rollout_protocol::exit::ExitCode;
use rollout_protocol::spec::environment::ProviderKind;

use super::ca_bundle::CaBundleArgs;
use super::error::CliError;
use super::logging;
use super::logging::LogArgs;
use super::output::Printer;
use super::serve::{ServerSetup, default_directory, explain, processors};
use super::server_user::{ServerUser, ServerUsers};
use crate::config::{FetchNetwork, LogLevel};
use crate::daemon::{DaemonOptions, DocumentPolicy};
use crate::launch::host::OperatorOptions;

/// Name of the user.
const USER: &str = "user";

/// How long the deletion of a farm waits for its samples.
const REMOVAL_WAIT: Duration = Duration::from_secs(60);

/// How long the tasks of a run may take to be fetched and read.
const PREPARE_TIMEOUT: Duration = Duration::from_secs(60 * 60);

/// The end of the help, also of the short one.
const FOREGROUND: &str = "\
It stays in the foreground until Ctrl-C: use another shell for clients. `rollout up &`
starts it in the background, where `fg` and Ctrl-C, or a SIGTERM, end it.";

/// Start a server of this user on this host, with nothing else installed
///
/// It is `rollout serve` with one user, for farms and jobs of the own host: documents may name
/// directories below the current one, sandboxes of this host, settings of providers, every model
/// server and every git repository, which is fetched with the credentials of this user. `client.env`
/// in its directory has the address and the token: `. DIR/client.env` exports them for clients. The
/// token stays the same when the server is started again.
#[derive(Debug, Args)]
#[command(after_help = FOREGROUND)]
pub(super) struct UpArgs {
    /// Directory of records and runs [default: $XDG_STATE_HOME/rollout/up or
    /// ~/.local/state/rollout/up]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,

    /// Address to listen on; port 0 chooses a free port
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:4280")]
    listen: SocketAddr,

    /// Trials, samples of farms and evals of searches at a time [default: one per processor]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    slots: Option<u16>,

    /// Variable of this shell that documents may use, such as the key of a model server
    #[arg(long, value_name = "NAME")]
    variable: Vec<String>,

    /// Directory below which datasets of documents may be [default: the current directory]
    #[arg(long, value_name = "DIR")]
    allow_path: Vec<PathBuf>,

    #[command(flatten)]
    ca_bundle: CaBundleArgs,

    #[command(flatten)]
    log: LogArgs,

    /// Log level
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    log_level: LogLevel,
}

/// Runs the command.
pub(super) async fn run(args: UpArgs, printer: &Printer) -> Result<ExitCode, CliError> {
    logging::start(args.log_level, args.log, printer.screen(), printer.err);
    let directory = match args.dir {
        Some(directory) => directory,
        None => default_directory("up")?,
    };
    let users = ServerUsers::One(ServerUser::new(&directory, USER, args.variable));
    let paths = if args.allow_path.is_empty() { vec![PathBuf::from(".")] } else { args.allow_path };
    let daemon = DaemonOptions {
        directory,
        store: None,
        store_cache_mb: 0,
        max_running: 8,
        max_queued: 1000,
        max_farms: 1000,
        max_trials: None,
        disk_bytes: u64::MAX / 2,
        slots: args.slots.map_or_else(processors, usize::from),
        removal_wait: REMOVAL_WAIT,
        prepare_timeout: PREPARE_TIMEOUT,
        policy: DocumentPolicy {
            paths,
            registries: any_url(),
            model_servers: any_url(),
            providers: [ProviderKind::Process].into_iter().collect(),
            provider_settings: true,
            pools: std::collections::BTreeSet::new(),
            network: FetchNetwork::OwnUser,
            images: ImageAccess::Everything,
            uploads: None,
        },
        host: None,
        operator: OperatorOptions {
            ca_bundle: args.ca_bundle.of_process(false, printer),
            ..OperatorOptions::default()
        },
        #[cfg(feature = "nats")]
        nats: None,
        explain,
    };
    let setup = ServerSetup {
        daemon,
        tls: None,
        listen: args.listen,
        max_body: 64,
        max_dataset: 1024,
        max_connections: 1024,
        users,
    };
    setup.run(printer).await
}

/// Prefixes of every URL.
fn any_url() -> Vec<String> {
    vec!["http://".to_owned(), "https://".to_owned()]
}
