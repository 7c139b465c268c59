//! Reports: messages of workers about executions, in one total order per run.

use serde::{Deserialize, Serialize};

use super::event_chunk::EventChunk;
use crate::Timestamp;
use crate::blob::BlobRef;
use crate::digest::Digest;
use crate::error::TrialError;
use crate::id::{ExecId, ItemId, RunId, TryId, WorkerId};
use crate::limits;
use crate::phase::Phase;
use crate::record::{Durations, ExecutionRecord, LostReason, Timestamps, Verdict};
use crate::spec::budget::ModelUse;

/// Typical size of a result report: most are encoded without reallocating.
const USUAL_BYTES: usize = 1280;

/// One report. Each (execution, kind) is reported at most once, except that an execution announces
/// many chunks of events. Reading a report twice is harmless.
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
    /// Worker; information only, never proof.
    pub worker: WorkerId,
    /// The content.
    pub body: ReportBody,
}

/// The content of a report.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ReportBody {
    /// The execution started. Reported only for suspicious deliveries, later tries, and executions
    /// that last longer than a second.
    Started,
    /// The execution ended with a verdict.
    Result(Box<ResultBody>),
    /// The execution ended without a verdict.
    Lost {
        /// Why.
        reason: LostReason,
        /// The phase it was in, if known.
        #[serde(default)]
        phase: Option<Phase>,
        /// The partial record, if one was saved.
        #[serde(default)]
        record: Option<BlobRef>,
        /// Cost of its environment, if known.
        #[serde(default, deserialize_with = "crate::cost::read")]
        cost: f64,
        /// Use of its model calls, if known.
        #[serde(default, skip_serializing_if = "ModelUse::is_none")]
        model_use: ModelUse,
    },
    /// Hook events of the execution's harness are stored. It says nothing about the execution
    /// itself: one that is not known or not current changes nothing.
    Events(Box<EventChunk>),
}

/// Kind of a report. An execution reports each at most once, except [`Self::Events`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReportKind {
    /// The start.
    #[default]
    Started,
    /// The end with a verdict.
    Result,
    /// The end without a verdict.
    Lost,
    /// Stored events.
    Events,
}

/// Summary of an execution's result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ResultBody {
    /// The verdict.
    pub verdict: Verdict,
    /// Durations.
    pub durations: Durations,
    /// Times.
    pub timestamps: Timestamps,
    /// The record blob. Absent when the record contains nothing beyond this report.
    #[serde(default)]
    pub record: Option<BlobRef>,
}

impl ReportBody {
    /// The content of an execution that failed with `error` and has no record.
    pub fn failed(error: TrialError, durations: Durations, timestamps: Timestamps) -> Self {
        let verdict = Verdict::failed(error);
        Self::Result(Box::new(ResultBody { verdict, durations, timestamps, record: None }))
    }

    /// Its kind.
    pub const fn kind(&self) -> ReportKind {
        match self {
            Self::Started => ReportKind::Started,
            Self::Result(_) => ReportKind::Result,
            Self::Lost { .. } => ReportKind::Lost,
            Self::Events(_) => ReportKind::Events,
        }
    }

    /// Its number among the reports of its kind and execution; 0 for kinds that are reported once.
    pub const fn number(&self) -> u32 {
        match self {
            Self::Started | Self::Result(_) | Self::Lost { .. } => 0,
            Self::Events(chunk) => chunk.number,
        }
    }
}

impl Report {
    /// The same report with an error instead of its content; the execution ended at `now` if its content
    /// does not say when.
    #[must_use]
    pub fn failed(self, error: TrialError, now: Timestamp) -> Self {
        let (durations, timestamps) = match &self.body {
            ReportBody::Result(body) => (body.durations.clone(), body.timestamps.clone()),
            ReportBody::Started | ReportBody::Lost { .. } | ReportBody::Events(_) => {
                (Durations::default(), Timestamps::instant(now))
            }
        };
        Self { body: ReportBody::failed(error, durations, timestamps), ..self }
    }

    /// The encoded report.
    ///
    /// # Errors
    /// The size in bytes, if it exceeds [`limits::REPORT_BYTES`].
    pub fn encode(&self) -> Result<Vec<u8>, usize> {
        let mut bytes = Vec::with_capacity(USUAL_BYTES);
        serde_json::to_writer(&mut bytes, self).expect("a report has only text keys");
        if bytes.len() <= limits::REPORT_BYTES { Ok(bytes) } else { Err(bytes.len()) }
    }
}

