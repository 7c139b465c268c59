//! Concurrency permits of a search: limits on how many commands of a kind run at once over all
//! workers, and on how many start per minute.
//!
//! An eval requests its permit with a claim before such a command starts. Commands for ideas, which
//! run beside the coordinator, use [`ConcurrencyLimiter::acquire_ideas_permit`]. Only the engine
//! grants permits: it knows which executions still run, and whether this process still owns the
//! run.
//!
//! A permit returns when its command has ended, or when the execution that holds it is reported or
//! lost. A coordinator that starts does not know who holds permits: heartbeats show it. It grants
//! none before it has heard every worker that may hold one.

mod permit_table;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rollout_protocol::id::{ExecId, ItemId};
use rollout_protocol::spec::eval::EvalStage;
use rollout_protocol::wire::claim::ClaimAnswer;
use rollout_protocol::wire::stage::{PermitKinds, StageProgress};
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

pub use self::permit_table::ConcurrencyLimits;
pub(super) use self::permit_table::HolderStatus;
use self::permit_table::PermitTable;

/// The concurrency permits of a search.
#[derive(Debug)]
pub struct ConcurrencyLimiter {
    caps: ConcurrencyLimits,
    table: Mutex<PermitTable<ConcurrencyPermit>>,
    /// Notified when a command for ideas requests a permit or has ended.
    news: Notify,
}

/// Permission for one command for ideas to run, until it is dropped.
#[derive(Debug)]
#[must_use = "the command may run only while it is held"]
pub struct ConcurrencyPermit(Arc<ConcurrencyLimiter>);

impl Drop for ConcurrencyPermit {
    fn drop(&mut self) {
        self.0.table().end_ideas();
        self.0.news.notify_one();
    }
}

impl ConcurrencyLimiter {
    /// A limiter for `caps`; `None` when nothing is limited.
    pub fn new(caps: ConcurrencyLimits) -> Option<Arc<Self>> {
        let (table, news) = (Mutex::new(PermitTable::new(caps)), Notify::new());
        (caps != ConcurrencyLimits::default()).then(|| Arc::new(Self { caps, table, news }))
    }

    /// Waits until a command for ideas may start; hold the permit while it runs. Requests are
    /// served in order, together with evals' commands of the same kind, as long as the engine runs:
    /// the caller must watch for stops, too.
    pub async fn acquire_ideas_permit(self: &Arc<Self>) -> ConcurrencyPermit {
        let (give, given) = oneshot::channel();
        self.table().request_for_ideas(give);
        self.news.notify_one();
        given.await.expect("a waiting request is kept")
    }

    /// Stages for which workers must request a permit.
    pub fn limited_stages(&self) -> PermitKinds {
        let ConcurrencyLimits { llm, sweeps, interval } = self.caps;
        PermitKinds { llm: llm.is_some() || interval.is_some(), sweep: sweeps.is_some() }
    }

    /// Waits until commands for ideas give a reason to grant again.
    pub(super) async fn changed(&self) {
        self.news.notified().await;
    }

    pub(super) fn is_open(&self) -> bool {
        self.table().is_open()
    }

    /// Starts granting: every worker that may hold a permit of a previous session was heard, or
    /// there was no previous session (`is_first`).
    pub(super) fn open(&self, is_first: bool) {
        self.table().open(Instant::now(), is_first);
    }

    /// An execution requests the permit of a stage.
    pub(super) fn request(
        &self,
        item: ItemId,
        exec: ExecId,
        stage: EvalStage,
        reply: oneshot::Sender<ClaimAnswer>,
    ) {
        self.table().request(item, exec, stage, reply);
    }

    /// A stage of an execution has ended.
    pub(super) fn end(&self, exec: ExecId, stage: EvalStage) {
        self.table().end(exec, stage);
    }

    /// Takes in the last heartbeats; each execution comes with whether its worker is known to be
    /// alive.
    pub(super) fn update_from_heartbeats(
        &self,
        lines: impl Iterator<Item = (ItemId, ExecId, StageProgress, bool)>,
    ) {
        self.table().update_from_heartbeats(lines);
    }

    pub(super) fn is_wanted(&self) -> bool {
        self.table().is_wanted()
    }

    pub(super) fn next_due(&self) -> Option<Instant> {
        self.table().next_due(Instant::now())
    }

    /// Grants the available permits.
    pub(super) fn grant(self: &Arc<Self>, standing: impl Fn(&ItemId, &ExecId) -> HolderStatus) {
        let given = self.table().grant(Instant::now(), standing);
        for ideas in given {
            // A permit whose request was dropped returns at once.
            let _waits_no_longer = ideas.send(ConcurrencyPermit(Arc::clone(self)));
        }
    }

    fn table(&self) -> MutexGuard<'_, PermitTable<ConcurrencyPermit>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
