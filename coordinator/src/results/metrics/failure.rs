//! Whose failure a failed trial is.

use rollout_protocol::error::{ErrorClass, ErrorCode};
use rollout_protocol::record::{ItemOutcome, Verdict};
use serde::Serialize;

/// Whose failure it is. A failed trial has exactly one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureParty {
    /// Rollout's or the provider's: says nothing about agent or task.
    Infrastructure,
    /// The agent's.
    Agent,
    /// The verifier's.
    Verifier,
    /// The task's definition.
    Task,
    /// The task asks for what its environment does not have: it was not tried.
    Unsupported,
}

impl FailureParty {
    /// Every kind.
    pub const ALL: &[Self] =
        &[Self::Infrastructure, Self::Agent, Self::Verifier, Self::Task, Self::Unsupported];

    /// Whose failure `verdict` is; nothing unless it is a failure.
    pub fn from_verdict(verdict: &Verdict) -> Option<Self> {
        if verdict.outcome != ItemOutcome::Failed {
            return None;
        }
        // A failure without a cause cannot be charged to anybody else.
        let Some(error) = &verdict.error else { return Some(Self::Infrastructure) };
        Some(match error.class {
            _ if error.code == ErrorCode::UNSUPPORTED_BY_ENVIRONMENT => Self::Unsupported,
            ErrorClass::Infrastructure => Self::Infrastructure,
            ErrorClass::Agent => Self::Agent,
            ErrorClass::Verifier => Self::Verifier,
            ErrorClass::Task => Self::Task,
        })
    }

    /// Whether the trial counts as one that was not passed.
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

/// Failed trials by whose failure it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct FailureCounts {
    /// Rollout's or the provider's.
    pub infrastructure: u64,
    /// The agent's.
    pub agent: u64,
    /// The verifier's.
    pub verifier: u64,
    /// The task's definition.
    pub task: u64,
    /// Tasks that ask for what their environment does not have.
    pub unsupported: u64,
}

impl FailureCounts {
    /// Adds one failed trial.
    pub fn add(&mut self, failure: FailureParty) {
        *match failure {
            FailureParty::Infrastructure => &mut self.infrastructure,
            FailureParty::Agent => &mut self.agent,
            FailureParty::Verifier => &mut self.verifier,
            FailureParty::Task => &mut self.task,
            FailureParty::Unsupported => &mut self.unsupported,
        } += 1;
    }

    /// How many there are of one kind.
    pub const fn get(&self, failure: FailureParty) -> u64 {
        match failure {
            FailureParty::Infrastructure => self.infrastructure,
            FailureParty::Agent => self.agent,
            FailureParty::Verifier => self.verifier,
            FailureParty::Task => self.task,
            FailureParty::Unsupported => self.unsupported,
        }
    }

    /// Those that count as not passed.
    pub fn counted(&self) -> u64 {
        let counted = FailureParty::ALL.iter().filter(|failure| failure.is_counted());
        counted.map(|failure| self.get(*failure)).sum()
    }
}
