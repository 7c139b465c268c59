//! Settlements: the terminal records of items, with the executions that led to them.

use serde::{Deserialize, Serialize};

use super::{Durations, Timestamps, TrialRecord, Verdict};
use crate::Timestamp;
use crate::blob::BlobRef;
use crate::id::{ExecId, ItemId, TryId, WorkerId};
use crate::item_name::ItemName;
use crate::phase::Phase;
use crate::spec::budget::ModelUse;
use crate::spec::trial::TrialName;

/// The one terminal record of an item, one line of `records/<n>.jsonl`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Settlement {
    /// Item.
    pub item: ItemId,
    /// Its name.
    #[serde(flatten)]
    pub name: ItemName,
    /// The execution that settled it; absent if none did (a cancelled item that never ran).
    #[serde(default)]
    pub by: Option<Execution>,
    /// The verdict.
    pub verdict: Verdict,
    /// Executions that did not settle it, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub superseded: Vec<Execution>,
    /// When the coordinator settled it.
    pub settled_at: Timestamp,
    /// Commit of the task's repository, according to the plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_git_commit_id: Option<String>,
}

impl Settlement {
    /// The name of the trial; `None` if another item was settled.
    pub const fn trial(&self) -> Option<&TrialName> {
        self.name.trial()
    }

    /// Commit of the task's repository: the one that the execution ran, else the one of the plan.
    pub fn task_commit<'a>(&'a self, record: Option<&'a TrialRecord>) -> Option<&'a str> {
        let ran = record.and_then(|record| record.task_git_commit_id.as_deref());
        ran.or(self.task_git_commit_id.as_deref())
    }
}

/// One execution, as known to the coordinator.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Execution {
    /// Try.
    #[serde(rename = "try")]
    pub try_id: TryId,
    /// Execution.
    pub exec: ExecId,
    /// Worker.
    pub worker: WorkerId,
    /// How it ended.
    pub end: ExecutionEnd,
    /// Its record, if it has more than its report.
    #[serde(default)]
    pub record: Option<BlobRef>,
    /// Durations, if it ended with a report.
    #[serde(default)]
    pub durations: Option<Durations>,
    /// Times, if it ended with a report.
    #[serde(default)]
    pub timestamps: Option<Timestamps>,
}

/// How an execution ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "how", rename_all = "snake_case")]
pub enum ExecutionEnd {
    /// It reported a verdict.
    Reported {
        /// The verdict.
        verdict: Verdict,
    },
    /// It ended without a verdict.
    Lost {
        /// Why.
        reason: LostReason,
        /// The phase it was in.
        #[serde(default)]
        phase: Option<Phase>,
        /// Cost of its environment, if known.
        #[serde(default, deserialize_with = "crate::cost::read")]
        cost: f64,
        /// Use of its model calls, if known.
        #[serde(default, skip_serializing_if = "ModelUse::is_none")]
        model_use: ModelUse,
    },
    /// It had not ended when the item was settled.
    Open,
}

/// Why an execution ended without a verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LostReason {
    /// Its worker process died.
    WorkerDied,
    /// No live worker shows it.
    Unreachable,
    /// No live worker shows it since the queue itself was unreachable: says nothing about the item.
    Outage,
    /// The run was stopped while it ran.
    Stopped,
    /// The process that was both coordinator and worker died: says nothing about the item.
    ProcessDied,
}

impl LostReason {
    /// The name used in documents.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::WorkerDied => "worker_died",
            Self::Unreachable => "unreachable",
            Self::Outage => "outage",
            Self::Stopped => "stopped",
            Self::ProcessDied => "process_died",
        }
    }

    /// Whether it counts against the item: only the death of a worker may be caused by the item.
    pub const fn is_death(self) -> bool {
        matches!(self, Self::WorkerDied)
    }

    /// Whether it counts against the limit of tries: executions that Rollout ended itself do not.
    pub const fn counts(self) -> bool {
        matches!(self, Self::WorkerDied | Self::Unreachable)
    }
}
