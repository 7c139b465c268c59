//! What happens in a run, as one stream. Progress bars, result files, `--json` lines and metrics
//! consume it; they never ask the engine.

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
    /// When the coordinator saw it.
    pub at: Timestamp,
    /// What happened.
    #[serde(flatten)]
    pub kind: EventKind,
}

/// Kinds of events. Those about items are called after trials, whatever the items are.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum EventKind {
    /// A sitting of the run began. What former sittings settled follows as replayed settlements.
    RunStarted {
        /// Run.
        run: RunId,
        /// Name of the job.
        job: String,
        /// Number of the sitting, from 1.
        epoch: u32,
        /// Trials of the plan.
        total: u64,
        /// Start of the first sitting.
        started_at: Timestamp,
    },
    /// This sitting took the run over from an owner that had not let it go.
    LockTakeover {
        /// Who that was.
        former: String,
        /// Why it was taken over.
        reason: TakeoverReason,
    },
    /// An execution entered a phase. May be missing, but never follows the end of the execution: that
    /// of its trial, a retry, a loss or [`ExecutionEnded`](Self::ExecutionEnded).
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
    /// An execution waits for a service that gives no answer; its clocks stand still. Only a hint.
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
    /// An execution failed by the infrastructure's fault and will be tried again.
    TrialRetry {
        /// Item.
        item: ItemId,
        /// Its name.
        #[serde(flatten)]
        name: ItemName,
        /// Try that failed.
        #[serde(rename = "try")]
        try_id: TryId,
        /// Execution that failed.
        exec: ExecId,
        /// Why.
        error: TrialError,
        /// Wait before the next try, milliseconds.
        wait_ms: u64,
    },
    /// An execution ended without a verdict; the trial is still owed.
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
    /// An execution that was shown in a phase runs no more, and its result does not count: another
    /// try is on its way, or it was given up before.
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
        /// Whether a former sitting settled it.
        replayed: bool,
        /// The record.
        settlement: Arc<Settlement>,
    },
    /// The run is being stopped.
    RunStopping {
        /// How hard.
        level: StopLevel,
    },
    /// Something a person should know.
    Warning {
        /// What, and what to do.
        message: String,
    },
    /// The sitting ended.
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

/// Why a run was taken over from its owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TakeoverReason {
    /// The owner is dead.
    Dead,
    /// The owner said nothing for too long.
    Silent,
    /// A user said so.
    Forced,
}
