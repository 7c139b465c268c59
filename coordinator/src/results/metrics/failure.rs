//! The party responsible for a failed trial.

use rollout_protocol::error::{ErrorClass, ErrorCode};
use rollout_protocol::record::{ItemOutcome, Verdict};
use serde::Serialize;

/// The party responsible for a failure. A failed trial has exactly one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureParty {
    /// Rollout or the provider: no evidence about agent or task.
    Infrastructure,
    /// The agent.
    Agent,
    /// The verifier.
    Verifier,
    /// The task's definition.
    Task,
    /// The task requires something that its environment lacks; it was not run.
    Unsupported,
}

impl FailureParty {
    /// Every party.
    pub const ALL: &[Self] =
        &[Self::Infrastructure, Self::Agent, Self::Verifier, Self::Task, Self::Unsupported];

    /// The party responsible for `verdict`; `None` unless it is a failure.
    pub fn from_verdict(verdict: &Verdict) -> Option<Self> {
        if verdict.outcome != ItemOutcome::Failed {
            return None;
        }
        // No other party can be blamed for a failure without a cause.
        let Some(error) = &verdict.error else { return Some(Self::Infrastructure) };
        Some(match error.class {
            _ if error.code == ErrorCode::UNSUPPORTED_BY_ENVIRONMENT => Self::Unsupported,
            ErrorClass::Infrastructure => Self::Infrastructure,
            ErrorClass::Agent => Self::Agent,
            ErrorClass::Verifier => Self::Verifier,
            ErrorClass::Task => Self::Task,
        })
    }

    /// Whether the trial counts as not passed, unless its task failed before the agent began.
    pub const fn is_counted(self) -> bool {
        match self {
            Self::Agent | Self::Verifier | Self::Task => true,
            Self::Infrastructure | Self::Unsupported => false,
        }
    }

    /// The word used in results and on the terminal.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Infrastructure => "infrastructure",
            Self::Agent => "agent",
            Self::Verifier => "verifier",
            Self::Task => "task",
            Self::Unsupported => "unsupported",
        }
    }
}

/// Failed trials by responsible party.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct FailureCounts {
    /// Rollout or the provider.
    pub infrastructure: u64,
    /// The agent.
    pub agent: u64,
    /// The verifier.
    pub verifier: u64,
    /// The task's definition.
    pub task: u64,
    /// Tasks that require something that their environment lacks.
    pub unsupported: u64,
}

impl FailureCounts {
    /// Adds one failed trial.
    pub fn add(&mut self, failure: FailureParty) {
        *self.of_mut(failure) += 1;
    }

    /// The count of one party.
    pub(super) const fn of_mut(&mut self, failure: FailureParty) -> &mut u64 {
        match failure {
            FailureParty::Infrastructure => &mut self.infrastructure,
            FailureParty::Agent => &mut self.agent,
            FailureParty::Verifier => &mut self.verifier,
            FailureParty::Task => &mut self.task,
            FailureParty::Unsupported => &mut self.unsupported,
        }
    }

    /// Failures of one party.
    pub const fn get(&self, failure: FailureParty) -> u64 {
        match failure {
            FailureParty::Infrastructure => self.infrastructure,
            FailureParty::Agent => self.agent,
            FailureParty::Verifier => self.verifier,
            FailureParty::Task => self.task,
            FailureParty::Unsupported => self.unsupported,
        }
    }

    /// Failures of the parties whose failures count as not passed.
    pub fn counted(&self) -> u64 {
        let counted = FailureParty::ALL.iter().filter(|failure| failure.is_counted());
        counted.map(|failure| self.get(*failure)).sum()
    }
}
