//! NATS server that connects a run with workers of other processes.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rollout_base::supervise::{self, Task};
use rollout_engine::RunEntry;
use rollout_engine::core::RemoteTimeouts;
use rollout_engine::journal::RunLayout;
use rollout_environment::Owner;
use rollout_protocol::limits;
use rollout_protocol::wire::control::StopLevel;
use rollout_protocol::wire::offer::SizeClass;
use rollout_queue::nats::{BindError, Nats, NatsName, NatsOptions, PoolElasticity};
use rollout_queue::traits::{Dispatch, KvStore, RunControl, WorkSource};
use rollout_store::BlobStore;
use rollout_store::host::HostOwners;
use tokio::sync::mpsc;

use super::RemoteJob;
use super::retry::retry;
use super::sweep::{QueueSweep, sweep_ended};
use crate::launch::LaunchError;
use crate::launch::embedded::FinishedSession;
use crate::launch::host::{HostPaths, StateDir, answering, provider, reap, recover_dead_workers};
use crate::launch::session::JobSession;
use crate::providers;
use crate::workloads::job::JobLanes;

/// A server and a pool of its workers.
#[derive(Debug)]
pub struct RemoteOptions {
    /// Connection options.
    pub options: NatsOptions,
    /// The pool.
    pub pool: NatsName,
    /// How long items that no worker can run wait before they fail; by default as the pool says.
    pub unplaceable_timeout: Option<Duration>,
    /// Whether the first stop lets trials on workers continue for the next session.
    pub hand_over: bool,
}

impl RemoteOptions {
    /// Sets whether the first stop lets trials on workers continue.
    #[must_use]
    pub fn handing_over(self, hand_over: bool) -> Self {
        Self { hand_over, ..self }
    }
}

/// A connected server; connecting precedes everything else.
pub struct ConnectedServer {
    nats: Nats,
    pool: NatsName,
    lease: Duration,
    unplaceable_timeout: Option<Duration>,
    hand_over: bool,
}

/// Parts of the server that a coordinator needs.
pub struct PreparedServer {
    /// The queue.
    pub dispatch: Arc<dyn Dispatch>,
    /// KV store in which coordinators show which runs they own.
    pub kv_store: Arc<dyn KvStore>,
    /// Commands and controls, as of any other user.
    pub control: Arc<dyn RunControl>,
    /// Pool of the workers.
    pub pool: String,
    /// Timeouts.
    pub timeouts: RemoteTimeouts,
    /// Whether the first stop lets trials on workers continue.
    pub hand_over: bool,
    _recovery: Task<()>,
    _sweep: Task<()>,
}

impl ConnectedServer {
    /// Connects.
    ///
    /// # Errors
    /// [`LaunchError::Server`].
    pub async fn connect(remote: RemoteOptions) -> Result<Self, LaunchError> {
        let RemoteOptions { options, pool, unplaceable_timeout, hand_over } = remote;
        let lease = options.lease;
        let nats = retry(async || Ok(Nats::connect(options.clone()).await?)).await?;
        Ok(Self { nats, pool, lease, unplaceable_timeout, hand_over })
    }

    /// Runs a session of a job to its end; `state` as in [`Self::prepare`].
    pub(in crate::launch) async fn run(
        self,
        session: JobSession,
        state: PathBuf,
    ) -> Result<FinishedSession, LaunchError> {
        let mut session = session;
        let classes = JobLanes::new(&session.plan).needs().iter().map(|n| n.class).collect();
        let layout = RunLayout::new(&session.run_dir);
        let store = Arc::clone(&session.store);
        let prepared = self.prepare(classes, &store, state, layout, &mut session.stops).await?;
        let job = RemoteJob {
            session,
            dispatch: Arc::clone(&prepared.dispatch),
            kv_store: Arc::clone(&prepared.kv_store),
            control: Arc::clone(&prepared.control),
            pool: prepared.pool.clone(),
            timeouts: prepared.timeouts,
            hand_over: prepared.hand_over,
        };
        Ok(job.run().await?)
    }

    /// Prepares the server for items of these size classes, and recovers work of dead processes on
    /// this host; `state` is used if the user has no home directory.
    ///
    /// # Errors
    /// [`LaunchError`].
    pub async fn prepare(
        self,
        mut classes: Vec<SizeClass>,
        store: &Arc<dyn BlobStore>,
        state: PathBuf,
        layout: RunLayout,
        stops: &mut mpsc::Receiver<StopLevel>,
    ) -> Result<PreparedServer, LaunchError> {
        let Self { nats, pool, lease, unplaceable_timeout, hand_over } = self;
        classes.push(SizeClass::SOLO);
        classes.sort_unstable();
        classes.dedup();
        let kv_store: Arc<dyn KvStore> = Arc::new(nats.kv_store());
        let prepare = retry(async || {
            let dispatch = nats.dispatch(&pool, &classes).await?;
            bind_pool(&nats, &*kv_store, &pool, store.identity()).await?;
            let source = nats.source(&pool, store.identity()).await?;
            let elasticity = nats.pool_elasticity(&pool).await?;
            Ok((Arc::new(dispatch), Arc::new(source), elasticity))
        });
        let (dispatch, source, elasticity) = tokio::select! {
            prepared = prepare => prepared?,
            Some(_) = stops.recv() => return Err(LaunchError::Interrupted),
        };
        let sweep = spawn_sweep(&nats, &kv_store);
        let recovery = spawn_recovery(&nats, &pool, source, state, &layout, Arc::clone(store))?;
        Ok(PreparedServer {
            dispatch,
            kv_store,
            control: Arc::new(nats),
            pool: pool.to_string(),
            timeouts: RemoteTimeouts {
                lease,
                unplaceable_timeout: choose_timeout(unplaceable_timeout, elasticity),
                ..RemoteTimeouts::default()
            },
            hand_over,
            _recovery: recovery,
            _sweep: sweep,
        })
    }
}

