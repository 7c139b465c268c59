//! The KV entry of a run.

use bytes::Bytes;
use rollout_protocol::Timestamp;
use rollout_protocol::wire::position::ReportPosition;
use serde::{Deserialize, Serialize};

use super::owner::LockOwner;
use crate::engine::journal::JournalPrefix;
use crate::engine::manifest::RunState;

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

    pub(super) fn to_bytes(&self) -> Bytes {
        serde_json::to_vec(self).expect("text keys only").into()
    }
}
