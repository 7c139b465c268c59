//! `rollout worker`.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rollout_base::backoff::OutageLog;
use rollout_base::secrets::TrialVariables;
use rollout_base::shown_path;
use rollout_protocol::exit::ExitCode;
use rollout_protocol::spec::environment::ProviderKind;
use rollout_protocol::wire::heartbeat::ResourceBudget;
use rollout_queue::nats::{ConnectError, Nats, NatsName, NatsOptions, NatsSource};
use rollout_queue::traits::QueueError;
use rollout_store::{BlobStore, StoreError, StoreUrl};
use rollout_worker::service::WorkerExitReason;
use tokio::time::Instant;

use super::args::WorkerArgs;
use super::error::CliError;
use super::listen::worker::MonitoredWorker;
use super::nats::NOT_SET_UP_HINT;
use super::output::Printer;
use super::{logging, store_url};
use crate::launch::LaunchError;
use crate::launch::host::{
    HostPaths, OperatorOptions, RunnerDecorator, StateDir, WorkerProcess, environment,
};
use crate::launch::signals;
use crate::launch::store::{StoreCache, open_cached};
use crate::traces::{TraceExport, TracedProcess};

/// Prefix of the worker's own variables, which trials never see.
const OWN_VARIABLE_PREFIX: &str = "ROLLOUT_NATS_";

/// Time between two attempts to connect.
const RECONNECT_INTERVAL: Duration = Duration::from_secs(2);

/// Runs the command.
pub(super) async fn run(
    args: WorkerArgs,
    decorate: RunnerDecorator,
    printer: &Printer,
) -> Result<ExitCode, CliError> {
    let screen = printer.screen();
    logging::start_on_thread(args.log_level, args.log, screen, printer.err);
    let monitored = MonitoredWorker::default();
    let traces = TraceExport::start(TracedProcess::Worker);
    let _monitoring = args.listen.for_worker(&monitored, &traces).await?;
    let options = args.nats.options()?;
    let pool: NatsName = args
        .pool
        .parse()
        .map_err(|error| CliError::from_cause(ExitCode::Usage, "`--pool`", &error))?;
    let worker_state = state_dir(args.dir.clone())?;
    // Users of servers see the errors of trials.
    shown_path::hide(worker_state.root(), "<worker>");
    let (mut stops, _listening) = signals::listen()
        .map_err(|error| CliError::failure("cannot listen for signals", &error))?;
    let url = store_url::parse(&args.store)?;
    if let StoreUrl::Directory(store) = &url {
        shown_path::hide(store, "<store>");
    }
    let cache = StoreCache { directory: worker_state.blob_cache(), max_mb: args.store_cache };
    let store = tokio::select! {
        store = open_store(&url, &cache, args.max_offline) => store?,
        // Nothing was started.
        _ = stops.recv() => return Ok(ExitCode::Success),
    };
    let namespace = options.namespace.clone();
    let lease = options.lease;
    let connecting = connect(options, &pool, store.identity(), args.max_offline);
    let source = tokio::select! {
        source = connecting => source?,
        // Nothing was started.
        _ = stops.recv() => return Ok(ExitCode::Success),
    };
    let process = WorkerProcess {
        source: Arc::new(source),
        workers: worker_state.workers(namespace.as_str(), store.identity(), pool.as_str()),
        store,
        host: host_paths(&worker_state, &args, printer)?,
        sandboxes: worker_state.sandboxes(),
        pool: pool.to_string(),
        slots: args.slots.count(),
        budget: ResourceBudget { cpus: args.cpus, memory_mb: args.memory },
        providers: providers(&args.provider),
        variables: variables(&args.trial_env),
        lease,
        drain_timeout: args.drain_timeout,
        max_offline: args.max_offline,
        stops,
        decorate,
        metrics: monitored.metrics,
        monitor: monitored.monitor,
        tracer: traces.tracer(),
    };
    let ended = process.run().await?;
    Ok(match ended.reason {
        WorkerExitReason::Offline => ExitCode::OutOfReach,
        WorkerExitReason::Killed => ExitCode::Cancelled,
        WorkerExitReason::Asked if ended.unreported > 0 => ExitCode::OutOfReach,
        WorkerExitReason::Asked => ExitCode::Success,
    })
}

fn host_paths(
    state: &StateDir,
    args: &WorkerArgs,
    printer: &Printer,
) -> Result<HostPaths, CliError> {
    let host = HostPaths::for_process(state.root()).map_err(LaunchError::Program)?;
    Ok(host.with_operator(OperatorOptions {
        #[cfg(feature = "kubernetes")]
        kubernetes_config: args.kubernetes_config.clone(),
        #[cfg(not(feature = "kubernetes"))]
        kubernetes_config: None,
        ca_bundle: args.ca_bundle.of_process(false, printer),
    }))
}

