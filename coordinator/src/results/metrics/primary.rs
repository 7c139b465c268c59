//! The primary metric: one number per scored trial, and its mean per agent.

use rollout_protocol::record::{ItemOutcome, REWARD_KEY};

use super::failure::FailureParty;
use super::score::Score;
use super::tally::TrialScore;

/// Name of the primary metric of a trial without a reward.
const SUCCESS: &str = "success";

/// The primary metric of a trial or an agent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PrimaryMetric {
    /// `reward` or `success`.
    pub name: &'static str,
    /// The reward; or 1 if the trial passed, else 0. For an agent, the mean.
    pub value: f64,
}

impl TrialScore {
    /// Whether the trial counts in the headline [`Score`].
    pub fn is_scored(&self) -> bool {
        self.outcome == ItemOutcome::Completed || self.failure.is_some_and(FailureParty::is_counted)
    }

    /// The primary metric: the reward if there is one, else whether the trial passed. `None` for a
    /// trial that is not scored: an infrastructure failure says nothing about the agent.
    pub fn primary(&self) -> Option<PrimaryMetric> {
        self.is_scored().then(|| match self.reward {
            Some(value) => PrimaryMetric { name: REWARD_KEY, value },
            None => PrimaryMetric { name: SUCCESS, value: f64::from(u8::from(self.passed)) },
        })
    }
}

impl Score {
    /// The mean of the primary metric: the headline's mean reward if it has one, else its pass
    /// rate. `None` when no trial counts.
    pub fn primary(&self) -> Option<PrimaryMetric> {
        match self.mean_reward {
            Some(value) => Some(PrimaryMetric { name: REWARD_KEY, value }),
            None => self.pass_rate().map(|value| PrimaryMetric { name: SUCCESS, value }),
        }
    }
}
