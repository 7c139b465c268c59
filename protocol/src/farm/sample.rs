//! How samples end.

use serde::{Deserialize, Serialize};

use crate::blob::BlobRef;
use crate::error::{ErrorClass, ErrorCode, TrialError};
use crate::id::{ExecId, TryId, WorkerId};
use crate::phase::Phase;
use crate::record::Rewards;

/// How a sample ended. An absent reward is no verdict, never 0.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum SampleEnd {
    /// The agent ended, and the verifier gave its verdict or is disabled.
    Completed,
    /// A time limit ended the agent. It has a reward if it was verified all the same.
    Truncated,
    /// There is no result.
    NoResult {
        /// The party that caused it.
        cause: LossCause,
        /// The phase in which it happened.
        phase: Phase,
    },
    /// It was not needed any more.
    Cancelled {
        /// Why.
        reason: CancelReason,
    },
}

impl SampleEnd {
    /// The name used in documents.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Truncated => "truncated",
            Self::NoResult { .. } => "no_result",
            Self::Cancelled { .. } => "cancelled",
        }
    }

    /// Whether a new generation may replace the sample: only the infrastructure lost it.
    pub const fn is_refillable(&self) -> bool {
        matches!(self, Self::NoResult { cause: LossCause::Infrastructure, .. })
    }

    /// Whether the sample counts as lost by its group: neither the trainer, the group nor the agent
    /// caused its end.
    pub const fn is_loss(&self) -> bool {
        match self {
            Self::Cancelled { reason } => reason.is_loss(),
            end => end.is_refillable(),
        }
    }

    /// Whether the sample says something about the policy, so that it may be used.
    pub const fn is_result(&self) -> bool {
        matches!(self, Self::Completed | Self::Truncated)
    }
}

/// The party that caused the loss of a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LossCause {
    /// Rollout or the provider of environments. Says nothing about the policy.
    Infrastructure,
    /// The agent.
    Agent,
    /// The verifier.
    Verifier,
    /// The task's definition.
    Task,
}

impl From<ErrorClass> for LossCause {
    fn from(class: ErrorClass) -> Self {
        match class {
            ErrorClass::Infrastructure => Self::Infrastructure,
            ErrorClass::Agent => Self::Agent,
            ErrorClass::Verifier => Self::Verifier,
            ErrorClass::Task => Self::Task,
        }
    }
}

/// Why a sample was cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CancelReason {
    /// The trainer cancelled the group.
    Requested,
    /// The group has enough usable samples.
    EnoughUsable,
    /// The group was dropped.
    GroupDropped,
    /// The group's deadline has passed.
    Deadline,
    /// The policy version was too old.
    Stale,
    /// A user cancelled the sample alone.
    ByUser,
}

impl CancelReason {
    /// Whether a sample that was cancelled for this counts as lost by its group.
    pub const fn is_loss(self) -> bool {
        matches!(self, Self::Deadline | Self::Stale | Self::ByUser)
    }
}

/// The cause of an outage, as the code of an error names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutageCause {
    /// A disk of a host is full.
    DiskFull,
    /// A disk of a host takes no writes.
    DiskFailed,
    /// A host has no memory, open files or processes left.
    HostExhausted,
    /// An engine or a registry does not answer.
    Unreachable,
    /// A model server does not answer.
    ModelUnreachable,
    /// The blob store does not take or give blobs.
    StoreFailed,
}

impl OutageCause {
    /// The cause that a code names.
    pub fn of(code: &ErrorCode) -> Option<Self> {
        let causes = [
            (ErrorCode::DISK_FULL, Self::DiskFull),
            (ErrorCode::DISK_FAILED, Self::DiskFailed),
            (ErrorCode::HOST_EXHAUSTED, Self::HostExhausted),
            (ErrorCode::UNREACHABLE, Self::Unreachable),
            (ErrorCode::MODEL_UNREACHABLE, Self::ModelUnreachable),
            (ErrorCode::STORE_FAILED, Self::StoreFailed),
        ];
        causes.into_iter().find(|(of, _)| of == code).map(|(_, cause)| cause)
    }
}

/// How a group ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GroupEnd {
    /// It has the samples that its policy asks for.
    Complete,
    /// It has too few samples: its completions should not be used.
    Dropped,
    /// The trainer cancelled it.
    Cancelled,
}

/// The execution that a sample's result is of.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SampleExecution {
    /// Try.
    #[serde(rename = "try")]
    pub try_id: TryId,
    /// Execution.
    pub exec: ExecId,
    /// Worker.
    pub worker: WorkerId,
    /// The record with everything else; absent if the execution left nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record: Option<BlobRef>,
    /// Seconds from its start to the end of the teardown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_sec: Option<f64>,
}

