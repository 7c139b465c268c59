//! What the journal holds: every decision that cannot be derived again.

use rollout_protocol::digest::Digest;
use rollout_protocol::error::TrialError;
use rollout_protocol::event::TakeoverReason;
use rollout_protocol::id::{ExecId, ItemId, OwnerId, RunId, TryId, WorkerId};
use rollout_protocol::record::LostReason;
use rollout_protocol::retry::RetryPolicy;
use rollout_protocol::wire::claim::Claim;
use rollout_protocol::wire::control::StopLevel;
use rollout_protocol::wire::position::ReportPosition;
use rollout_protocol::wire::report::Report;
use serde::{Deserialize, Serialize};

/// One record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JournalRecord {
    /// A sitting began: the first record of every segment.
    Opened(Box<SessionStart>),
    /// These tries may be in the queue from now on.
    Offered {
        /// The tries.
        tries: Vec<OfferedTry>,
    },
    /// A report was read.
    Reported {
        /// Its place.
        position: ReportPosition,
        /// The report, whole.
        report: Box<Report>,
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
    /// The item runs under another spec from now on: nothing below the floor settles it.
    Respecified {
        /// Item.
        item: ItemId,
        /// Its present spec.
        spec: Digest,
    },
    /// Executions were first heard of by the hello of their worker.
    Heard {
        /// The worker.
        worker: WorkerId,
        /// The executions, in the order of their hearing.
        executions: Vec<SeenExecution>,
    },
    /// Offers were taken back without a verdict: their items are owed again.
    Withdrawn {
        /// The tries.
        tries: Vec<WithdrawnTry>,
    },
    /// What the store had of a report that the queue lost.
    Recovered {
        /// The report.
        report: Box<Report>,
    },
    /// A report was read whose record blob the store does not have, or could not be asked for.
    Unbacked {
        /// Its place.
        position: ReportPosition,
        /// The report, whole.
        report: Box<Report>,
        /// Which of the two.
        why: RecordBlobStatus,
    },
    /// A record blob was looked for after all.
    Checked {
        /// Item.
        item: ItemId,
        /// Execution.
        exec: ExecId,
        /// Whether the store has it.
        found: bool,
    },
    /// A user ended these items for good: no later result settles them.
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
    /// Settled items run again by a sitting whose opening is lost, or may have been reopened by it.
    /// Only a repair writes this.
    Reopened {
        /// Epoch of that sitting: results of tries below it do not count.
        epoch: u32,
        /// The items.
        items: Vec<ItemId>,
    },
    /// A stop was asked for.
    Stopping {
        /// How hard.
        level: StopLevel,
    },
    /// The sitting ended in order.
    Closed(SessionEnd),
}

/// The beginning of a sitting.
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
    /// The retry policy of the sitting: what it decided by it stays decided.
    pub retry: RetryPolicy,
    /// Version of the program.
    pub version: String,
    /// Host and process that own the run now, for people.
    pub owner: String,
    /// The segment before this one, and how much of it counts.
    #[serde(default)]
    pub former: Option<PredecessorSegment>,
    /// Pool whose workers the tries of this epoch are offered to. Absent in a run without a server,
    /// and in journals of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// Who the owner is where other hosts ask, if it took the run's lock there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<OwnerId>,
    /// Whose run it was until then, if that owner had not let it go.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub takeover: Option<Takeover>,
    /// Damaged segments that this one replaces with everything that could be read of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub replaces: Vec<ReplacedSegment>,
    /// Settled items that run again: what was settled of them before is superseded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reopened: Vec<ItemId>,
    /// Items that later records of this segment reopen, each as often as they do: a repair joins the
    /// sittings of a run in one segment.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reopened_within: Vec<ItemId>,
}

/// A segment that a repair replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplacedSegment {
    /// Its epoch.
    pub epoch: u32,
    /// Its length, bytes, the damaged places among them.
    pub bytes: u64,
}

/// A run that was taken over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Takeover {
    /// The owner before, for people.
    pub former: String,
    /// Why it was taken over.
    pub reason: TakeoverReason,
}

/// How much of a former segment counts: whatever stands behind is ignored for ever.
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

/// One execution that a hello showed.
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

/// An item with what it runs under: perhaps nothing else of it was ever journalled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedItem {
    /// Item.
    #[serde(rename = "i")]
    pub item: ItemId,
    /// Digest of its spec.
    #[serde(rename = "s")]
    pub spec: Digest,
}

/// How it stands with the record blob of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RecordBlobStatus {
    /// It was looked for during one lease and is not there: the result does not count, and the
    /// item is tried again.
    Missing,
    /// The store cannot be asked: the result counts, and is looked for later.
    Unchecked,
}

/// The end of a sitting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionEnd {
    /// Whether it was stopped before everything was settled.
    pub cancelled: bool,
    /// Planned items without a settlement.
    pub owed: u64,
}
