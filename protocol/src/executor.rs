//! Trials that a program starts one by one: requests, handles and statuses.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::Timestamp;
use crate::dependency::Dependency;
use crate::error::TrialError;
use crate::id::{ExecId, ItemId, RunId, TryId};
use crate::phase::Phase;
use crate::record::Settlement;
use crate::spec::trial::{TrialName, TrialRef};

/// A request to start a trial. It has references only: the documents are in the blob store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartTrial {
    /// The trial. A trial is started once, however often it is requested.
    pub trial: TrialName,
    /// The documents that it runs under.
    pub spec: TrialRef,
}

/// A trial that was started.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TrialHandle {
    /// Run.
    pub run: RunId,
    /// Identifies the trial in the run, and in the calls of an executor.
    pub item: ItemId,
    /// Its name.
    pub trial: TrialName,
}

/// Status of a trial that was started.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum TrialStatus {
    /// Waits for a worker, or runs on one that has not said so yet.
    Queued,
    /// An execution runs, as far as is known.
    Running {
        /// Try.
        #[serde(rename = "try")]
        try_id: TryId,
        /// Execution.
        exec: ExecId,
        /// Phase.
        phase: Phase,
        /// Service that it waits for; its time limits are paused.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        waiting_for: Option<Dependency>,
    },
    /// An execution failed because of the infrastructure; another one follows.
    Waiting {
        /// Why it failed.
        error: TrialError,
        /// When the trial is tried again.
        next_try_at: Timestamp,
    },
    /// It has its one result.
    Settled {
        /// The result.
        settlement: Arc<Settlement>,
    },
}

impl TrialStatus {
    /// The result, if the trial has one.
    pub const fn settlement(&self) -> Option<&Arc<Settlement>> {
        match self {
            Self::Settled { settlement } => Some(settlement),
            Self::Queued | Self::Running { .. } | Self::Waiting { .. } => None,
        }
    }

    /// The word used in documents.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Running { .. } => "running",
            Self::Waiting { .. } => "waiting",
            Self::Settled { .. } => "settled",
        }
    }
}

impl StartTrial {
    /// The trial's key.
    pub fn item(&self) -> ItemId {
        self.trial.item()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::Digest;

    #[test]
    fn executor_documents_round_trip() {
        let trial = TrialName {
            agent: "agent".to_owned(),
            dataset: "dataset".to_owned(),
            task: "task".to_owned(),
            attempt: 2,
        };
        let [settings, agent, task] =
            ["settings", "agent", "task"].map(|t| Digest::sha256(t.as_bytes()));
        let start = StartTrial { trial, spec: TrialRef { settings, agent, task, attempt: 2 } };
        let text = serde_json::to_string(&start).expect("text keys only");
        assert_eq!(serde_json::from_str::<StartTrial>(&text).expect("read"), start);
        let running = TrialStatus::Running {
            try_id: TryId::first(1),
            exec: ExecId::from_bytes([3; 16]),
            phase: Phase::AgentExecution,
            waiting_for: None,
        };
        let value = serde_json::to_value(&running).expect("text keys only");
        assert_eq!((&value["state"], &value["try"]), (&"running".into(), &"1-1".into()));
        assert_eq!(serde_json::from_value::<TrialStatus>(value).expect("read"), running);
    }
}
