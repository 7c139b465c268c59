//! `rollout run --nats`: the trials run on workers elsewhere.

use std::sync::Arc;

use rollout_protocol::event::RunEvent;
use rollout_protocol::wire::control::StopLevel;
use rollout_protocol::wire::offer::SizeClass;
use rollout_worker::port::{Board, Dispatch};
use rollout_worker::queue::nats::{BindError, Name, Nats};
use rollout_worker::store::BlobStore;
use tokio::sync::mpsc;

use super::POOL;
use crate::cli::args::RunArgs;
use crate::cli::error::CliError;
use crate::config::Job;
use crate::core::Bounds;
use crate::plan::{JobPlan, Lanes};
use crate::run::cluster::ClusterJob;
use crate::run::embedded::Sitting;
use crate::run::{Patience, RunEntry, RunState};

/// A server that was connected to before anything else was done.
pub(in crate::cli) struct Elsewhere {
    nats: Nats,
    pool: Name,
}

impl Elsewhere {
    /// Connects, if the command line names a server.
    ///
    /// # Errors
    /// [`CliError`].
    pub(in crate::cli) async fn connect(
        args: &RunArgs,
        job: &Job,
    ) -> Result<Option<Self>, CliError> {
        let Some(url) = &args.nats.url else { return Ok(None) };
        let pool = job.pool.as_deref().unwrap_or(POOL);
        let pool: Name = pool.parse().map_err(|error| {
            CliError::config(format!("the job's pool `{pool}` is no name"), &error)
        })?;
        let nats = args.nats.access.connect(url).await?;
        Ok(Some(Self { nats, pool }))
    }

    /// Runs a sitting of the job to its end.
    ///
    /// # Errors
    /// [`CliError`].
    pub(in crate::cli) async fn run(
        self,
        args: &RunArgs,
        job: Job,
        plan: JobPlan,
        store: Arc<dyn BlobStore>,
        events: mpsc::Sender<Vec<RunEvent>>,
        stops: mpsc::Receiver<StopLevel>,
    ) -> Result<Sitting, CliError> {
        let Self { nats, pool } = self;
        let mut classes: Vec<SizeClass> =
            Lanes::new(&plan).needs().iter().map(|needs| needs.class).collect();
        classes.push(SizeClass::SOLO);
        classes.sort_unstable();
        classes.dedup();
        let dispatch: Arc<dyn Dispatch> = Arc::new(nats.dispatch(&pool, &classes).await?);
        let board: Arc<dyn Board> = Arc::new(nats.board());
        bind(&nats, &*board, &pool, store.identity()).await?;
        let bounds = Bounds {
            lease: args.nats.access.lease,
            unplaceable_timeout: args.unplaceable_timeout,
            ..Bounds::default()
        };
        let job = ClusterJob {
            job,
            plan,
            store,
            dispatch,
            board,
            pool: pool.to_string(),
            // Workers go on while their coordinator is stopped or hangs: another one may, too.
            patience: Patience { hung: true, ..args.patience() },
            bounds,
            events,
            stops,
        };
        Ok(job.run().await?)
    }
}

/// Binds the pool to the run's blob store; to another one than before only if no run of the pool
/// says that it goes on with that.
pub(super) async fn bind(
    nats: &Nats,
    board: &dyn Board,
    pool: &Name,
    store: &str,
) -> Result<(), CliError> {
    match nats.bind_pool(pool, store, false).await {
        Ok(()) => return Ok(()),
        Err(BindError::Elsewhere { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    let runs = board.all().await?;
    let entries = runs.iter().filter_map(|(_, entry)| RunEntry::parse(&entry.value));
    let in_use = entries
        .filter(|entry| entry.pool == pool.as_str() && entry.store != store)
        .any(|entry| entry.state == RunState::Running);
    Ok(nats.bind_pool(pool, store, !in_use).await?)
}
