//! Tickets: of some kinds of commands a search may have only so many at once, over all workers, and
//! may start only so many per minute.
//!
//! Executions of evals ask for theirs with a claim before such a command begins; commands for ideas,
//! which run beside the coordinator, with [`ConcurrencyLimiter::acquire_ideas_permit`]. The engine alone hands them out: it knows
//! which executions still run, and whether this process still owns the run.
//!
//! A ticket comes back when the command has ended, and with the execution that has it: when that is
//! reported, or lost. A coordinator that begins knows nobody's tickets: hellos show them, and none is
//! handed out before everybody was heard who may have one.

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

/// The tickets of a search.
#[derive(Debug)]
pub struct ConcurrencyLimiter {
    caps: ConcurrencyLimits,
    table: Mutex<PermitTable<ConcurrencyPermit>>,
    /// Rings when a command for ideas asks or has ended.
    news: Notify,
}

/// The right of one command for ideas to run, until it is dropped.
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
    /// Tickets for what is bounded; none when nothing is.
    pub fn new(caps: ConcurrencyLimits) -> Option<Arc<Self>> {
        let (table, news) = (Mutex::new(PermitTable::new(caps)), Notify::new());
        (caps != ConcurrencyLimits::default()).then(|| Arc::new(Self { caps, table, news }))
    }

    /// Waits until a command for ideas may begin; the answer is to be held while it runs. Its turn
    /// comes in the order of asking, with the commands of evals of its kind, as long as the engine
    /// runs: whoever waits has to heed stops, too.
    pub async fn acquire_ideas_permit(self: &Arc<Self>) -> ConcurrencyPermit {
        let (give, given) = oneshot::channel();
        self.table().request_for_ideas(give);
        self.news.notify_one();
        given.await.expect("who waits is not forgotten")
    }

    /// What workers have to ask for.
    pub fn limited_stages(&self) -> PermitKinds {
        let ConcurrencyLimits { llm, sweeps, interval } = self.caps;
        PermitKinds { llm: llm.is_some() || interval.is_some(), sweep: sweeps.is_some() }
    }

    /// Waits until handing out is worth a try because of commands for ideas.
    pub(super) async fn changed(&self) {
        self.news.notified().await;
    }

    pub(super) fn is_open(&self) -> bool {
        self.table().is_open()
    }

    /// Everybody was heard who may have a ticket of a former sitting, if this is not the first.
    pub(super) fn open(&self, is_first: bool) {
        self.table().open(Instant::now(), is_first);
    }

    /// An execution asks for the ticket of a stage.
    pub(super) fn request(
        &self,
        item: ItemId,
        exec: ExecId,
        stage: EvalStage,
        reply: oneshot::Sender<ClaimAnswer>,
    ) {
        self.table().request(item, exec, stage, reply);
    }

    /// A stage of an execution is over.
    pub(super) fn end(&self, exec: ExecId, stage: EvalStage) {
        self.table().end(exec, stage);
    }

    /// What the last hellos show: with each execution whether its worker is known to live.
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

    /// Hands out what there is.
    pub(super) fn grant(self: &Arc<Self>, standing: impl Fn(&ItemId, &ExecId) -> HolderStatus) {
        let given = self.table().grant(Instant::now(), standing);
        for ideas in given {
            // A ticket that nobody waits for any more comes back at once.
            let _waits_no_longer = ideas.send(ConcurrencyPermit(Arc::clone(self)));
        }
    }

    fn table(&self) -> MutexGuard<'_, PermitTable<ConcurrencyPermit>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
