//! The primary metric: one number per scored trial, and its mean per agent.

use rollout_protocol::harness::Objective;
use rollout_protocol::record::{ItemOutcome, REWARD_KEY};

use super::failure::FailureParty;
use super::harness::HarnessTally;
use super::score::Score;
use super::tally::TrialScore;

/// Name of the primary metric of a trial with neither objective nor reward.
const SUCCESS: &str = "success";

/// The primary metric of a trial or an agent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PrimaryMetric<'a> {
    /// The name of the objective, `reward` or `success`.
    pub name: &'a str,
    /// The objective; the reward; or 1 if the trial passed, else 0. For an agent, the mean.
    pub value: f64,
}

impl TrialScore {
    /// Whether the trial counts in the headline [`Score`].
    pub fn is_scored(&self) -> bool {
        let is_counted = self.failure.is_some_and(FailureParty::is_counted) && !self.before_agent;
        self.outcome == ItemOutcome::Completed || is_counted
    }

    /// The part of the reward that the headline does not count. A trial with a step that could not
    /// be verified has at most 0 in it: its reward is that of the other steps, and an agent can
    /// break the step.
    pub(super) fn uncounted_reward(&self) -> f64 {
        self.reward.filter(|_| self.step_unverified).map_or(0.0, |reward| reward.max(0.0))
    }

    /// The primary metric: the objective that the harness gave; without one the reward, and without
    /// both whether the trial passed. `None` for a trial that is not scored: an infrastructure
    /// failure says nothing about the agent.
    pub fn primary<'a>(&self, objective: Option<&'a Objective>) -> Option<PrimaryMetric<'a>> {
        self.is_scored().then(|| match (objective, self.reward) {
            (Some(objective), _) => PrimaryMetric { name: &objective.name, value: objective.value },
            (None, Some(reward)) => {
                PrimaryMetric { name: REWARD_KEY, value: reward - self.uncounted_reward() }
            }
            (None, None) => {
                PrimaryMetric { name: SUCCESS, value: f64::from(u8::from(self.passed)) }
            }
        })
    }
}

impl Score {
    /// The mean of the primary metric, always over all trials that count: of the objective if all
    /// of them have the same one, else the headline's mean reward, else its pass rate. `None` when
    /// no trial counts.
    pub fn primary<'a>(&self, harness: &'a HarnessTally) -> Option<PrimaryMetric<'a>> {
        if let Some((name, value)) = harness.objective_of_scored(self.trials) {
            return Some(PrimaryMetric { name, value });
        }
        match self.mean_reward {
            Some(value) => Some(PrimaryMetric { name: REWARD_KEY, value }),
            None => self.pass_rate().map(|value| PrimaryMetric { name: SUCCESS, value }),
        }
    }
}
