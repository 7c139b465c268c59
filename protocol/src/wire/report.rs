//! Reports: what workers say of executions, in one total order per run.

use serde::{Deserialize, Serialize};

use crate::blob::BlobRef;
use crate::digest::Digest;
use crate::id::{ExecId, ItemId, RunId, TryId, WorkerId};
use crate::limits;
use crate::phase::Phase;
use crate::record::{Durations, ExecutionRecord, LostReason, Timestamps, Verdict};

/// What a report of a result takes, roughly: most are encoded without copying them as they grow.
const USUAL_BYTES: usize = 1280;

/// One report. (execution, kind) is said at most once; reading it twice is harmless.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Run.
    pub run: RunId,
    /// Item.
    pub item: ItemId,
    /// Try.
    #[serde(rename = "try")]
    pub try_id: TryId,
    /// Execution.
    pub exec: ExecId,
    /// Digest of the spec the execution was made under.
    pub spec: Digest,
    /// Worker; information, never evidence.
    pub worker: WorkerId,
    /// What is said.
    pub body: ReportBody,
}

/// What a report says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ReportBody {
    /// The execution began. Said only of suspicious deliveries, later tries, and executions that
    /// last longer than a second.
    Started,
    /// The execution ended with a verdict.
    Result(Box<ResultBody>),
    /// The execution ended without one.
    Lost {
        /// Why.
        reason: LostReason,
        /// Where it was, where that is known.
        #[serde(default)]
        phase: Option<Phase>,
        /// What was saved of it.
        #[serde(default)]
        record: Option<BlobRef>,
        /// What its environment cost, where that is known.
        #[serde(default, deserialize_with = "crate::cost::read")]
        cost: f64,
    },
}

/// What a report is about. An execution says each at most once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReportKind {
    /// The beginning.
    #[default]
    Started,
    /// The end with a verdict.
    Result,
    /// The end without one.
    Lost,
}

/// The small form of an execution's result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ResultBody {
    /// What it came to.
    pub verdict: Verdict,
    /// Durations.
    pub durations: Durations,
    /// Times.
    pub timestamps: Timestamps,
    /// The record blob. Absent when the record has nothing beyond this report.
    #[serde(default)]
    pub record: Option<BlobRef>,
}

impl ReportBody {
    /// What it is about.
    pub const fn kind(&self) -> ReportKind {
        match self {
            Self::Started => ReportKind::Started,
            Self::Result(_) => ReportKind::Result,
            Self::Lost { .. } => ReportKind::Lost,
        }
    }
}

impl Report {
    /// The report as it travels, or its size when that is over [`limits::REPORT_BYTES`].
    ///
    /// # Errors
    /// The size in bytes.
    pub fn encode(&self) -> Result<Vec<u8>, usize> {
        let mut bytes = Vec::with_capacity(USUAL_BYTES);
        serde_json::to_writer(&mut bytes, self).expect("a report has only text keys");
        if bytes.len() <= limits::REPORT_BYTES { Ok(bytes) } else { Err(bytes.len()) }
    }
}

impl ExecutionRecord {
    /// The execution's report that says `body`.
    pub fn report(&self, body: ReportBody) -> Report {
        let (run, item, try_id, exec) = self.ids();
        let (spec, worker) = match self {
            Self::Eval(record) => (record.spec, record.worker.clone()),
            Self::Ideas(record) => (record.spec, record.worker.clone()),
            Self::Trial(record) => (record.spec, record.worker.clone()),
        };
        Report { run, item, try_id, exec, spec, worker, body }
    }
}
