//! Counts and sums over settled trials.

use rollout_protocol::record::{Execution, ExecutionEnd, ItemOutcome, Settlement};
use rollout_protocol::spec::metric::MetricKind;

use super::failure::{FailureCounts, FailureParty};
use super::sum::NeumaierSum;

/// What one settled trial adds to the totals.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TrialScore {
    /// How it ended.
    pub outcome: ItemOutcome,
    /// The reward, when it completed.
    pub reward: Option<f64>,
    /// Whether the reward is 1 and every step was verified.
    pub passed: bool,
    /// Whether it completed with an error beside its reward.
    pub with_error: bool,
    /// Whether it completed although a step could not be verified.
    pub step_unverified: bool,
    /// Whose failure it is, when it failed.
    pub failure: Option<FailureParty>,
    /// Cost of all its executions.
    pub cost: f64,
    /// Executions that failed and were tried again.
    pub retries: u32,
    /// Executions that ended without a verdict.
    pub lost: u32,
}

impl TrialScore {
    /// What `settlement` adds.
    pub fn from_settlement(settlement: &Settlement) -> Self {
        let verdict = &settlement.verdict;
        let (mut retries, mut lost) = (0, 0);
        for execution in &settlement.superseded {
            match execution.end {
                ExecutionEnd::Reported { .. } => retries += 1,
                ExecutionEnd::Lost { .. } => lost += 1,
                ExecutionEnd::Open => {}
            }
        }
        let completed = verdict.outcome == ItemOutcome::Completed;
        Self {
            outcome: verdict.outcome,
            reward: verdict.reward.filter(|_| completed),
            passed: verdict.passed(),
            with_error: completed && verdict.error.is_some(),
            step_unverified: completed && !verdict.unverified_steps.is_empty(),
            failure: FailureParty::from_verdict(verdict),
            cost: total_cost(settlement),
            retries,
            lost,
        }
    }
}

/// The cost of a trial: of the execution that settled it and of those before it, as far as they
/// reported one.
pub fn total_cost(settlement: &Settlement) -> f64 {
    let mut sum = NeumaierSum::default();
    sum.add(settlement.verdict.cost);
    for Execution { end, .. } in &settlement.superseded {
        match end {
            ExecutionEnd::Reported { verdict } => sum.add(verdict.cost),
            ExecutionEnd::Lost { cost, .. } => sum.add(*cost),
            ExecutionEnd::Open => {}
        }
    }
    sum.value()
}

/// Rewards of completed trials.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Rewards {
    count: u64,
    sum: NeumaierSum,
    min: Option<f64>,
    max: Option<f64>,
}

impl Rewards {
    /// Adds the reward of one completed trial.
    pub fn add(&mut self, reward: f64) {
        self.count += 1;
        self.sum.add(reward);
        self.min = Some(self.min.map_or(reward, |min| min.min(reward)));
        self.max = Some(self.max.map_or(reward, |max| max.max(reward)));
    }

    /// These rewards and so many of 0.
    #[must_use]
    pub fn with_zeros(mut self, zeros: u64) -> Self {
        if zeros > 0 {
            self.add(0.0);
            self.count += zeros - 1;
        }
        self
    }

    /// Number of rewards.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Their sum; nothing when there is none.
    pub fn sum(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum.value())
    }

    /// The smallest.
    pub fn min(&self) -> Option<f64> {
        self.min
    }

    /// The largest.
    pub fn max(&self) -> Option<f64> {
        self.max
    }

    /// Their average; nothing when there is none.
    pub fn mean(&self) -> Option<f64> {
        self.sum().map(|sum| sum / self.count as f64)
    }

    /// The value of a metric; nothing when there is no reward.
    pub fn metric(&self, kind: MetricKind) -> Option<f64> {
        match kind {
            MetricKind::Sum => self.sum(),
            MetricKind::Min => self.min(),
            MetricKind::Max => self.max(),
            MetricKind::Mean => self.mean(),
        }
    }
}

/// Totals over some trials: of a run, or of one agent.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Tally {
    /// The verifier produced a reward.
    pub completed: u64,
    /// An error prevented a reward.
    pub failed: u64,
    /// Ended by the user's command.
    pub cancelled: u64,
    /// Ran to the end without a verifier.
    pub unverified: u64,
    /// Completed with a reward of 1, every step verified.
    pub passed: u64,
    /// Completed with an error beside the reward.
    pub with_error: u64,
    /// Completed although a step could not be verified.
    pub steps_unverified: u64,
    /// The failed ones by whose failure it is.
    pub failures: FailureCounts,
    /// Executions that failed and were tried again.
    pub retries: u64,
    /// Executions that ended without a verdict.
    pub lost: u64,
    /// Rewards of completed trials.
    pub rewards: Rewards,
    cost: NeumaierSum,
}

impl Tally {
    /// Adds one settled trial.
    pub fn add(&mut self, scored: &TrialScore) {
        match scored.outcome {
            ItemOutcome::Completed => self.completed += 1,
            ItemOutcome::Failed => self.failed += 1,
            ItemOutcome::Cancelled => self.cancelled += 1,
            ItemOutcome::Unverified => self.unverified += 1,
        }
        self.passed += u64::from(scored.passed);
        self.with_error += u64::from(scored.with_error);
        self.steps_unverified += u64::from(scored.step_unverified);
        if let Some(failure) = scored.failure {
            self.failures.add(failure);
        }
        self.retries += u64::from(scored.retries);
        self.lost += u64::from(scored.lost);
        if let Some(reward) = scored.reward {
            self.rewards.add(reward);
        }
        self.cost.add(scored.cost);
    }

    /// Trials with a terminal record.
    pub fn settled(&self) -> u64 {
        self.completed + self.failed + self.cancelled + self.unverified
    }

    /// Share of completed trials that passed; nothing when none completed.
    pub fn pass_rate(&self) -> Option<f64> {
        (self.completed > 0).then(|| self.passed as f64 / self.completed as f64)
    }

    /// What all executions cost.
    pub fn cost(&self) -> f64 {
        self.cost.value()
    }
}
