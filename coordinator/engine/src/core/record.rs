//! Journal records: every decision that cannot be derived again.

use rollout_protocol::digest::Digest;
use rollout_protocol::error::TrialError;
use rollout_protocol::event::TakeoverReason;
use rollout_protocol::farm::FarmRecord;
use rollout_protocol::id::{ExecId, ItemId, OwnerId, RunId, TryId, WorkerId};
use rollout_protocol::record::LostReason;
use rollout_protocol::retry::RetryPolicy;
use rollout_protocol::wire::claim::Claim;
use rollout_protocol::wire::control::StopLevel;
use rollout_protocol::wire::position::ReportPosition;
use rollout_protocol::wire::report::Report;
use serde::{Deserialize, Serialize};

use super::event_chunk::AnnouncedChunk;

/// One record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JournalRecord {
    /// A session began: the first record of every segment.
    Opened(Box<SessionStart>),
    /// These tries may be in the queue from now on.
    Offered {
        /// The tries.
        tries: Vec<OfferedTry>,
    },
    /// A report was read.
    Reported {
        /// Its position.
        position: ReportPosition,
        /// The complete report.
        report: Box<Report>,
    },
    /// An announcement of hook events was read. It changes no item.
    EventChunk {
        /// Its position.
        position: ReportPosition,
        /// The chunk.
        chunk: Box<AnnouncedChunk>,
    },
    /// A claim was answered `run`.
    Claimed {
        /// The claim.
        claim: Claim,
    },
    /// An execution was declared lost by the coordinator.
    Lost {
        /// Item.
        item: ItemId,
        /// Execution.
        exec: ExecId,
        /// Why.
        reason: LostReason,
    },
    /// The item runs under another spec from now on: no result below the floor settles it.
    Respecified {
        /// Item.
        item: ItemId,
        /// Its present spec.
        spec: Digest,
    },
    /// Executions were first heard of in a heartbeat of their worker.
    Heard {
        /// The worker.
        worker: WorkerId,
        /// The executions, in the order in which they were heard of.
        executions: Vec<SeenExecution>,
    },
    /// Offers were withdrawn without a verdict: their items are pending again.
    Withdrawn {
        /// The tries.
        tries: Vec<WithdrawnTry>,
    },
    /// The store's copy of a report that the queue lost.
    Recovered {
        /// The report.
        report: Box<Report>,
    },
    /// A user cancelled these items: no later result settles them.
    Cancelled {
        /// The items.
        items: Vec<NamedItem>,
    },
    /// These items end without any execution.
    GivenUp {
        /// The items.
        items: Vec<NamedItem>,
        /// Why.
        error: Box<TrialError>,
    },
    /// A user retries settled items within the session; [`Reopened`](Self::Reopened) follows. Earlier
    /// versions would count both results of such an item: they cannot read this record, and refuse
    /// the run.
    Retried {
        /// Number of items.
        items: u64,
    },
    /// Settled items that run again: a user retried them within the session. A repair writes it for
    /// items that a session reopened, or may have reopened, whose opening is lost.
    Reopened {
        /// Epoch of that session: results of earlier tries do not count.
        epoch: u32,
        /// The items.
        items: Vec<ItemId>,
    },
    /// A stop was requested.
    Stopping {
        /// Stop level.
        level: StopLevel,
    },
    /// A user paused the run, or ended the pause. The next session is not paused.
    Paused {
        /// Whether it is paused from now on.
        is_paused: bool,
    },
    /// A decision of the farm whose samples are the items of the run. It changes no item.
    Farm(Box<FarmRecord>),
    /// The session ended in order.
    Closed(SessionEnd),
}

/// The beginning of a session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SessionStart {
    /// Format of the records that follow.
    pub format: u32,
    /// Run.
    pub run: RunId,
    /// Epoch: the number of the segment.
    pub epoch: u32,
    /// Digest of the plan.
    pub plan: Digest,
    /// The retry policy of the session: decisions made under it stand.
    pub retry: RetryPolicy,
    /// Version of the program.
    pub version: String,
    /// Host and process that own the run now, for people.
    pub owner: String,
    /// The previous segment, and how much of it counts.
    #[serde(default)]
    pub former: Option<PredecessorSegment>,
    /// Pool to whose workers the tries of this epoch are offered. Absent in a run without a server,
    /// and in journals of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// The owner's id in the KV store, if it took the run's lock there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<OwnerId>,
    /// The takeover, if the previous owner had not released the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub takeover: Option<Takeover>,
    /// Segments that this one replaces: damaged ones with all of their readable records, or those of
    /// a compaction with everything that is still needed, and those that they had replaced.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub replaces: Vec<ReplacedSegment>,
    /// Settled items that run again: their previous settlements are superseded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reopened: Vec<ItemId>,
    /// Items that later records of this segment reopen, each repeated as often: a repair joins the
    /// sessions of a run in one segment.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reopened_within: Vec<ItemId>,
}

/// A segment that a repair or a compaction replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplacedSegment {
    /// Its epoch.
    pub epoch: u32,
    /// Its length in bytes, including the damaged places.
    pub bytes: u64,
}

/// A takeover of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Takeover {
    /// The previous owner, for people.
    pub former: String,
    /// Reason of the takeover.
    pub reason: TakeoverReason,
}

/// How much of a previous segment counts: everything behind it is ignored forever.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PredecessorSegment {
    /// Its epoch.
    pub epoch: u32,
    /// Its valid length, bytes.
    pub bytes: u64,
    /// Digest of these bytes.
    pub digest: Digest,
}

/// One offered try.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct OfferedTry {
    /// Item.
    #[serde(rename = "i")]
    pub item: ItemId,
    /// Try.
    #[serde(rename = "t")]
    pub try_id: TryId,
    /// Digest of the spec it was offered under.
    #[serde(rename = "s")]
    pub spec: Digest,
}

/// One execution that a heartbeat showed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeenExecution {
    /// Item.
    #[serde(rename = "i")]
    pub item: ItemId,
    /// Try.
    #[serde(rename = "t")]
    pub try_id: TryId,
    /// Execution.
    #[serde(rename = "e")]
    pub exec: ExecId,
}

/// One withdrawn try.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct WithdrawnTry {
    /// Item.
    #[serde(rename = "i")]
    pub item: ItemId,
    /// Try.
    #[serde(rename = "t")]
    pub try_id: TryId,
}

/// An item and its spec: the journal may hold nothing else of the item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedItem {
    /// Item.
    #[serde(rename = "i")]
    pub item: ItemId,
    /// Digest of its spec.
    #[serde(rename = "s")]
    pub spec: Digest,
}

/// The end of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionEnd {
    /// Whether it was stopped before everything was settled, or while more items could come.
    pub cancelled: bool,
    /// Planned items without a settlement.
    pub owed: u64,
}