/// The result of one generation of a sample.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SampleResult {
    /// How it ended.
    #[serde(flatten)]
    pub end: SampleEnd,
    /// The verifier's number; absent without a verdict.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reward: Option<f64>,
    /// The verifier's numbers by their keys, if it gave several.
    #[serde(default, skip_serializing_if = "Rewards::is_empty")]
    pub rewards: Rewards,
    /// Cost of the execution, in the user's currency, as far as it is known; null if nothing of it is.
    #[serde(default)]
    pub cost: Option<f64>,
    /// The first cause of failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<TrialError>,
    /// The execution; absent if none decided the sample.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub execution: Option<SampleExecution>,
    /// Other executions of this generation.
    #[serde(default, skip_serializing_if = "is_no_other")]
    pub other_executions: u32,
    /// Model calls of all its executions for which the server gave no token ids, although it is asked
    /// for them.
    #[serde(default, skip_serializing_if = "is_no_call")]
    pub calls_without_ids: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_no_other(count: &u32) -> bool {
    *count == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_no_call(count: &u64) -> bool {
    *count == 0
}

impl SampleResult {
    /// A sample that was cancelled before it had a result.
    pub const fn cancelled(reason: CancelReason) -> Self {
        Self {
            end: SampleEnd::Cancelled { reason },
            reward: None,
            rewards: Rewards::new(),
            cost: Some(0.0),
            error: None,
            execution: None,
            other_executions: 0,
            calls_without_ids: 0,
        }
    }

    /// The outage that lost it: one of a service or of the host, which ends others in the same way as
    /// long as it lasts. A fault of this sample alone may look the same.
    pub fn outage(&self) -> Option<OutageCause> {
        let code = self.error.as_ref().map(|error| &error.code)?;
        OutageCause::of(code).filter(|_| self.end.is_refillable())
    }

    /// Whether a trainer may learn from it: the agent ended or was ended, and there is a verdict.
    pub fn is_usable(&self) -> bool {
        self.end.is_result() && (self.reward.is_some() || !self.rewards.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorType;

    #[test]
    fn sample_end_has_outcome_cause_and_phase_in_documents() {
        let text = |end: &SampleEnd| serde_json::to_string(end).expect("JSON");
        assert_eq!(text(&SampleEnd::Completed), r#"{"outcome":"completed"}"#);
        assert_eq!(text(&SampleEnd::Truncated), r#"{"outcome":"truncated"}"#);
        let lost =
            SampleEnd::NoResult { cause: LossCause::Infrastructure, phase: Phase::AgentExecution };
        let expected =
            r#"{"outcome":"no_result","cause":"infrastructure","phase":"agent_execution"}"#;
        assert_eq!(text(&lost), expected);
        let cancelled = SampleEnd::Cancelled { reason: CancelReason::EnoughUsable };
        assert_eq!(text(&cancelled), r#"{"outcome":"cancelled","reason":"enough_usable"}"#);
        for end in [SampleEnd::Completed, lost, cancelled] {
            let text = text(&end);
            assert!(text.contains(&format!("\"outcome\":\"{}\"", end.as_str())));
            assert_eq!(serde_json::from_str::<SampleEnd>(&text).expect("an end"), end);
        }
    }

    #[test]
    fn only_loss_by_infrastructure_is_refillable() {
        let lost = |cause| SampleEnd::NoResult { cause, phase: Phase::AgentExecution };
        assert!(lost(LossCause::Infrastructure).is_refillable());
        for cause in [LossCause::Agent, LossCause::Verifier, LossCause::Task] {
            assert!(!lost(cause).is_refillable());
        }
        assert!(!SampleEnd::Truncated.is_refillable());
        assert!(!SampleEnd::Cancelled { reason: CancelReason::Stale }.is_refillable());
    }

    #[test]
    fn outage_is_of_refillable_ends_with_its_codes() {
        let lost = |cause, code| SampleResult {
            end: SampleEnd::NoResult { cause, phase: Phase::EnvironmentSetup },
            error: Some(TrialError::transient(ErrorType::EnvironmentStartFailed, code, "lost")),
            ..SampleResult::cancelled(CancelReason::ByUser)
        };
        let full = lost(LossCause::Infrastructure, ErrorCode::DISK_FULL);
        assert_eq!(full.outage(), Some(OutageCause::DiskFull));
        let failed = lost(LossCause::Infrastructure, ErrorCode::DISK_FAILED);
        assert_eq!(failed.outage(), Some(OutageCause::DiskFailed));
        let other = lost(LossCause::Infrastructure, ErrorCode::ENVIRONMENT_LOST);
        assert_eq!(other.outage(), None);
        assert_eq!(lost(LossCause::Task, ErrorCode::UNREACHABLE).outage(), None);
        let text = serde_json::to_string(&OutageCause::ModelUnreachable).expect("JSON");
        assert_eq!(text, r#""model_unreachable""#, "the name of the code");
    }

    #[test]
    fn sample_without_verdict_has_no_reward_and_is_not_usable() {
        let cancelled = SampleResult::cancelled(CancelReason::Requested);
        let text = serde_json::to_string(&cancelled).expect("JSON");
        assert_eq!(text, r#"{"outcome":"cancelled","reason":"requested","cost":0.0}"#);
        assert!(!cancelled.is_usable());
        let completed = SampleResult { end: SampleEnd::Completed, ..cancelled };
        assert!(!completed.is_usable());
        let rewarded = SampleResult { reward: Some(0.0), ..completed };
        assert!(rewarded.is_usable(), "a verdict of 0 is a verdict");
        let text = serde_json::to_string(&rewarded).expect("JSON");
        assert_eq!(serde_json::from_str::<SampleResult>(&text).expect("a result"), rewarded);
    }
}