/// How long items that no worker can run wait: as the user says, else as the pool does.
fn choose_timeout(given: Option<Duration>, elasticity: PoolElasticity) -> Option<Duration> {
    match (given, elasticity) {
        (Some(given), _) => Some(given),
        (None, PoolElasticity::Elastic(longest)) => longest,
        (None, PoolElasticity::Fixed) => Some(limits::UNPLACEABLE_TIMEOUT),
    }
}

/// Removes what ended runs have left in the queue, while the run proceeds.
fn spawn_sweep(nats: &Nats, kv_store: &Arc<dyn KvStore>) -> Task<()> {
    let (nats, kv_store) = (nats.clone(), Arc::clone(kv_store));
    supervise::spawn("sweep of the queue", async move {
        match sweep_ended(&nats, &*kv_store).await {
            Ok(QueueSweep { messages: 0, .. }) => {}
            Ok(QueueSweep { runs, messages, .. }) => tracing::info!(
                "removed {messages} messages that {} ended runs had left in the queue",
                runs.len()
            ),
            // The next run tries it again.
            Err(error) => tracing::debug!("cannot sweep the queue: {error}"),
        }
    })
}

/// Recovers work of dead processes on this host while the run proceeds: of workers of the
/// deployment and the run's pool, and of a session of the run with an embedded worker.
fn spawn_recovery(
    nats: &Nats,
    pool: &NatsName,
    source: Arc<dyn WorkSource>,
    fallback_dir: PathBuf,
    layout: &RunLayout,
    store: Arc<dyn BlobStore>,
) -> Result<Task<()>, LaunchError> {
    let of_user = StateDir::for_user(|name| std::env::var_os(name));
    let state_dir = of_user.unwrap_or_else(|| StateDir::new(fallback_dir));
    let host = HostPaths::for_process(state_dir.root()).map_err(LaunchError::Program)?;
    let mut providers = Vec::new();
    for built in providers::built() {
        let of_host = provider(built.kind, &host, &state_dir.sandboxes())?;
        // Environments in a service are the same, wherever sandboxes are.
        if of_host.dependency().is_none() {
            providers.push(provider(built.kind, &host, &layout.sandboxes())?);
        }
        providers.push(of_host);
    }
    let namespace = nats.options().namespace.as_str();
    let bases = [layout.workers(), state_dir.workers(namespace, store.identity(), pool.as_str())];
    let owners = Arc::new(HostOwners::new(Owner::current(layout.root().to_owned())));
    Ok(supervise::spawn("adoption", async move {
        let providers = answering(providers).await;
        for base in bases.into_iter().filter(|base| base.is_dir()) {
            let (owners, store) = (Arc::clone(&owners), Arc::clone(&store));
            recover_dead_workers(base, owners, &providers, store, Arc::clone(&source)).await;
        }
        reap(&providers, &owners).await;
    }))
}

/// Binds the pool to the run's blob store. Replaces a binding to another store only if no run with
/// work in the pool uses that store.
async fn bind_pool(
    nats: &Nats,
    kv_store: &dyn KvStore,
    pool: &NatsName,
    store: &str,
) -> Result<(), BindError> {
    match nats.bind_pool(pool, store, false).await {
        Err(BindError::OtherStore { .. }) => {}
        bound => return bound,
    }
    let runs = kv_store.entries().await?;
    let entries = runs.iter().filter_map(|listed| RunEntry::parse(&listed.entry.value));
    let in_use = entries
        .filter(|entry| entry.pool == pool.as_str() && entry.store != store)
        .any(|entry| entry.uses_pool());
    nats.bind_pool(pool, store, !in_use).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeout_of_user_comes_before_that_of_elastic_pool() {
        let (given, longest) = (Duration::from_secs(5), Duration::from_secs(7200));
        let elastic = PoolElasticity::Elastic(None);
        assert_eq!(choose_timeout(Some(given), elastic), Some(given));
        assert_eq!(choose_timeout(None, elastic), None);
        assert_eq!(choose_timeout(None, PoolElasticity::Elastic(Some(longest))), Some(longest));
        let default = choose_timeout(None, PoolElasticity::Fixed);
        assert_eq!(default, Some(limits::UNPLACEABLE_TIMEOUT));
    }
}
