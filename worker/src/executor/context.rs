//! Context of an execution: the services of its worker, its slot, and its phase sink.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use rollout_base::secrets::TrialVariables;
use rollout_environment::{EnvironmentLabels, Failure, FailureKind, HostProxies, Provider};
use rollout_gateway::ModelGateway;
use rollout_protocol::dependency::Dependency;
use rollout_protocol::digest::Digest;
use rollout_protocol::id::RunId;
use rollout_protocol::phase::Phase;
use rollout_protocol::spec::environment::{ProviderKind, ProviderSpec};
use rollout_protocol::wire::control::StopLevel;
use tokio::sync::{Notify, watch};

use super::control::ControlMailbox;
use super::errors::SetupError;
use super::event_log::EventLogSink;
use super::files::TaskFiles;
use crate::disk::DiskWatch;

/// Longest time to place files into an environment or to read its files. Placing a file takes a
/// third of a millisecond, and a task may have 200,000.
pub(crate) const COPY_LIMIT: Duration = Duration::from_secs(600);

/// The inputs of an execution of any kind of work.
#[derive(Debug, Clone)]
pub struct ExecutionContext {
    /// Identity of the execution.
    pub labels: EnvironmentLabels,
    /// Digest of its specification.
    pub spec: Digest,
    /// A directory for this execution alone. [`ExecutionContext::create_scratch`] creates it, so
    /// that an execution that needs none costs none.
    pub scratch: PathBuf,
    /// Blocking work in it that goes on.
    pub scratch_work: ScratchWork,
    /// The requested stop level, if any.
    pub stop: watch::Receiver<Option<StopLevel>>,
    /// Receives every phase that begins.
    pub phases: Arc<dyn PhaseSink>,
    /// The slot that it occupies.
    pub slot: Arc<dyn Slot>,
    /// Longest wait for a service that does not answer; zero means no wait.
    pub max_park: Duration,
    /// Whether the limits of its model servers hold for all workers of the run together.
    pub has_model_leases: bool,
    /// Controls for its agent.
    pub controls: Arc<ControlMailbox>,
    /// Receives the hook events of its agent while it runs.
    pub event_log: Arc<dyn EventLogSink>,
}

/// Blocking work in a scratch directory. It goes on when the future that asked for it is dropped.
#[derive(Debug, Clone, Default)]
pub struct ScratchWork(Arc<ScratchWorkState>);

#[derive(Debug, Default)]
struct ScratchWorkState {
    running: AtomicUsize,
    /// Notified when nothing runs any more.
    ended: Notify,
    /// Held during a creation of the directory.
    creation: Mutex<()>,
}

/// Work that runs until this is dropped.
#[derive(Debug)]
pub(crate) struct RunningScratchWork(Arc<ScratchWorkState>);

impl ScratchWork {
    /// Begins work.
    pub(crate) fn begin(&self) -> RunningScratchWork {
        self.0.running.fetch_add(1, Ordering::Relaxed);
        RunningScratchWork(Arc::clone(&self.0))
    }

    /// Waits until nothing runs: nothing may appear in the directory after the execution has ended.
    pub(crate) async fn ended(&self) {
        loop {
            // It hears of an end from here on.
            let ended = self.0.ended.notified();
            if self.0.running.load(Ordering::Acquire) == 0 {
                return;
            }
            ended.await;
        }
    }
}

impl RunningScratchWork {
    /// Waits until no other work creates the directory. Blocks.
    pub(crate) fn lock_creation(&self) -> MutexGuard<'_, ()> {
        self.0.creation.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for RunningScratchWork {
    fn drop(&mut self) {
        if self.0.running.fetch_sub(1, Ordering::Release) == 1 {
            self.0.ended.notify_waiters();
        }
    }
}

/// The services that every execution on a worker shares.
#[derive(Debug)]
pub struct ExecutionServices {
    /// The providers of this worker.
    pub providers: BTreeMap<ProviderKind, Arc<dyn Provider>>,
    /// Files of tasks, from the store.
    pub files: TaskFiles,
    /// Variables that the operator exported to trials.
    pub variables: TrialVariables,
    /// The model gateway of this worker, if its build has one.
    pub gateway: Option<Arc<dyn ModelGateway>>,
    /// The disks of this worker.
    pub disks: Arc<DiskWatch>,
    /// Name of this host.
    pub host: String,
}

impl ExecutionServices {
    /// The provider of a kind, with the base image digests chosen by the run.
    pub(crate) fn provider(
        &self,
        kind: ProviderKind,
        run: RunId,
    ) -> Result<Arc<dyn Provider>, SetupError> {
        let provider = self.providers.get(&kind).cloned();
        let provider = provider.ok_or_else(|| SetupError::NoProvider(kind.to_string()))?;
        provider.set_base_digests(run, self.files.base_digests(run));
        Ok(provider)
    }

    /// The proxies that this host gives to environments with these settings.
    pub(crate) fn proxies(&self, settings: &ProviderSpec) -> HostProxies {
        let provider = self.providers.get(&settings.kind());
        provider.map(|provider| provider.proxies(settings)).unwrap_or_default()
    }
}

/// Receives the progress of an execution. Must not block.
pub trait PhaseSink: Send + Sync + fmt::Debug {
    /// A phase began.
    fn entered(&self, phase: Phase);

    /// The execution waits for a service that does not answer; `None` ends the wait.
    fn parked(&self, on: Option<Dependency>) {
        let _unused = on;
    }
}

/// The slot that an execution occupies at its worker.
#[async_trait]
pub trait Slot: Send + Sync + fmt::Debug {
    /// Frees the slot while the execution waits without an environment, if the worker has room for
    /// one more waiting execution.
    fn release(&self);

    /// Waits for a slot.
    async fn reacquire(&self);

    /// Whether executions in other slots may wait for something that this execution holds. It keeps its
    /// slot then: they could take all slots, and none of them would end.
    fn must_be_kept(&self) -> bool;
}

/// A slot for a single execution.
#[derive(Debug, Clone, Copy, Default)]
pub struct DedicatedSlot;

#[async_trait]
impl Slot for DedicatedSlot {
    fn release(&self) {}

    async fn reacquire(&self) {}

    fn must_be_kept(&self) -> bool {
        false
    }
}

/// Gives up on a result after `limit`.
pub(crate) async fn with_timeout<T>(
    limit: Duration,
    action: &str,
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    match tokio::time::timeout(limit, work).await {
        Ok(result) => result,
        Err(_) => {
            Err(Failure::new(FailureKind::TimedOut, format!("{action} took longer than {limit:?}")))
        }
    }
}
