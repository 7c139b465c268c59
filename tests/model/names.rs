//! Ids of all objects in the simulation by small numbers, and messages built from them.

use rollout_protocol::Timestamp;
use rollout_protocol::digest::Digest;
use rollout_protocol::error::{ErrorClass, ErrorCode, ErrorType, RetryClass, TrialError};
use rollout_protocol::id::{ExecId, ItemId, RunId, TryId};
use rollout_protocol::record::{Durations, ItemOutcome, LostReason, Timestamps, Verdict};
use rollout_protocol::spec::trial::TrialRef;
use rollout_protocol::wire::offer::{Offer, OfferedWork, RunRateLimits, SizeClass};
use rollout_protocol::wire::report::{Report, ReportBody, ResultBody};

/// The only run.
pub(crate) const RUN: RunId = RunId::from_bytes([7; 16]);

/// A lease in milliseconds.
pub(crate) const LEASE: u64 = 60_000;

/// Wall-clock time of everything: nothing depends on it.
pub(crate) const WALL: Timestamp = Timestamp::UNIX_EPOCH;

pub(crate) fn item(n: usize) -> ItemId {
    let mut bytes = [0; 16];
    bytes[0] = u8::try_from(n).expect("few items");
    ItemId::from_bytes(bytes)
}

pub(crate) fn item_number(item: &ItemId) -> usize {
    usize::from(item.as_bytes()[0])
}

pub(crate) fn exec(n: u32) -> ExecId {
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&n.to_be_bytes());
    ExecId::from_bytes(bytes)
}

pub(crate) fn exec_number(exec: &ExecId) -> u32 {
    let [a, b, c, d, ..] = *exec.as_bytes();
    u32::from_be_bytes([a, b, c, d])
}

/// Digest of an item's spec by version.
pub(crate) fn spec(version: u8) -> Digest {
    Digest::from_bytes([version; 32])
}

pub(crate) fn offer(item: ItemId, try_id: TryId, spec: Digest, class: SizeClass) -> Offer {
    let trial = TrialRef { settings: spec, agent: spec, task: spec, attempt: 1 };
    Offer {
        run: RUN,
        item,
        try_id,
        spec,
        class,
        work: OfferedWork::Trial(trial),
        rate_limits: RunRateLimits::default(),
        model_calls: None,
    }
}

/// Ending of an execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExecutionEnding {
    /// With a reward.
    Reward,
    /// With an agent failure.
    AgentFailure,
    /// With a transient infrastructure failure.
    Outage,
}

/// Result of an execution: a function of the execution and its ending alone.
pub(crate) fn result_body(exec: ExecId, ending: ExecutionEnding) -> ReportBody {
    let (outcome, error) = match ending {
        ExecutionEnding::Reward => (ItemOutcome::Completed, None),
        ExecutionEnding::AgentFailure => {
            let kind = ErrorType::AgentExecutionFailed;
            let (class, retry) = (ErrorClass::Agent, RetryClass::Permanent);
            let error = TrialError::new(kind, ErrorCode::NON_ZERO_EXIT, class, retry, "");
            (ItemOutcome::Failed, Some(error))
        }
        ExecutionEnding::Outage => {
            let kind = ErrorType::EnvironmentStartFailed;
            let error = TrialError::transient(kind, ErrorCode::UNREACHABLE, "");
            (ItemOutcome::Failed, Some(error))
        }
    };
    let reward = (ending == ExecutionEnding::Reward).then(|| f64::from(exec_number(&exec)));
    ReportBody::Result(Box::new(ResultBody {
        verdict: Verdict { outcome, reward, error, ..Verdict::cancelled(0.0) },
        durations: Durations::default(),
        timestamps: Timestamps::instant(WALL),
        record: None,
    }))
}

pub(crate) fn lost_body(reason: LostReason) -> ReportBody {
    ReportBody::Lost { reason, phase: None, record: None, cost: 0.0, model_use: Default::default() }
}

/// Whether another try may follow the result.
pub(crate) fn may_be_retried(verdict: &Verdict) -> bool {
    verdict.outcome == ItemOutcome::Failed
        && verdict.error.as_ref().is_some_and(TrialError::is_retryable)
}

/// Short text for a report.
pub(crate) fn summarize_report(report: &Report) -> String {
    let what = match &report.body {
        ReportBody::Started => "started",
        ReportBody::Result(body) if may_be_retried(&body.verdict) => "outage",
        ReportBody::Result(body) if body.verdict.outcome == ItemOutcome::Completed => "reward",
        ReportBody::Result(_) => "failure",
        ReportBody::Lost { .. } => "lost",
        ReportBody::Events(_) => "events",
    };
    let (exec, item) = (exec_number(&report.exec), item_number(&report.item));
    format!("{what} of e{exec} (item {item}, try {})", report.try_id)
}
