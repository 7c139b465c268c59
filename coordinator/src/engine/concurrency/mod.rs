//! Tickets: of some kinds of commands a search may have only so many at once, over all workers, and
//! may start only so many per minute.
//!
//! Executions of evals ask for theirs with a claim before such a command begins; commands for ideas,
//! which run beside the coordinator, with [`Tickets::llm`]. The engine alone hands them out: it knows
//! which executions still run, and whether this process still owns the run.
//!
//! A ticket comes back when the command has ended, and with the execution that has it: when that is
//! reported, or lost. A coordinator that begins knows nobody's tickets: hellos show them, and none is
//! handed out before everybody was heard who may have one.

mod table;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rollout_protocol::id::{ExecId, ItemId};
use rollout_protocol::spec::eval::EvalStage;
use rollout_protocol::wire::claim::ClaimAnswer;
use rollout_protocol::wire::stage::{StageProgress, PermitKinds};
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

pub use self::table::Caps;
pub(super) use self::table::Standing;
use self::table::Table;

/// The tickets of a search.
#[derive(Debug)]
pub struct Tickets {
    caps: Caps,
    table: Mutex<Table<Ticket>>,
    /// Rings when a command for ideas asks or has ended.
    news: Notify,
}

/// The right of one command for ideas to run, until it is dropped.
#[derive(Debug)]
#[must_use = "the command may run only while it is held"]
pub struct Ticket(Arc<Tickets>);

impl Drop for Ticket {
    fn drop(&mut self) {
        self.0.table().ideas_end();
        self.0.news.notify_one();
    }
}

impl Tickets {
    /// Tickets for what is bounded; none when nothing is.
    pub fn new(caps: Caps) -> Option<Arc<Self>> {
        let (table, news) = (Mutex::new(Table::new(caps)), Notify::new());
        (caps != Caps::default()).then(|| Arc::new(Self { caps, table, news }))
    }

    /// Waits until a command for ideas may begin; the answer is to be held while it runs. Its turn
    /// comes in the order of asking, with the commands of evals of its kind, as long as the engine
    /// runs: whoever waits has to heed stops, too.
    pub async fn llm(self: &Arc<Self>) -> Ticket {
        let (give, given) = oneshot::channel();
        self.table().ask_for_ideas(give);
        self.news.notify_one();
        given.await.expect("who waits is not forgotten")
    }

    /// What workers have to ask for.
    pub fn asked_for(&self) -> PermitKinds {
        let Caps { llm, sweeps, interval } = self.caps;
        PermitKinds { llm: llm.is_some() || interval.is_some(), sweep: sweeps.is_some() }
    }

    /// Waits until handing out is worth a try because of commands for ideas.
    pub(super) async fn news(&self) {
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
    pub(super) fn ask(
        &self,
        item: ItemId,
        exec: ExecId,
        stage: EvalStage,
        reply: oneshot::Sender<ClaimAnswer>,
    ) {
        self.table().ask(item, exec, stage, reply);
    }

    /// A stage of an execution is over.
    pub(super) fn end(&self, exec: ExecId, stage: EvalStage) {
        self.table().end(exec, stage);
    }

    /// What the last hellos show: with each execution whether its worker is known to live.
    pub(super) fn show(&self, lines: impl Iterator<Item = (ItemId, ExecId, StageProgress, bool)>) {
        self.table().show(lines);
    }

    pub(super) fn is_wanted(&self) -> bool {
        self.table().is_wanted()
    }

    pub(super) fn next_due(&self) -> Option<Instant> {
        self.table().next_due(Instant::now())
    }

    /// Hands out what there is.
    pub(super) fn hand_out(self: &Arc<Self>, standing: impl Fn(&ItemId, &ExecId) -> Standing) {
        let given = self.table().hand_out(Instant::now(), standing);
        for ideas in given {
            // A ticket that nobody waits for any more comes back at once.
            let _waits_no_longer = ideas.send(Ticket(Arc::clone(self)));
        }
    }

    fn table(&self) -> MutexGuard<'_, Table<Ticket>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
