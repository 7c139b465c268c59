//! Events of a run, as one stream. Progress bars, result files, `--json` lines and metrics consume
//! it; they never query the engine.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::Timestamp;
use crate::dependency::Dependency;
use crate::error::TrialError;
use crate::id::{ExecId, ItemId, RunId, TryId};
use crate::item_name::ItemName;
use crate::phase::Phase;
use crate::record::Settlement;
use crate::search::SearchEvent;
use crate::wire::control::StopLevel;

/// One event.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunEvent {
    /// When the coordinator observed it.
    pub at: Timestamp,
    /// The event itself.
    #[serde(flatten)]
    pub kind: EventKind,
}

/// Kinds of events. Those about items are named after trials, for items of every kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum EventKind {
    /// A session of the run started. Items that earlier sessions settled follow as replayed
    /// settlements.
    RunStarted {
        /// Run.
        run: RunId,
        /// Name of the job.
        job: String,
        /// Number of the session, from 1.
        epoch: u32,
        /// Number of trials in the plan.
        total: u64,
        /// Start of the first session.
        started_at: Timestamp,
    },
    /// The journal and the plan are accepted, every replayed settlement was sent, and the session
    /// goes on to work. A session that is refused ends before this event.
    RunOpened,
    /// This session took the run over from an owner that had not released the lock.
    LockTakeover {
        /// The previous owner.
        former: String,
        /// Why it was taken over.
        reason: TakeoverReason,
    },
    /// An execution entered a phase. May be missing, but never follows the end of the execution:
    /// that of its trial, a retry, a loss or [`ExecutionEnded`](Self::ExecutionEnded).
    TrialPhase {
        /// Item.
        item: ItemId,
        /// Its name.
        #[serde(flatten)]
        name: ItemName,
        /// Try.
        #[serde(rename = "try")]
        try_id: TryId,
        /// Execution.
        exec: ExecId,
        /// Phase.
        phase: Phase,
    },
    /// An execution waits for a service that does not answer; its timeouts are paused. Only a hint.
    TrialParked {
        /// Item.
        item: ItemId,
        /// Its name.
        #[serde(flatten)]
        name: ItemName,
        /// Try.
        #[serde(rename = "try")]
        try_id: TryId,
        /// Execution.
        exec: ExecId,
        /// The service.
        dependency: Dependency,
    },
    /// An execution that waited for a service continues, or ended. Only a hint.
    TrialUnparked {
        /// Item.
        item: ItemId,
        /// Its name.
        #[serde(flatten)]
        name: ItemName,
        /// Try.
        #[serde(rename = "try")]
        try_id: TryId,
        /// Execution.
        exec: ExecId,
    },
    /// An execution failed because of the infrastructure and will be retried.
    TrialRetry {
        /// Item.
        item: ItemId,
        /// Its name.
        #[serde(flatten)]
        name: ItemName,
        /// The failed try.
        #[serde(rename = "try")]
        try_id: TryId,
        /// The failed execution.
        exec: ExecId,
        /// Why.
        error: TrialError,
        /// Wait before the next try, milliseconds.
        wait_ms: u64,
    },
    /// An execution ended without a verdict; the trial is still pending.
    TrialLost {
        /// Item.
        item: ItemId,
        /// Its name.
        #[serde(flatten)]
        name: ItemName,
        /// Try.
        #[serde(rename = "try")]
        try_id: TryId,
        /// Execution.
        exec: ExecId,
    },
    /// An execution that was shown in a phase no longer runs, and its result does not count:
    /// another try is pending, or the execution was abandoned before.
    ExecutionEnded {
        /// Item.
        item: ItemId,
        /// Its name.
        #[serde(flatten)]
        name: ItemName,
        /// Try.
        #[serde(rename = "try")]
        try_id: TryId,
        /// Execution.
        exec: ExecId,
    },
    /// A trial has its terminal record. It ends every execution of the trial.
    TrialSettled {
        /// Position in the plan's order.
        ordinal: u64,
        /// Whether an earlier session settled it.
        replayed: bool,
        /// The record.
        settlement: Arc<Settlement>,
    },
    /// A user retries a settled trial: its record no longer counts, and it is pending again.
    TrialReopened {
        /// Item.
        item: ItemId,
        /// Its name.
        #[serde(flatten)]
        name: ItemName,
        /// Position in the plan's order.
        ordinal: u64,
        /// The record that no longer counts; `None` for a reader.
        #[serde(skip)]
        former: Option<Arc<Settlement>>,
    },
    /// The run is stopping.
    RunStopping {
        /// How hard.
        level: StopLevel,
    },
    /// A user paused the run: no trial begins, and running ones go on.
    RunPaused,
    /// A user ended the pause.
    RunContinued,
    /// A warning for the user.
    Warning {
        /// The problem, and how to fix it.
        message: String,
    },
    /// Items without a result, by size class and by whether a worker could run them. Of jobs whose
    /// workers are processes of their own: every few seconds if it changed.
    Backlog {
        /// Items without a result, by size class: `c0`, `c1`, …
        pending: BTreeMap<String, u64>,
        /// Those of them that no worker of the pool could run.
        waiting_for_worker: Vec<WaitingItems>,
    },
    /// The session ended.
    RunEnded {
        /// Whether it was stopped before everything was settled.
        cancelled: bool,
        /// Trials without a record.
        owed: u64,
    },
    /// Progress of a search.
    #[serde(untagged)]
    Search(SearchEvent),
}

/// Items that wait for a worker that could run them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitingItems {
    /// Number of items.
    pub items: u64,
    /// Their size class: `c0`, `c1`, …
    pub class: String,
    /// Their requirements of a worker.
    pub needs: String,
    /// Why no worker of the pool could run them.
    pub reason: String,
    /// How long they wait in all before they fail, s; `None` if they wait without a limit, because
    /// the pool is elastic.
    pub timeout_sec: Option<u64>,
}

/// Why a run was taken over from its owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TakeoverReason {
    /// The owner is dead.
    Dead,
    /// The owner sent no heartbeat for too long.
    Silent,
    /// A user forced it.
    Forced,
}
