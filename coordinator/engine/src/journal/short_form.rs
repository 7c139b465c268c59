//! Short form of the records that a farm has most of: reports of its executions, and completions. It has
//! each fact once, times as distances from the first one, and no names of lists with a fixed order.

use std::borrow::Cow;

use rollout_protocol::Timestamp;
use rollout_protocol::blob::{BlobRef, MediaType};
use rollout_protocol::digest::Digest;
use rollout_protocol::farm::{Completion, FarmRecord};
use rollout_protocol::id::{ExecId, ItemId, RunId, TryId, WorkerId};
use rollout_protocol::record::{Durations, Timestamps, Verdict};
use rollout_protocol::wire::position::{Incarnation, ReportPosition};
use rollout_protocol::wire::report::{Report, ReportBody, ResultBody};
use serde::{Deserialize, Serialize};

use crate::core::{JournalRecord, SessionStart};

/// Newest format of a segment that this version reads: it has records in the short form. Earlier
/// versions refuse it by its first record. Segments of runs that they can continue have `RUN_FORMAT`.
pub(crate) const JOURNAL_FORMAT: u32 = 2;

/// Form of the records in a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RecordForm {
    /// Every version reads it.
    Full,
    /// Short where there is a short form.
    Short,
}

impl RecordForm {
    /// The form in the segment with this opening.
    pub(super) fn of(opened: &SessionStart) -> Self {
        if opened.format < JOURNAL_FORMAT { Self::Full } else { Self::Short }
    }
}

/// A blob reference without the digest, which its address has. `rollout gc` finds the address in the text
/// of a journal.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct ShortBlob {
    #[serde(rename = "uri", with = "address")]
    digest: Digest,
    #[serde(rename = "n")]
    size_bytes: u64,
    #[serde(rename = "m", default, skip_serializing_if = "Option::is_none")]
    media_type: Option<MediaType>,
}

impl From<&BlobRef> for ShortBlob {
    fn from(blob: &BlobRef) -> Self {
        let BlobRef { digest, size_bytes, media_type } = *blob;
        Self { digest, size_bytes, media_type }
    }
}

impl From<ShortBlob> for BlobRef {
    fn from(blob: ShortBlob) -> Self {
        let ShortBlob { digest, size_bytes, media_type } = blob;
        Self { digest, size_bytes, media_type }
    }
}

/// A digest as the address of a blob.
mod address {
    use rollout_protocol::digest::Digest;
    use serde::de::Error as _;
    use serde::{Deserialize as _, Deserializer, Serializer};

    const SCHEME: &str = "cas://";

    pub(super) fn serialize<S: Serializer>(
        digest: &Digest,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{SCHEME}{digest}"))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Digest, D::Error> {
        let text = String::deserialize(deserializer)?;
        let digest: Option<Digest> =
            text.strip_prefix(SCHEME).and_then(|digest| digest.parse().ok());
        digest.ok_or_else(|| D::Error::custom("it is not the address of a blob"))
    }
}

/// A start or a result that was read from the queue, with its position.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ShortReport<'a> {
    #[serde(rename = "n")]
    incarnation: Incarnation,
    #[serde(rename = "q")]
    sequence: u64,
    #[serde(rename = "r")]
    run: RunId,
    #[serde(rename = "i")]
    item: ItemId,
    #[serde(rename = "t")]
    try_id: TryId,
    #[serde(rename = "e")]
    exec: ExecId,
    #[serde(rename = "s")]
    spec: Digest,
    #[serde(rename = "w")]
    worker: Cow<'a, WorkerId>,
    /// Absent for a start.
    #[serde(rename = "b", default, skip_serializing_if = "Option::is_none")]
    result: Option<ShortResult<'a>>,
}

#[derive(Debug, Serialize, Deserialize)]
struct ShortResult<'a> {
    #[serde(rename = "v")]
    verdict: Cow<'a, Verdict>,
    /// In the order of [`Durations`].
    #[serde(rename = "d")]
    durations: (f64, [Option<f64>; 4]),
    #[serde(rename = "x")]
    times: ShortTimes,
    #[serde(rename = "k", default, skip_serializing_if = "Option::is_none")]
    record: Option<ShortBlob>,
}

/// The first of [`Timestamps`]; how many nanoseconds later the eight of the phases are; and the last.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct ShortTimes(Timestamp, [Option<i64>; 8], i64);

/// Why a record in the short form cannot be read.
type Unreadable = &'static str;

impl<'a> ShortReport<'a> {
    /// The short form of a record; `None` if it has none.
    pub(super) fn of(record: &'a JournalRecord) -> Option<Self> {
        let JournalRecord::Reported { position, report } = record else { return None };
        let ReportPosition { incarnation, sequence, .. } = *position;
        if ReportPosition::for_report(incarnation, sequence, report) != *position {
            return None;
        }
        let Report { run, item, try_id, exec, spec, worker, body } = &**report;
        let result = match body {
            ReportBody::Started => None,
            ReportBody::Result(body) => Some(ShortResult::of(body)?),
            ReportBody::Lost { .. } | ReportBody::Events(_) => return None,
        };
        Some(Self {
            incarnation,
            sequence,
            run: *run,
            item: *item,
            try_id: *try_id,
            exec: *exec,
            spec: *spec,
            worker: Cow::Borrowed(worker),
            result,
        })
    }

