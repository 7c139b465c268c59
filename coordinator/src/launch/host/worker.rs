//! A worker process: everything between its command line and its exit code.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rollout_base::backoff::error_chain;
use rollout_base::metrics::WorkerMetrics;
use rollout_base::secrets::TrialVariables;
use rollout_base::supervise::{self, Task};
use rollout_base::traces::Tracer;
use rollout_engine::RunError;
use rollout_environment::{Owner, Provider};
use rollout_protocol::spec::environment::ProviderKind;
use rollout_protocol::wire::control::StopLevel;
use rollout_protocol::wire::heartbeat::ResourceBudget;
use rollout_queue::traits::WorkSource;
use rollout_store::BlobStore;
use rollout_store::host::{HostOwners, WorkerDir};
use rollout_worker::service::{
    Runner, ShutdownLevel, Worker, WorkerConfig, WorkerExit, WorkerExitReason, WorkerMonitor,
    WorkerProfile,
};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::provider_probe::{ProviderMap, ProviderProbe};
use super::recovery::{HostRecovery, remove_leftovers, sweep};
use super::{HostPaths, SPOOL_BYTES, limit_executions, provider, runner};

/// Longest time to remove the worker's directory: a disk that gives no answer must not keep the process.
const CLOSE_LIMIT: Duration = Duration::from_secs(10);

/// Longest time to finish the recovery of dead workers: the queue or the store may give no answer.
const RECOVERY_LIMIT: Duration = Duration::from_secs(10);

/// The same after a kill.
const SHORT_RECOVERY_LIMIT: Duration = Duration::from_secs(2);

/// Decorator of the runner: tests need workers that die on request.
pub type RunnerDecorator = fn(Arc<dyn Runner>) -> Arc<dyn Runner>;

/// A worker process.
#[derive(Debug)]
pub struct WorkerProcess {
    /// The source of work.
    pub source: Arc<dyn WorkSource>,
    /// The blob store.
    pub store: Arc<dyn BlobStore>,
    /// Paths of the host that outlive it.
    pub host: HostPaths,
    /// Base of its deployment's worker directories.
    pub workers: PathBuf,
    /// Directory of sandboxes.
    pub sandboxes: PathBuf,
    /// Pool to take work from.
    pub pool: String,
    /// Executions at a time.
    pub slots: u32,
    /// Resources for all its trials together.
    pub budget: ResourceBudget,
    /// The providers it may use.
    pub providers: BTreeSet<ProviderKind>,
    /// Variables that trials may see.
    pub variables: TrialVariables,
    /// The queue's lease.
    pub lease: Duration,
    /// How long running trials may continue while it drains.
    pub drain_timeout: Duration,
    /// How long it works without the server.
    pub max_offline: Duration,
    /// Signals: the first drains, the second kills.
    pub stops: mpsc::Receiver<StopLevel>,
    /// Decorator of the runner.
    pub decorate: RunnerDecorator,
    /// Its counters.
    pub metrics: WorkerMetrics,
    /// Takes its spans.
    pub tracer: Tracer,
    /// Set to a view of the worker when it exists.
    pub monitor: Arc<OnceLock<WorkerMonitor>>,
}

impl WorkerProcess {
    /// Works until it is stopped, or without the server for too long.
    ///
    /// # Errors
    /// [`RunError`] when it cannot start.
    pub async fn run(mut self) -> Result<WorkerExit, RunError> {
        self.slots = limit_executions(self.slots);
        let dir = self.directory().await?;
        let providers = self.providers()?;
        let names = self.variables.names().map(str::to_owned).collect();
        let probe = ProviderProbe::start(providers.clone(), names).await;
        let profile = probe.profile();
        let worker = self.worker(&dir, providers.clone(), profile.clone())?;
        // Only this process sets it, once.
        let _first = self.monitor.set(worker.monitor());
        let recovery = HostRecovery {
            base: self.workers.clone(),
            owners: Arc::new(HostOwners::new(Owner::current(dir.path().to_owned()))),
            store: Arc::clone(&self.store),
            source: Arc::clone(&self.source),
            adopted: worker.adopted(),
        };
        log_start(&dir, &self, &profile.borrow());
        let _probing = supervise::spawn("providers", probe.run());
        let own_providers: Vec<_> = providers.values().cloned().collect();
        let stop_recovery = CancellationToken::new();
        let recovering = recovery
            .run(move || working_providers(&providers, &profile.borrow()), stop_recovery.clone());
        let recovering = supervise::spawn("adoption", recovering);
        let (shutdown, shutdown_level) = watch::channel(ShutdownLevel::No);
        let killed_by_signal = Arc::new(AtomicBool::new(false));
        let forwarding = forward_shutdown(
            self.stops,
            shutdown,
            self.drain_timeout,
            Arc::clone(&killed_by_signal),
        );
        let _forwarding = supervise::spawn("leaving", forwarding);
        // A separate task: tasks that the main thread runs itself are woken through the kernel.
        let working = supervise::spawn("worker", worker.run(shutdown_level));
        let mut ended = working.await.map_err(|_| RunError::PartEnded("the worker"))?;
        stop_recovery.cancel();
        let is_killed = ended.reason == WorkerExitReason::Killed;
        tokio::join!(
            finish_recovery(recovering, is_killed),
            remove_leftovers(&own_providers, is_killed)
        );
        if is_killed && !killed_by_signal.load(Ordering::Relaxed) {
            ended.reason = WorkerExitReason::Asked;
        }
        let (dirs, path) = ([self.workers, self.sandboxes], dir.path().to_owned());
        let closing = supervise::blocking(move || close(dir, ended, &dirs));
        if tokio::time::timeout(CLOSE_LIMIT, closing).await.is_err() {
            let path = path.display();
            tracing::warn!(
                "the disk of {path} gives no answer: the next worker of this host removes what is left"
            );
        }
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
            metrics: self.metrics.clone(),
            tracer: self.tracer.clone(),
        };
        Ok(Worker::new(config, Arc::clone(&self.source), Arc::clone(&self.store), runner))
    }
}

