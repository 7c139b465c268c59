//! `rollout run --nats`: the trials run on workers elsewhere.

use std::path::PathBuf;
use std::sync::Arc;

use rollout_protocol::event::RunEvent;
use rollout_protocol::exit::ExitCode;
use rollout_protocol::wire::control::StopLevel;
use rollout_protocol::wire::offer::SizeClass;
use rollout_worker::environment::Owner;
use rollout_worker::host::HostOwners;
use rollout_worker::queue::nats::{BindError, Name, Nats};
use rollout_worker::queue::traits::{Board, Dispatch, WorkSource};
use rollout_worker::store::BlobStore;
use rollout_worker::supervise::{self, Task};
use tokio::sync::mpsc;

use super::patience::patiently;
use super::{NatsArgs, POOL};
use crate::cli::args::RunArgs;
use crate::cli::error::CliError;
use crate::cli::image_locks;
use crate::cli::run::sandbox_helper;
use crate::config::Job;
use crate::engine::core::Bounds;
use crate::engine::journal::Layout;
use crate::engine::{Patience, RunEntry, RunState};
use crate::launch::embedded::Sitting;
use crate::launch::host::{ALL_PROVIDERS, Home, HostPaths, adopt_dead, provider, reap};
use crate::launch::nats::ClusterJob;
use crate::plan::JobPlan;
use crate::workloads::job::Lanes;

/// A server that was connected to before anything else was done.
pub(in crate::cli) struct Elsewhere {
    nats: Nats,
    pool: Name,
}

/// What a coordinator needs of its server.
pub(in crate::cli) struct Ready {
    pub(in crate::cli) dispatch: Arc<dyn Dispatch>,
    pub(in crate::cli) board: Arc<dyn Board>,
    pub(in crate::cli) pool: String,
    _adopting: Task<()>,
}

impl Elsewhere {
    /// Connects, if the command line names a server.
    ///
    /// # Errors
    /// [`CliError`].
    pub(in crate::cli) async fn connect(
        nats: &NatsArgs,
        pool: Option<&str>,
    ) -> Result<Option<Self>, CliError> {
        let Some(url) = &nats.url else { return Ok(None) };
        let pool = pool.unwrap_or(POOL);
        let pool: Name = pool
            .parse()
            .map_err(|error| CliError::config(format!("the pool `{pool}` is no name"), &error))?;
        let options = nats.access.options(url)?;
        let nats = patiently(async || Ok(Nats::connect(options.clone()).await?)).await?;
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
        mut stops: mpsc::Receiver<StopLevel>,
    ) -> Result<Sitting, CliError> {
        let classes = Lanes::new(&plan).needs().iter().map(|needs| needs.class).collect();
        let own = job.jobs_dir.join(".rollout");
        let layout = Layout::new(job.run_dir());
        let ready = self.prepare(classes, &store, own, layout, &mut stops).await?;
        let job = ClusterJob {
            job,
            plan,
            store,
            dispatch: Arc::clone(&ready.dispatch),
            board: Arc::clone(&ready.board),
            pool: ready.pool.clone(),
            // Workers go on while their coordinator is stopped or hangs: another one may, too.
            patience: Patience { hung: true, ..args.patience() },
            bounds: Bounds {
                lease: args.nats.access.lease,
                unplaceable_timeout: args.unplaceable_timeout,
                ..Bounds::default()
            },
            events,
            stops,
            reopen: args.reopen.clone(),
        };
        Ok(job.run().await?)
    }

    /// Prepares the server for items of these size classes, and takes over what dead processes left
    /// on this host; `own` is for users without a home.
    ///
    /// # Errors
    /// [`CliError`].
    pub(in crate::cli) async fn prepare(
        self,
        mut classes: Vec<SizeClass>,
        store: &Arc<dyn BlobStore>,
        own: PathBuf,
        layout: Layout,
        stops: &mut mpsc::Receiver<StopLevel>,
    ) -> Result<Ready, CliError> {
        let Self { nats, pool } = self;
        classes.push(SizeClass::SOLO);
        classes.sort_unstable();
        classes.dedup();
        let board: Arc<dyn Board> = Arc::new(nats.board());
        let prepare = patiently(async || {
            let dispatch = nats.dispatch(&pool, &classes).await?;
            bind(&nats, &*board, &pool, store.identity()).await?;
            let source = nats.source(&pool, store.identity()).await?;
            Ok((Arc::new(dispatch), Arc::new(source)))
        });
        let (dispatch, source) = tokio::select! {
            prepared = prepare => prepared?,
            Some(_) = stops.recv() => {
                return Err(CliError::new(ExitCode::Cancelled, "nothing was begun"));
            }
        };
        let adopting = adopt(&nats, source, own, &layout, Arc::clone(store))?;
        Ok(Ready { dispatch, board, pool: pool.to_string(), _adopting: adopting })
    }
}

/// Takes over what dead processes left on this host, beside the run: workers of the deployment, and
/// a sitting of the run that had its worker in itself.
fn adopt(
    nats: &Nats,
    source: Arc<dyn WorkSource>,
    own: PathBuf,
    layout: &Layout,
    store: Arc<dyn BlobStore>,
) -> Result<Task<()>, CliError> {
    let variable = |name: &str| std::env::var_os(name);
    let home = Home::of_user(variable).unwrap_or_else(|| Home::at(own));
    let host = HostPaths {
        image_locks: image_locks::directory(variable, home.locks()),
        sandbox_helper: sandbox_helper()?,
    };
    let mut providers = Vec::new();
    for (kind, sandboxes) in ALL_PROVIDERS
        .iter()
        .flat_map(|kind| [(*kind, home.sandboxes()), (*kind, layout.sandboxes())])
    {
        providers.push(provider(kind, &host, sandboxes)?);
    }
    let namespace = nats.options().namespace.to_string();
    let bases = [layout.workers(), home.workers(&namespace, store.identity())];
    let owners = Arc::new(HostOwners::new(Owner::current(layout.root().to_owned())));
    Ok(supervise::spawn("adoption", async move {
        for base in bases.into_iter().filter(|base| base.is_dir()) {
            let (owners, store) = (Arc::clone(&owners), Arc::clone(&store));
            adopt_dead(base, owners, &providers, store, Arc::clone(&source)).await;
        }
        reap(&providers, &owners).await;
    }))
}

/// Binds the pool to the run's blob store; to another one than before only if no run of the pool
/// says that it goes on with that.
async fn bind(nats: &Nats, board: &dyn Board, pool: &Name, store: &str) -> Result<(), BindError> {
    match nats.bind_pool(pool, store, false).await {
        Err(BindError::Elsewhere { .. }) => {}
        bound => return bound,
    }
    let runs = board.all().await?;
    let entries = runs.iter().filter_map(|(_, entry)| RunEntry::parse(&entry.value));
    let in_use = entries
        .filter(|entry| entry.pool == pool.as_str() && entry.store != store)
        .any(|entry| entry.state == RunState::Running);
    nats.bind_pool(pool, store, !in_use).await
}
