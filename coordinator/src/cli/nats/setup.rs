//! `rollout setup`.

use clap::Args;
use rollout_protocol::exit::ExitCode;
use rollout_protocol::wire::offer::SizeClass;
use rollout_worker::queue::nats::NatsName;
use rollout_worker::store;

use super::{POOL, RequiredNatsArgs};
use crate::cli::error::CliError;
use crate::cli::output::Printer;
use crate::cli::store_url;

/// Create what is missing on a NATS server: streams, buckets, a pool's consumers
///
/// Every run does the same for what it needs. Existing objects are compared with the required
/// settings; a difference is an error. Only the stream of reports of an earlier version is changed:
/// it gets the subjects that it lacks.
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
    #[arg(long)]
    store: Option<String>,

    /// Bind the pool even if it is bound to another store; make sure first that no run of the pool
    /// is active
    #[arg(long, requires = "store")]
    rebind: bool,
}

/// Runs the command.
pub(in crate::cli) async fn setup(
    args: &SetupArgs,
    printer: &Printer,
) -> Result<ExitCode, CliError> {
    let nats = args.nats.connect().await?;
    nats.prepare(&args.pool, &[SizeClass::default(), SizeClass::SOLO]).await?;
    let mut text = format!("pool {} is set up on {}\n", args.pool, nats.options().address());
    if let Some(store) = &args.store {
        let store = store::open(&store_url::parse(store)?).await?;
        nats.bind_pool(&args.pool, store.identity(), args.rebind).await?;
        text.push_str(&format!("it uses the blob store {}\n", store.identity()));
    }
    printer.data(&text)?;
    Ok(ExitCode::Success)
}
