//! Concurrency permits of a search: limits on how many commands of a kind run at once over all
//! workers, and on how many start per minute.
//!
//! An execution requests its permit with a claim before such a command starts. Only the engine
//! grants permits: it knows which executions still run, and whether this process still owns the
//! run.
//!
//! A permit returns when its command has ended, when the execution that holds it starts over, or
//! when that execution is reported or lost. A coordinator that starts does not know who holds
//! permits: heartbeats show it. It grants none before it has heard every worker that may hold one.

mod permit_table;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rollout_protocol::id::{ExecId, ItemId};
use rollout_protocol::wire::claim::ClaimAnswer;
use rollout_protocol::wire::stage::{PermitKinds, StageProgress};
use tokio::sync::oneshot;
use tokio::time::Instant;

pub use self::permit_table::ConcurrencyLimits;
pub(super) use self::permit_table::HolderStatus;
use self::permit_table::PermitTable;

/// The concurrency permits of a search.
#[derive(Debug)]
pub struct ConcurrencyLimiter {
    caps: ConcurrencyLimits,
    table: Mutex<PermitTable>,
}

impl ConcurrencyLimiter {
    /// A limiter for `caps`; `None` when nothing is limited.
    pub fn new(caps: ConcurrencyLimits) -> Option<Arc<Self>> {
        let table = Mutex::new(PermitTable::new(caps));
        (caps != ConcurrencyLimits::default()).then(|| Arc::new(Self { caps, table }))
    }

    /// Stages for which workers must request a permit.
    pub fn limited_stages(&self) -> PermitKinds {
        let ConcurrencyLimits { llm, sweeps, interval } = self.caps;
        PermitKinds { llm: llm.is_some() || interval.is_some(), sweep: sweeps.is_some() }
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
        progress: StageProgress,
        reply: oneshot::Sender<ClaimAnswer>,
    ) {
        self.table().request(item, exec, progress, reply);
    }

    /// A stage of an execution has ended.
    pub(super) fn end(&self, exec: ExecId, progress: StageProgress) {
        self.table().end(exec, progress);
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
    pub(super) fn grant(&self, status: impl Fn(&ItemId, &ExecId) -> HolderStatus) {
        self.table().grant(Instant::now(), status);
    }

    fn table(&self) -> MutexGuard<'_, PermitTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