    /// The record.
    pub(super) fn into_record(self) -> Result<JournalRecord, Unreadable> {
        let Self { incarnation, sequence, run, item, try_id, exec, spec, worker, result } = self;
        let body = match result {
            None => ReportBody::Started,
            Some(result) => ReportBody::Result(Box::new(result.into_body()?)),
        };
        let worker = worker.into_owned();
        let report = Box::new(Report { run, item, try_id, exec, spec, worker, body });
        let position = ReportPosition::for_report(incarnation, sequence, &report);
        Ok(JournalRecord::Reported { position, report })
    }
}

impl<'a> ShortResult<'a> {
    fn of(body: &'a ResultBody) -> Option<Self> {
        let Durations {
            total_sec,
            environment_setup_sec,
            agent_setup_sec,
            agent_execution_sec,
            verifier_sec,
        } = body.durations;
        let phases = [environment_setup_sec, agent_setup_sec, agent_execution_sec, verifier_sec];
        Some(Self {
            verdict: Cow::Borrowed(&body.verdict),
            durations: (total_sec, phases),
            times: ShortTimes::of(&body.timestamps)?,
            record: body.record.as_ref().map(ShortBlob::from),
        })
    }

    fn into_body(self) -> Result<ResultBody, Unreadable> {
        let Self { verdict, durations: (total_sec, phases), times, record } = self;
        let [environment_setup_sec, agent_setup_sec, agent_execution_sec, verifier_sec] = phases;
        Ok(ResultBody {
            verdict: verdict.into_owned(),
            durations: Durations {
                total_sec,
                environment_setup_sec,
                agent_setup_sec,
                agent_execution_sec,
                verifier_sec,
            },
            timestamps: times.into_timestamps()?,
            record: record.map(BlobRef::from),
        })
    }
}

impl ShortTimes {
    /// `None` if two of the times are centuries apart.
    fn of(times: &Timestamps) -> Option<Self> {
        let first = times.started_at;
        let after = |at: Timestamp| i64::try_from(at.as_nanosecond() - first.as_nanosecond()).ok();
        let phases = [
            times.environment_setup_started_at,
            times.environment_setup_ended_at,
            times.agent_setup_started_at,
            times.agent_setup_ended_at,
            times.agent_execution_started_at,
            times.agent_execution_ended_at,
            times.verifier_started_at,
            times.verifier_ended_at,
        ];
        let mut distances = [None; 8];
        for (distance, at) in distances.iter_mut().zip(phases) {
            if let Some(at) = at {
                *distance = Some(after(at)?);
            }
        }
        Some(Self(first, distances, after(times.ended_at)?))
    }

    fn into_timestamps(self) -> Result<Timestamps, Unreadable> {
        let Self(started_at, distances, last) = self;
        let at = |after: i64| {
            Timestamp::from_nanosecond(started_at.as_nanosecond() + i128::from(after))
                .map_err(|_| "it has a time outside the calendar")
        };
        let mut phases = [None; 8];
        for (phase, after) in phases.iter_mut().zip(distances) {
            if let Some(after) = after {
                *phase = Some(at(after)?);
            }
        }
        let [
            environment_setup_started_at,
            environment_setup_ended_at,
            agent_setup_started_at,
            agent_setup_ended_at,
            agent_execution_started_at,
            agent_execution_ended_at,
            verifier_started_at,
            verifier_ended_at,
        ] = phases;
        Ok(Timestamps {
            started_at,
            environment_setup_started_at,
            environment_setup_ended_at,
            agent_setup_started_at,
            agent_setup_ended_at,
            agent_execution_started_at,
            agent_execution_ended_at,
            verifier_started_at,
            verifier_ended_at,
            ended_at: at(last)?,
        })
    }
}

/// Completions of samples that ended together, and the records of their executions.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ShortCompletions {
    #[serde(rename = "c")]
    completions: Vec<Completion>,
    /// For each of them.
    #[serde(rename = "k")]
    records: Vec<Option<ShortBlob>>,
}

impl ShortCompletions {
    /// The short form of a record; `None` if it has none.
    pub(super) fn of(record: &JournalRecord) -> Option<Self> {
        let JournalRecord::Farm(record) = record else { return None };
        let FarmRecord::Completed { completions } = &**record else { return None };
        let mut completions = completions.clone();
        let records = completions.iter_mut().map(|one| {
            let execution = one.result.execution.as_mut()?;
            execution.record.take().as_ref().map(ShortBlob::from)
        });
        let records = records.collect();
        Some(Self { completions, records })
    }

    /// The record.
    pub(super) fn into_record(self) -> JournalRecord {
        let Self { mut completions, records } = self;
        for (one, record) in completions.iter_mut().zip(records) {
            if let (Some(execution), Some(record)) = (&mut one.result.execution, record) {
                execution.record = Some(record.into());
            }
        }
        JournalRecord::Farm(Box::new(FarmRecord::Completed { completions }))
    }
}