/// The directory of the worker's files.
fn state_dir(chosen: Option<PathBuf>) -> Result<StateDir, CliError> {
    let of_user = || StateDir::for_user(|name| std::env::var_os(name));
    chosen.map(StateDir::new).or_else(of_user).ok_or_else(|| {
        CliError::usage(
            "cannot choose a directory for the worker's files: no home directory; use `--dir`",
        )
    })
}

fn providers(chosen: &[ProviderKind]) -> BTreeSet<ProviderKind> {
    if chosen.is_empty() {
        return crate::providers::built().map(|provider| provider.kind).collect();
    }
    chosen.iter().copied().collect()
}

/// The variables that the operator exports to trials, never the worker's own secrets.
fn variables(patterns: &[String]) -> TrialVariables {
    let visible =
        environment().into_iter().filter(|(name, _)| !name.starts_with(OWN_VARIABLE_PREFIX));
    TrialVariables::select(patterns.iter().map(String::as_str), visible)
}

/// Opens the store; retries for up to `max_offline` while its service does not answer.
async fn open_store(
    url: &StoreUrl,
    cache: &StoreCache,
    max_offline: Duration,
) -> Result<Arc<dyn BlobStore>, CliError> {
    let (outage, started) = (OutageLog::new("the blob store"), Instant::now());
    let mut backoff = outage.backoff();
    loop {
        match open_cached(url, cache).await {
            Ok(store) => {
                backoff.succeeded();
                return Ok(store);
            }
            Err(error @ StoreError::Unanswered { .. }) if started.elapsed() < max_offline => {
                backoff.wait_after_failure(&error).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Error of connecting to the source of work.
enum SourceError {
    /// Temporary.
    Unreachable(CliError),
    /// Permanent.
    Refused(CliError),
}

/// Connects; retries for up to `patience` while the server is unreachable.
async fn connect(
    options: NatsOptions,
    pool: &NatsName,
    store: &str,
    max_offline: Duration,
) -> Result<NatsSource, CliError> {
    let (address, started) = (options.address(), Instant::now());
    let mut warned = false;
    loop {
        let mut error = match attempt(&options, pool, store).await {
            Ok(source) => {
                tracing::info!("connected to {address}");
                return Ok(source);
            }
            Err(SourceError::Refused(error)) => return Err(error),
            Err(SourceError::Unreachable(error)) => error,
        };
        if started.elapsed() >= max_offline {
            error.message.push_str(&format!(" (tried for {max_offline:?})"));
            return Err(error);
        }
        if !warned {
            tracing::warn!("{}; retrying for {max_offline:?}", error.message);
            warned = true;
        }
        tokio::time::sleep(RECONNECT_INTERVAL).await;
    }
}

async fn attempt(
    options: &NatsOptions,
    pool: &NatsName,
    store: &str,
) -> Result<NatsSource, SourceError> {
    let nats = match Nats::connect(options.clone()).await {
        Ok(nats) => nats,
        Err(error @ ConnectError::Unreachable { .. }) => {
            return Err(SourceError::Unreachable(error.into()));
        }
        Err(error) => return Err(SourceError::Refused(error.into())),
    };
    match nats.pool_binding(pool).await {
        Ok(Some(bound)) if bound.store != store => {
            return Err(SourceError::Refused(other_store(pool, store, &bound.store)));
        }
        // The pool may be set up later, so pulls check binding and lease as well.
        Ok(_) => {}
        Err(error) => tracing::debug!("cannot read the binding of the pool: {error}"),
    }
    match nats.other_lease(pool).await {
        Ok(Some(found)) => {
            return Err(SourceError::Refused(other_lease(pool, options.lease, found)));
        }
        Ok(None) => {}
        Err(error) => tracing::debug!("cannot read the lease of the pool: {error}"),
    }
    if matches!(nats.is_set_up().await, Ok(false)) {
        tracing::warn!("{NOT_SET_UP_HINT}");
    }
    nats.source(pool, store).await.map_err(|error| match error {
        error @ QueueError::Unreachable { .. } => SourceError::Unreachable(error.into()),
        error => SourceError::Refused(CliError::failure("cannot take work", &error)),
    })
}

/// The error of a worker whose blob store is not that of the pool.
fn other_store(pool: &NatsName, store: &str, found: &str) -> CliError {
    let message = format!(
        "cannot take work: pool `{pool}` uses the blob store {found}, this worker uses {store} and \
         could not read what trials need"
    );
    CliError::new(ExitCode::OtherStore, message)
        .hint("use `--store` with the blob store of the pool's runs, or another `--pool`")
}

/// The error of a worker whose lease is not that of the pool's consumers.
fn other_lease(pool: &NatsName, lease: Duration, found: Duration) -> CliError {
    CliError::refused(format!(
        "cannot take work: the consumers of pool `{pool}` have the lease {found:?}, this worker \
         has {lease:?}"
    ))
    .hint("start all processes of a namespace with the same `--lease`")
}
