//! The life of a worker: pull, run, spool, upload, report, acknowledge.
//!
//! ```text
//!            pull ─── suspicious? ──▶ claim ──run──┐
//!              │ no                     │hold, drop│
//!              ▼                        ▼          ▼
//!  slot     execute (polled once in place; a task only if it waits)
//!              │ the environment is gone: the slot is free
//!              ▼
//!            finish: bare? ── no ──▶ spool ──▶ store
//!              │ yes                            │
//!              ▼                                ▼
//!            report (what gathered while the last batches were under way) ──▶ acknowledge
//! ```
//!
//! Nothing is done per item that can be done per batch: no task, timer, file or message of its own
//! for an execution that ends at once and leaves nothing.

mod claim;
mod documents;
mod drain;
mod execute;
mod execution;
mod finish;
mod lease;
mod pull;
mod registry;
mod report;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use rollout_protocol::id::WorkerId;
use rollout_protocol::spec::environment::ProviderKind;
use rollout_protocol::wire::hello::{Budget, Capacity};
use tokio::sync::{Semaphore, watch};

use self::documents::Documents;
use self::registry::Registry;
use self::report::Outbox;
use crate::environment::Owner;
use crate::outage::Outage;
use crate::port::WorkSource;
use crate::spool::Spool;
use crate::store::BlobStore;
use crate::supervise::{self, Task};
use crate::trial::{self, Finished, TrialContext, TrialServices};

/// Runs what offers ask for.
#[async_trait]
pub trait Runner: Send + Sync + fmt::Debug {
    /// Runs one execution until its environment is gone. May panic; must heed `context.stop`.
    async fn run(&self, context: TrialContext) -> Finished;
}

/// Runs trials.
#[derive(Debug)]
pub struct TrialRunner(pub TrialServices);

#[async_trait]
impl Runner for TrialRunner {
    async fn run(&self, context: TrialContext) -> Finished {
        trial::run(context, &self.0).await
    }
}

/// What a worker is.
#[derive(Debug, Clone)]
pub struct WorkerConfig {
    /// Its name.
    pub worker: WorkerId,
    /// The process it lives in.
    pub owner: Owner,
    /// Its directory, whose lock this process holds.
    pub dir: PathBuf,
    /// Pool whose work it takes.
    pub pool: String,
    /// Executions with an environment at the same time.
    pub slots: u32,
    /// What it can run, for whoever decides where work goes.
    pub profile: Profile,
    /// The queue's lease.
    pub lease: Duration,
    /// How long after its connection every delivery is suspicious, because the queue may have lost
    /// who runs what. `None` when the world is known: whoever executed anything of the offered runs
    /// before is proven dead and its executions are reported lost.
    pub suspicious_window: Option<Duration>,
    /// Bytes of finished executions on disk beyond which the worker takes no more work.
    pub spool_bytes: u64,
}

/// What a worker can run.
#[derive(Debug, Clone, Default)]
pub struct Profile {
    /// What its operator lets trials use.
    pub budget: Budget,
    /// Its providers, and the largest environment of each.
    pub providers: BTreeMap<ProviderKind, Capacity>,
    /// Names of the variables that trials may see.
    pub variables: BTreeSet<String>,
}

/// What is asked of a worker. Only ever made harder.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Shutdown {
    /// Go on.
    #[default]
    No,
    /// Take no more work, finish what runs.
    Finish,
    /// Take no more work; executions finish their phase, collect and tear down.
    Drain,
    /// Executions end at once. What cannot be reported soon stays in the spool.
    Kill,
}

/// A worker.
#[derive(Debug)]
pub struct Worker {
    shared: Arc<Shared>,
}

/// What the parts of a worker share.
#[derive(Debug)]
struct Shared {
    config: WorkerConfig,
    source: Arc<dyn WorkSource>,
    store: Arc<dyn BlobStore>,
    runner: Arc<dyn Runner>,
    documents: Documents,
    registry: Registry,
    outbox: Outbox,
    spool: Spool,
    /// Free slots.
    slots: Arc<Semaphore>,
    /// Room for claims that wait without a slot.
    off_slot: Arc<Semaphore>,
    /// Whether no more work is begun.
    closing: watch::Sender<bool>,
    queue_outage: Outage,
    store_outage: Outage,
    spool_outage: Outage,
}

impl Worker {
    /// A worker that does nothing yet.
    pub fn new(
        config: WorkerConfig,
        source: Arc<dyn WorkSource>,
        store: Arc<dyn BlobStore>,
        runner: Arc<dyn Runner>,
    ) -> Self {
        let slots = config.slots as usize;
        let shared = Shared {
            documents: Documents::new(store.clone()),
            registry: Registry::default(),
            outbox: Outbox::default(),
            spool: Spool::new(config.dir.clone()),
            slots: Arc::new(Semaphore::new(slots)),
            off_slot: Arc::new(Semaphore::new(slots)),
            closing: watch::Sender::new(false),
            queue_outage: Outage::new("the queue"),
            store_outage: Outage::new("the blob store"),
            spool_outage: Outage::new("the spool"),
            config,
            source,
            store,
            runner,
        };
        Self { shared: Arc::new(shared) }
    }

    /// Works until it is told to stop and everything it began is reported (after
    /// [`Shutdown::Kill`]: or safe in the spool). A closed channel means [`Shutdown::Finish`].
    ///
    /// Dropping it aborts every execution without a word.
    pub async fn run(self, shutdown: watch::Receiver<Shutdown>) {
        let shared = self.shared;
        lease::say_hello(&shared).await;
        let mut helpers: FuturesUnordered<Task<Infallible>> = [
            supervise::spawn("reports", report::report(shared.clone())),
            supervise::spawn("leases", lease::keep(shared.clone())),
            supervise::spawn("controls", drain::obey(shared.clone())),
            supervise::spawn("shutdown", drain::shut_down(shared.clone(), shutdown.clone())),
        ]
        .into_iter()
        .collect();
        let work = async {
            let tasks = pull::pull(&shared, shutdown.clone()).await;
            drain::settle(&shared, tasks, shutdown).await;
        };
        tokio::select! {
            () = work => {}
            Some(Err(defect)) = helpers.next() => panic!("{defect}"),
        }
    }
}
