//! `rollout setup`.

use std::time::Duration;

use clap::Args;
use rollout_protocol::exit::ExitCode;
use rollout_protocol::wire::offer::SizeClass;
use rollout_queue::nats::{ConnectError, Nats, NatsName, PoolElasticity};
use tokio::time::Instant;

use super::{POOL, RequiredNatsArgs};
use crate::cli::error::CliError;
use crate::cli::output::Printer;
use crate::cli::{store_url, value_parsers};
use crate::config::env_vars;

/// Pause between two attempts to connect.
const CONNECT_PAUSE: Duration = Duration::from_secs(1);

/// Create what is missing on a NATS server: streams, buckets, a pool's consumers
///
/// Every run does the same for what it needs. Existing objects are compared with the required
/// settings; a difference is an error. Only these are changed: the stream of reports of an earlier
/// version gets the subjects that it lacks, and `--nats-replicas` sets the number of copies, also while
/// runs use the streams.
#[derive(Debug, Args)]
pub(in crate::cli) struct SetupArgs {
    #[command(flatten)]
    nats: RequiredNatsArgs,

    /// Pool of workers
    #[arg(long, value_name = "NAME", default_value = POOL)]
    pool: NatsName,

    /// Bind the pool to this blob store, which its runs and workers use
    ///
    /// A run binds its pool as well. It replaces a binding to another store only if no running run
    /// of the pool uses that store.
    #[arg(long, env = env_vars::STORE.name)]
    store: Option<String>,

    /// Bind the pool even if it is bound to another store; make sure first that no run of the pool
    /// is active
    #[arg(long, requires = "store")]
    rebind: bool,

    /// Whether workers of any size and provider may still be started for the pool, by an
    /// autoscaler: `yes`, `no`, or the longest wait for one
    ///
    /// In an elastic pool, trials that no present worker could run wait instead of failing. Sessions
    /// of runs that begin later observe it, unless they have `--unplaceable-timeout`. Without this
    /// option the pool stays as it is; a new one is not elastic.
    #[arg(long, value_name = "yes|no|TIME", value_parser = elasticity)]
    elastic: Option<PoolElasticity>,

    /// How long to wait for a server that cannot be reached yet [default: not at all]
    #[arg(long, value_name = "TIME", value_parser = value_parsers::duration)]
    wait: Option<Duration>,
}

fn elasticity(text: &str) -> Result<PoolElasticity, String> {
    match text {
        "yes" => Ok(PoolElasticity::Elastic(None)),
        "no" => Ok(PoolElasticity::Fixed),
        time => match value_parsers::duration(time) {
            Ok(longest) if longest.subsec_nanos() > 0 || longest.is_zero() => {
                Err("expected whole seconds, or `no` for a pool that is not elastic".to_owned())
            }
            Ok(longest) => Ok(PoolElasticity::Elastic(Some(longest))),
            Err(error) => Err(format!("{error}, or `yes` or `no`")),
        },
    }
}

/// Connects, and waits for a server that starts.
async fn connect(args: &SetupArgs) -> Result<Nats, CliError> {
    let options = args.nats.options()?;
    let deadline = Instant::now() + args.wait.unwrap_or_default();
    loop {
        match Nats::connect(options.clone()).await {
            Err(ConnectError::Unreachable { .. } | ConnectError::NoJetStream { .. })
                if Instant::now() < deadline =>
            {
                tokio::time::sleep(CONNECT_PAUSE).await;
            }
            connected => return Ok(connected?),
        }
    }
}

/// Runs the command.
pub(in crate::cli) async fn setup(
    args: &SetupArgs,
    printer: &Printer,
) -> Result<ExitCode, CliError> {
    let nats = connect(args).await?;
    nats.prepare(&args.pool, &[SizeClass::default(), SizeClass::SOLO]).await?;
    let mut text = format!("pool {} is set up on {}\n", args.pool, nats.options().address());
    if let Some(copies) = nats.options().replicas {
        let changed = nats.change_replicas(copies).await?;
        text.push_str(&format!("copies: {copies}"));
        match changed.as_slice() {
            [] => text.push('\n'),
            changed => text.push_str(&format!("; changed: {}\n", changed.join(", "))),
        }
    }
    if let Some(store) = &args.store {
        let store = rollout_store::open(&store_url::parse(store)?).await?;
        nats.bind_pool(&args.pool, store.identity(), args.rebind).await?;
        text.push_str(&format!("it uses the blob store {}\n", store.identity()));
    }
    if let Some(elasticity) = args.elastic {
        nats.declare_elasticity(&args.pool, elasticity).await?;
        text.push_str(&match elasticity {
            PoolElasticity::Fixed => "it is not elastic\n".to_owned(),
            PoolElasticity::Elastic(None) => "it is elastic\n".to_owned(),
            PoolElasticity::Elastic(Some(longest)) => {
                format!("it is elastic: trials wait {} s for a worker\n", longest.as_secs())
            }
        });
    }
    printer.data(&text)?;
    Ok(ExitCode::Success)
}
