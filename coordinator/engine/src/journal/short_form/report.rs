//! The short form of starts and results.

use std::borrow::Cow;

use rollout_protocol::Timestamp;
use rollout_protocol::blob::BlobRef;
use rollout_protocol::digest::Digest;
use rollout_protocol::id::{ExecId, ItemId, RunId, TryId, WorkerId};
use rollout_protocol::record::{Durations, Timestamps, Verdict};
use rollout_protocol::wire::position::{Incarnation, ReportPosition};
use rollout_protocol::wire::report::{Report, ReportBody, ResultBody};
use serde::{Deserialize, Serialize};

use super::Unreadable;
use super::blob::ShortBlob;
use crate::core::JournalRecord;

/// A start or a result that was read from the queue, with its position.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::journal) struct ShortReport<'a> {
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

impl<'a> ShortReport<'a> {
    /// The short form of a record; `None` if it has none.
    pub(in crate::journal) fn of(record: &'a JournalRecord) -> Option<Self> {
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
    pub(in crate::journal) fn into_record(self) -> Result<JournalRecord, Unreadable> {
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
