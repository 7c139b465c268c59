//! Builders of events, settlements and plans for tests.

#[cfg(feature = "parquet")]
mod parquet_rows;
mod plan;
pub(crate) mod strategies;

use std::sync::Arc;

use rollout_protocol::Timestamp;
use rollout_protocol::blob::BlobRef;
use rollout_protocol::error::{ErrorClass, ErrorCode, ErrorType, RetryClass, TrialError};
use rollout_protocol::event::{EventKind, RunEvent};
use rollout_protocol::harness::{
    HarnessOutcome, IntegrationLevel, MetricValue, Objective, ObjectiveDirection,
};
use rollout_protocol::id::{ExecId, RunId, TryId};
use rollout_protocol::phase::Phase;
use rollout_protocol::record::{
    Durations, Execution, ExecutionEnd, HarnessEventCounts, HarnessSummary, Settlement, Timestamps,
    TrialRecord, Verdict,
};
use rollout_protocol::spec::trial::TrialName;
use rollout_worker::testing;

#[cfg(feature = "parquet")]
pub(super) use parquet_rows::assert_same_rows;
pub(crate) use plan::plan;

pub(crate) fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_750_000_000 + second).expect("in range")
}

pub(crate) fn run() -> RunId {
    RunId::from_bytes([7; 16])
}

pub(crate) fn trial(agent: &str, task: &str, attempt: u32) -> TrialName {
    TrialName { agent: agent.into(), dataset: "data".into(), task: task.into(), attempt }
}

pub(crate) fn error(kind: ErrorType, class: ErrorClass, message: &str) -> TrialError {
    TrialError::new(kind, ErrorCode::NON_ZERO_EXIT, class, RetryClass::Permanent, message)
}

pub(crate) fn passed(reward: f64) -> Verdict {
    Verdict::completed(reward)
}

pub(crate) fn failed(error: TrialError) -> Verdict {
    Verdict::failed(error)
}

/// The result of a harness with an objective, metrics of every type and three events.
pub(crate) fn harness_summary(objective: &str, value: f64) -> HarnessSummary {
    let direction = Some(ObjectiveDirection::Minimize);
    let metrics = [
        ("converged", MetricValue::Bool(true)),
        ("empty", MetricValue::Null),
        ("note", MetricValue::Text("=SUM(1)".into())),
        ("steps", MetricValue::Number(2.0)),
    ];
    let counts = [("agent_step_end", 2), ("tool_call_end", 1)];
    HarnessSummary {
        integration_level: IntegrationLevel::CliEvents,
        outcome: HarnessOutcome::Success,
        objective: Some(Objective { name: objective.into(), value, direction }),
        metrics: metrics.map(|(name, value)| (name.to_owned(), value)).into(),
        metrics_left_out: 1,
        events: Some(HarnessEventCounts {
            total: 3,
            counts: counts.map(|(name, count)| (name.to_owned(), count)).into(),
            violations: 4,
        }),
    }
}

/// A verdict beside the result of a harness.
pub(crate) fn with_harness(verdict: Verdict, harness: HarnessSummary) -> Verdict {
    Verdict { harness: Some(Box::new(harness)), ..verdict }
}

/// A settlement by execution `exec`, without a record blob.
pub(crate) fn settlement(trial: TrialName, exec: u8, verdict: Verdict) -> Settlement {
    let execution = Execution {
        try_id: TryId::first(1),
        exec: ExecId::from_bytes([exec; 16]),
        worker: "worker-1".parse().expect("a token"),
        end: ExecutionEnd::Reported { verdict: verdict.clone() },
        record: None,
        durations: Some(Durations { total_sec: 2.5, ..Durations::default() }),
        timestamps: Some(Timestamps::instant(at(1))),
    };
    Settlement {
        item: trial.item(),
        name: trial.into(),
        by: Some(execution),
        verdict,
        superseded: Vec::new(),
        settled_at: at(9),
        task_git_commit_id: None,
    }
}

/// The record of a settlement, without outputs.
pub(crate) fn record(settlement: &Settlement) -> TrialRecord {
    let by = settlement.by.as_ref().expect("settled by an execution");
    TrialRecord {
        run: run(),
        item: settlement.item,
        try_id: by.try_id,
        exec: by.exec,
        worker: by.worker.clone(),
        task_git_commit_id: Some("c0ffee".into()),
        durations: Durations { total_sec: 3.0, verifier_sec: Some(1.0), ..Durations::default() },
        timestamps: Timestamps {
            verifier_started_at: Some(at(2)),
            verifier_ended_at: Some(at(3)),
            ..Timestamps::instant(at(1))
        },
        ..testing::trial_record(
            settlement.trial().expect("a trial").clone(),
            settlement.verdict.clone(),
            at(1),
        )
    }
}

pub(crate) fn with_record(mut settlement: Settlement, blob: BlobRef) -> Settlement {
    settlement.by.as_mut().expect("settled by an execution").record = Some(blob);
    settlement
}

pub(crate) fn event(second: i64, kind: EventKind) -> RunEvent {
    RunEvent { at: at(second), kind }
}

pub(crate) fn started(total: u64) -> RunEvent {
    let job = "a job".to_owned();
    event(0, EventKind::RunStarted { run: run(), job, epoch: 1, total, started_at: at(0) })
}

pub(crate) fn ended(second: i64, owed: u64) -> RunEvent {
    event(second, EventKind::RunEnded { cancelled: owed > 0, owed })
}

pub(crate) fn settled(ordinal: u64, settlement: Settlement) -> RunEvent {
    let settlement = Arc::new(settlement);
    event(5, EventKind::TrialSettled { ordinal, replayed: false, settlement })
}

pub(crate) fn phase(trial: TrialName, phase: Phase) -> RunEvent {
    event(
        2,
        EventKind::TrialPhase {
            item: trial.item(),
            name: trial.into(),
            try_id: TryId::first(1),
            exec: ExecId::from_bytes([9; 16]),
            phase,
        },
    )
}
