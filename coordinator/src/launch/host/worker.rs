//! A worker process: everything between its command line and its exit code.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rollout_protocol::spec::environment::ProviderKind;
use rollout_protocol::wire::control::StopLevel;
use rollout_protocol::wire::heartbeat::ResourceBudget;
use rollout_worker::backoff::error_chain;
use rollout_worker::environment::{Owner, Provider};
use rollout_worker::host::{HostOwners, WorkerDir};
use rollout_worker::queue::traits::WorkSource;
use rollout_worker::secrets::TrialVariables;
use rollout_worker::service::{
    Runner, ShutdownLevel, Worker, WorkerConfig, WorkerExit, WorkerExitReason, WorkerProfile,
};
use rollout_worker::store::BlobStore;
use rollout_worker::supervise;
use tokio::sync::{mpsc, watch};

use super::provider_probe::{ProviderMap, ProviderProbe};
use super::recovery::{HostRecovery, sweep};
use super::{HostPaths, SPOOL_BYTES, limit_executions, provider, runner};
use crate::engine::RunError;

/// Changes what runs executions: a door for tests, which need workers that die when they are told.
pub type RunnerDecorator = fn(Arc<dyn Runner>) -> Arc<dyn Runner>;

/// A worker process.
#[derive(Debug)]
pub struct WorkerProcess {
    /// Where its work comes from.
    pub source: Arc<dyn WorkSource>,
    /// Where blobs are.
    pub store: Arc<dyn BlobStore>,
    /// What is of the host and outlives it.
    pub host: HostPaths,
    /// Where worker directories of its deployment are.
    pub workers: PathBuf,
    /// Where sandboxes are.
    pub sandboxes: PathBuf,
    /// Pool whose work it takes.
    pub pool: String,
    /// Executions at a time.
    pub slots: u32,
    /// What its trials may use together.
    pub budget: ResourceBudget,
    /// The providers it may use.
    pub providers: BTreeSet<ProviderKind>,
    /// Variables that trials may see.
    pub variables: TrialVariables,
    /// The queue's lease.
    pub lease: Duration,
    /// How long running trials may go on when it is told to go.
    pub drain_timeout: Duration,
    /// How long it works without contact.
    pub max_offline: Duration,
    /// Signals: the first asks it to go, the second kills.
    pub stops: mpsc::Receiver<StopLevel>,
    /// Changes what runs executions.
    pub decorate: RunnerDecorator,
}

impl WorkerProcess {
    /// Works until it is told to go, or is without contact for too long.
    ///
    /// # Errors
    /// [`RunError`] when it cannot begin.
    pub async fn run(mut self) -> Result<WorkerExit, RunError> {
        self.slots = limit_executions(self.slots);
        let dir = self.directory().await?;
        let providers = self.providers()?;
        let names = self.variables.names().map(str::to_owned).collect();
        let prospect = ProviderProbe::start(providers.clone(), names).await;
        let profile = prospect.profile();
        let worker = self.worker(&dir, providers.clone(), profile.clone())?;
        let estate = HostRecovery {
            base: self.workers.clone(),
            owners: Arc::new(HostOwners::new(Owner::current(dir.path().to_owned()))),
            store: Arc::clone(&self.store),
            source: Arc::clone(&self.source),
            shown: worker.adopted(),
        };
        log_start(&dir, &self, &profile.borrow());
        let _prospecting = supervise::spawn("providers", prospect.run());
        let adopting = estate.run(move || working_providers(&providers, &profile.borrow()));
        let _adopting = supervise::spawn("adoption", adopting);
        let (shutdown, told) = watch::channel(ShutdownLevel::No);
        let hurried = Arc::new(AtomicBool::new(false));
        let leaving =
            forward_shutdown(self.stops, shutdown, self.drain_timeout, Arc::clone(&hurried));
        let _leaving = supervise::spawn("leaving", leaving);
        // A task of its own: what the main thread runs itself is woken through the kernel.
        let working = supervise::spawn("worker", worker.run(told));
        let mut ended = working.await.map_err(|_| RunError::PartEnded("the worker"))?;
        if ended.why == WorkerExitReason::Killed && !hurried.load(Ordering::Relaxed) {
            ended.why = WorkerExitReason::Asked;
        }
        let places = [self.workers, self.sandboxes];
        supervise::blocking(move || close(dir, ended, &places)).await;
        Ok(ended)
    }