/// Waits for the end of a recovery: what it holds would stay on the host until another worker starts.
/// After a kill the process ends soon all the same.
async fn finish_recovery(recovering: Task<()>, is_killed: bool) {
    let limit = if is_killed { SHORT_RECOVERY_LIMIT } else { RECOVERY_LIMIT };
    if let Err(why) = end_of_recovery(recovering, limit).await {
        tracing::warn!(
            "the recovery after dead processes {why}: the next worker of this host does the rest"
        );
    }
}

/// Waits for the end of a recovery. It looks for leftovers of every provider, also if no process is dead.
///
/// # Errors
/// Why it has no end, in words.
pub(super) async fn end_of_recovery(recovering: Task<()>, limit: Duration) -> Result<(), String> {
    match tokio::time::timeout(limit, recovering).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(panic)) => Err(format!("ended by a bug ({panic})")),
        Err(_) => Err(format!("has not ended in {limit:?}")),
    }
}

/// The providers that work at present.
fn working_providers(providers: &ProviderMap, profile: &WorkerProfile) -> Vec<Arc<dyn Provider>> {
    let works = providers.iter().filter(|(kind, _)| profile.providers.contains_key(kind));
    works.map(|(_, provider)| Arc::clone(provider)).collect()
}

fn log_start(dir: &WorkerDir, process: &WorkerProcess, profile: &WorkerProfile) {
    tracing::info!(
        "worker {} takes work from pool {}, {} at a time, {}; its files are in {}",
        dir.id(),
        process.pool,
        process.slots,
        usable_environments(profile),
        dir.path().display()
    );
}

/// Part of a message: the environments that can be used at present.
pub(super) fn usable_environments(profile: &WorkerProfile) -> String {
    let kinds: Vec<_> = profile.providers.keys().map(ToString::to_string).collect();
    if kinds.is_empty() {
        "but no environment is usable now".to_owned()
    } else {
        format!("in {}", kinds.join(", "))
    }
}

/// Turns signals into shutdown levels. Executions that do not end in time are killed at once: other
/// workers run them again from the start, so the end of a phase gains nothing.
async fn forward_shutdown(
    mut stops: mpsc::Receiver<StopLevel>,
    shutdown: watch::Sender<ShutdownLevel>,
    drain_timeout: Duration,
    killed_by_signal: Arc<AtomicBool>,
) {
    if stops.recv().await.is_none() {
        return std::future::pending().await;
    }
    if !drain_timeout.is_zero() {
        tracing::info!(
            "draining: no more work is taken; running executions have {drain_timeout:?} to end"
        );
        shutdown.send_replace(ShutdownLevel::Finish);
        let signal = tokio::time::timeout(drain_timeout, stops.recv()).await;
        killed_by_signal.store(signal.is_ok(), Ordering::Relaxed);
    }
    tracing::info!("ending running executions and returning their items to the queue");
    shutdown.send_replace(ShutdownLevel::Kill);
    std::future::pending::<()>().await;
}

/// Removes the worker's directory unless it must be adopted, then the directories left empty.
fn close(dir: WorkerDir, ended: WorkerExit, dirs: &[PathBuf; 2]) {
    if ended.unreported > 0 || holds_work(&dir) {
        let unreported = ended.unreported;
        tracing::warn!(
            "{unreported} executions are not reported: start a worker on this host with the same \
             options to report those in {}",
            dir.path().display()
        );
    } else if let Err(error) = dir.remove() {
        tracing::warn!("{}", error_chain(&error));
    } else {
        tracing::info!("all executions are reported; exiting");
    }
    sweep(&dirs[0]);
    // Others may be using them.
    let deployments = dirs[0].parent().map(Path::to_owned);
    for empty_dir in dirs.iter().chain(&deployments) {
        let _in_use = std::fs::remove_dir(empty_dir);
    }
}

/// Whether a worker directory holds unreported executions.
fn holds_work(dir: &WorkerDir) -> bool {
    let filled = |path: &Path| std::fs::read_dir(path).is_ok_and(|mut all| all.next().is_some());
    filled(&dir.spool()) || filled(&dir.scratch())
}