impl ExecutionRecord {
    /// The report of an execution with a verdict, made from its record, which is stored as `blob`.
    pub fn result_report(&self, blob: BlobRef) -> Report {
        self.report(ReportBody::Result(Box::new(ResultBody {
            verdict: self.verdict(),
            durations: self.durations().clone(),
            timestamps: self.timestamps().clone(),
            record: Some(blob),
        })))
    }

    /// The execution's report with content `body`.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blob::MediaType;
    use crate::error::{ErrorClass, ErrorCode, ErrorType, RetryClass};
    use crate::harness::{HarnessOutcome, IntegrationLevel};
    use crate::record::{HarnessSummary, ItemOutcome, Rewards};

    /// A summary of about the largest size.
    fn summary() -> HarnessSummary {
        let empty = HarnessSummary {
            integration_level: IntegrationLevel::SdkControl,
            outcome: HarnessOutcome::Failure,
            objective: None,
            metrics: [].into(),
            metrics_left_out: 1,
            events: None,
        };
        let length = serde_json::to_string(&empty).expect("JSON").len();
        let name = "n".repeat(limits::HARNESS_SUMMARY_BYTES - length - 30);
        HarnessSummary { metrics: [(name, crate::harness::MetricValue::Null)].into(), ..empty }
    }

    fn report(harness: Option<Box<HarnessSummary>>, reward_keys: usize) -> Report {
        let name = |n: usize| format!("{n:02}{}", "\"".repeat(limits::REWARD_KEY_BYTES - 2));
        let rewards: Rewards =
            (0..reward_keys).map(|n| (name(n), -1.234_567_890_123_456e-300)).collect();
        let error = TrialError::new(
            ErrorType::AgentExecutionFailed,
            ErrorCode::TRIAL_OUTPUT_ERROR,
            ErrorClass::Agent,
            RetryClass::Permanent,
            "m".repeat(limits::ERROR_MESSAGE_BYTES),
        );
        let verdict =
            Verdict { outcome: ItemOutcome::Completed, rewards, harness, ..Verdict::failed(error) };
        let at = Timestamp::from_nanosecond(1_700_000_000_123_456_789).expect("in range");
        let timestamps = Timestamps {
            environment_setup_started_at: Some(at),
            environment_setup_ended_at: Some(at),
            agent_setup_started_at: Some(at),
            agent_setup_ended_at: Some(at),
            agent_execution_started_at: Some(at),
            agent_execution_ended_at: Some(at),
            verifier_started_at: Some(at),
            verifier_ended_at: Some(at),
            ..Timestamps::instant(at)
        };
        let body = ResultBody {
            verdict,
            durations: Durations { total_sec: 0.1 + 0.2, ..Durations::default() },
            timestamps,
            record: Some(BlobRef::for_bytes(b"record", MediaType::Json)),
        };
        Report {
            run: RunId::from_bytes([1; 16]),
            item: ItemId::for_trial("agent", "dataset", "task", 1),
            try_id: TryId::first(1),
            exec: ExecId::from_bytes([2; 16]),
            spec: Digest::sha256(b"spec"),
            worker: "worker".parse().expect("a token"),
            body: ReportBody::Result(Box::new(body)),
        }
    }

    #[test]
    fn report_with_all_rewards_error_and_harness_is_within_limit() {
        let largest = report(Some(Box::new(summary())), limits::REWARD_KEYS);
        let bytes = largest.encode().expect("it is within the limit");
        assert_eq!(serde_json::from_slice::<Report>(&bytes).expect("read"), largest);
    }

    #[test]
    fn report_without_harness_is_read_and_written_as_before() {
        let bytes = report(None, 1).encode().expect("small");
        assert!(!String::from_utf8_lossy(&bytes).contains("harness"));
        assert_eq!(serde_json::from_slice::<Report>(&bytes).expect("read"), report(None, 1));
    }

    #[test]
    fn failed_report_keeps_the_times_of_a_result() {
        let error = TrialError::transient(
            ErrorType::InternalError,
            ErrorCode::STORE_FAILED,
            "it is gone".to_owned(),
        );
        let now = Timestamp::from_second(1_800_000_000).expect("in range");
        let times = |report: Report| match report.failed(error.clone(), now).body {
            ReportBody::Result(body) => {
                assert_eq!((body.record, &body.verdict.outcome), (None, &ItemOutcome::Failed));
                (body.timestamps, body.durations)
            }
            other => panic!("{other:?}"),
        };
        let result = report(None, 1);
        let ReportBody::Result(body) = result.body.clone() else { panic!("a result") };
        assert_eq!(times(result.clone()), (body.timestamps, body.durations));
        let started = Report { body: ReportBody::Started, ..result };
        assert_eq!(times(started), (Timestamps::instant(now), Durations::default()));
    }
}
