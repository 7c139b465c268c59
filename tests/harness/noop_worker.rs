//! A worker of a NATS server whose trials do nothing.

use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;

use rollout_base::metrics::WorkerMetrics;
use rollout_base::supervise;
use rollout_base::traces::Tracer;
use rollout_coordinator::bench::noop;
use rollout_environment::Owner;
use rollout_protocol::wire::heartbeat::{EnvironmentCapacity, ResourceBudget};
use rollout_queue::nats::{Nats, NatsOptions};
use rollout_store::host::WorkerDir;
use rollout_worker::service::{self, ShutdownLevel, WorkerConfig, WorkerProfile};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

/// Its pool.
pub const POOL: &str = "default";

/// Bytes of finished executions that may wait on disk: none ever does.
const SPOOL_BYTES: u64 = 1024 * 1024;

/// Why it cannot work.
pub type NoopWorkerError = Box<dyn Error + Send + Sync>;

/// Configuration of a worker.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct NoopWorkerConfig {
    /// The server.
    pub url: String,
    /// Beginning of the names of all objects on the server.
    pub namespace: String,
    /// Executions at a time.
    pub slots: u32,
    /// The blob store, a directory.
    pub store: PathBuf,
    /// Base of its worker directory.
    pub directory: PathBuf,
}

impl NoopWorkerConfig {
    /// Connects to the server.
    ///
    /// # Errors
    /// The address is wrong, or nobody answers.
    pub async fn connect(&self) -> Result<Nats, NoopWorkerError> {
        let mut options = NatsOptions::parse(&self.url)?;
        options.namespace = self.namespace.parse()?;
        Ok(Nats::connect(options).await?)
    }
}

/// A worker that is connected.
#[derive(Debug)]
pub struct NoopWorker {
    worker: service::Worker,
    dir: WorkerDir,
    _nats: Nats,
}

impl NoopWorker {
    /// Connects it.
    ///
    /// # Errors
    /// The server, the store or the directory cannot be used.
    pub async fn connect(config: NoopWorkerConfig) -> Result<Self, NoopWorkerError> {
        let nats = config.connect().await?;
        let store = rollout_store::open(&config.store.clone().into()).await?;
        let source = nats.source(&POOL.parse()?, store.identity()).await?;
        std::fs::create_dir_all(&config.directory)?;
        let dir = WorkerDir::create(&config.directory)?;
        let runner = noop::runner(dir.path(), store.clone())?;
        let providers = [(noop::PROVIDER, EnvironmentCapacity::default())].into();
        let profile = WorkerProfile { providers, ..WorkerProfile::default() };
        let config = WorkerConfig {
            worker: dir.id().clone(),
            owner: Owner::current(dir.path().to_owned()),
            dir: dir.path().to_owned(),
            pool: POOL.to_owned(),
            slots: config.slots,
            budget: ResourceBudget::default(),
            profile: profile.into_fixed(),
            max_offline: None,
            lease: nats.options().lease,
            // The namespace is new: nothing of it was ever executed.
            suspicious_window: None,
            spool_bytes: SPOOL_BYTES,
            metrics: WorkerMetrics::default(),
            tracer: Tracer::default(),
        };
        let worker = service::Worker::new(config, Arc::new(source), store, runner);
        Ok(Self { worker, dir, _nats: nats })
    }

    /// Works until it is dropped.
    ///
    /// # Errors
    /// It ended by itself.
    pub async fn run(self) -> Result<(), NoopWorkerError> {
        let (_shutdown, shutdown_level) = watch::channel(ShutdownLevel::No);
        supervise::spawn("worker", self.worker.run(shutdown_level)).await?;
        drop(self.dir);
        Ok(())
    }
}
