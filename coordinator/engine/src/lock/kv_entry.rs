//! The KV entry of a run.

use bytes::Bytes;
use rollout_protocol::Timestamp;
use rollout_protocol::wire::position::ReportPosition;
use serde::{Deserialize, Serialize};

use super::owner::LockOwner;
use crate::journal::JournalPrefix;
use crate::manifest::RunState;

/// The format of entries.
const FORMAT: u32 = 1;

/// Owner and state of a run. The journal is the truth; this is a copy for other hosts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunEntry {
    /// Format of the entry.
    pub format: u32,
    /// Owner, or the last one when the state shows that it released the run.
    pub owner: LockOwner,
    /// The owner's epoch.
    pub epoch: u32,
    /// State of the run.
    pub state: RunState,
    /// The durable prefix of the journal: a run directory without it does not belong to this run
    /// any more. A new owner keeps its predecessor's until its own segment has a record.
    pub head: Option<JournalPrefix>,
    /// Position of the last report that this prefix holds.
    pub position: Option<ReportPosition>,
    /// Name of the job.
    pub job: String,
    /// Pool of its workers.
    pub pool: String,
    /// Identity of its blob store.
    pub store: String,
    /// Whether its owner leaves offers and executions to the next one when it stops.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hands_over: bool,
    /// Items of the plan.
    pub total: u64,
    /// Of these, settled ones.
    pub settled: u64,
    /// When the owner took the run.
    pub started_at: Timestamp,
    /// When this was written. Only for people.
    pub updated_at: Timestamp,
}

impl RunEntry {
    pub(super) const FORMAT: u32 = FORMAT;

    /// Parses a KV value; `None` when it has no format that this version knows.
    pub fn parse(value: &Bytes) -> Option<Self> {
        serde_json::from_slice(value).ok().filter(|entry: &Self| entry.format <= FORMAT)
    }

    /// Whether work of this run may be in its pool: it runs, or waits for the next owner.
    pub fn uses_pool(&self) -> bool {
        match self.state {
            RunState::Running => true,
            RunState::Stopped => self.hands_over,
            RunState::Completed => false,
        }
    }

    pub(super) fn to_bytes(&self) -> Bytes {
        serde_json::to_vec(self).expect("text keys only").into()
    }
}