    async fn directory(&self) -> Result<WorkerDir, RunError> {
        let base = self.workers.clone();
        let make = move || {
            // Another worker may be removing the empty base.
            WorkerDir::create(&base).or_else(|_| WorkerDir::create(&base))
        };
        supervise::blocking(make).await.map_err(|error| RunError::File {
            action: "create a worker directory in",
            path: self.workers.clone(),
            source: std::io::Error::other(error),
        })
    }

    fn providers(&self) -> Result<ProviderMap, RunError> {
        let made = |kind: &ProviderKind| Ok((*kind, provider(*kind, &self.host, &self.sandboxes)?));
        self.providers.iter().map(made).collect()
    }

    fn worker(
        &self,
        dir: &WorkerDir,
        providers: ProviderMap,
        profile: watch::Receiver<WorkerProfile>,
    ) -> Result<Worker, RunError> {
        let owner = Owner::current(dir.path().to_owned());
        let variables = self.variables.clone();
        let host = owner.host.split('/').next().unwrap_or_default().to_owned();
        let runner = runner(providers, dir.path(), Arc::clone(&self.store), variables, host)?;
        let runner = (self.decorate)(Arc::new(runner));
        let config = WorkerConfig {
            worker: dir.id().clone(),
            owner,
            dir: dir.path().to_owned(),
            pool: self.pool.clone(),
            slots: self.slots,
            budget: self.budget,
            profile,
            lease: self.lease,
            suspicious_window: Some(self.lease),
            max_offline: Some(self.max_offline),
            spool_bytes: SPOOL_BYTES,
        };
        Ok(Worker::new(config, Arc::clone(&self.source), Arc::clone(&self.store), runner))
    }
}

/// The providers that work at present.
fn working_providers(providers: &ProviderMap, profile: &WorkerProfile) -> Vec<Arc<dyn Provider>> {
    let works = providers.iter().filter(|(kind, _)| profile.providers.contains_key(kind));
    works.map(|(_, provider)| Arc::clone(provider)).collect()
}

fn log_start(dir: &WorkerDir, process: &WorkerProcess, profile: &WorkerProfile) {
    let kinds: Vec<_> = profile.providers.keys().map(ToString::to_string).collect();
    let kinds = if kinds.is_empty() { "nothing".to_owned() } else { kinds.join(", ") };
    tracing::info!(
        "worker {} takes work of pool {}, {} at a time, in {kinds}; it keeps its files in {}",
        dir.id(),
        process.pool,
        process.slots,
        dir.path().display()
    );
}

/// Turns signals into how the worker leaves. What does not end in time is ended at once: it runs
/// again elsewhere from its beginning, so that nothing is gained by the end of a phase.
async fn forward_shutdown(
    mut stops: mpsc::Receiver<StopLevel>,
    shutdown: watch::Sender<ShutdownLevel>,
    drain_timeout: Duration,
    hurried: Arc<AtomicBool>,
) {
    if stops.recv().await.is_none() {
        return std::future::pending().await;
    }
    if !drain_timeout.is_zero() {
        tracing::info!("draining: no more work is taken, what runs has {drain_timeout:?} to end");
        shutdown.send_replace(ShutdownLevel::Finish);
        let signal = tokio::time::timeout(drain_timeout, stops.recv()).await;
        hurried.store(signal.is_ok(), Ordering::Relaxed);
    }
    tracing::info!("what still runs is ended and given back");
    shutdown.send_replace(ShutdownLevel::Kill);
    std::future::pending::<()>().await;
}

/// Removes the worker's directory unless somebody has to adopt it, and what is empty then.
fn close(dir: WorkerDir, ended: WorkerExit, places: &[PathBuf; 2]) {
    let path = dir.path().to_owned();
    if ended.unreported > 0 || holds_work(&dir) {
        let unreported = ended.unreported;
        tracing::warn!(
            "{unreported} executions are not reported: a worker that starts on this host with the \
             same options reports what is in {}",
            path.display()
        );
    } else if let Err(error) = dir.remove() {
        tracing::warn!("cannot remove {}: {}", path.display(), error_chain(&error));
    } else {
        tracing::info!("everything is reported; good bye");
    }
    sweep(&places[0]);
    // Others may be using them.
    let deployments = places[0].parent().map(Path::to_owned);
    for place in places.iter().chain(&deployments) {
        let _in_use = std::fs::remove_dir(place);
    }
}

/// Whether a worker directory holds executions that nobody heard of.
fn holds_work(dir: &WorkerDir) -> bool {
    let filled = |path: &Path| std::fs::read_dir(path).is_ok_and(|mut all| all.next().is_some());
    filled(&dir.spool()) || filled(&dir.scratch())
}
