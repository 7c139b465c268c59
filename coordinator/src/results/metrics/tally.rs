//! Counts and sums over settled trials.

use rollout_protocol::error::{ErrorCode, ErrorType, TrialError};
use rollout_protocol::phase::Phase;
use rollout_protocol::record::{Execution, ExecutionEnd, ItemOutcome, Settlement, Verdict};
use rollout_protocol::spec::budget::ModelUse;
use rollout_protocol::spec::metric::MetricKind;

use super::failure::{FailureCounts, FailureParty};
use super::sum::NeumaierSum;
use crate::results::known_cost::known_cost;

/// Contribution of one settled trial to the totals.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TrialScore {
    /// Outcome.
    pub outcome: ItemOutcome,
    /// The reward, if it completed.
    pub reward: Option<f64>,
    /// Whether the reward is 1 and every step was verified.
    pub passed: bool,
    /// Whether it completed with an error beside its reward.
    pub with_error: bool,
    /// Whether it completed with a step that could not be verified.
    pub step_unverified: bool,
    /// The responsible party, if it failed.
    pub failure: Option<FailureParty>,
    /// Whether the task failed before the agent began: no verdict on the agent.
    pub before_agent: bool,
    /// Cost of all its executions, as far as it is known.
    pub cost: f64,
    /// Use of the model calls of all its executions.
    pub model_use: ModelUse,
    /// Executions that failed and were retried.
    pub retries: u32,
    /// Executions that ended without a verdict.
    pub lost: u32,
    /// Whether an execution has no verdict because a model server did not answer.
    pub unreachable: bool,
    /// Whether an execution has no verdict because the agent could not be installed.
    pub not_installed: bool,
    /// Whether the guessed format of the task decides the verdict.
    pub format_doubt: bool,
}

impl TrialScore {
    /// The contribution of `settlement`.
    pub fn from_settlement(settlement: &Settlement) -> Self {
        Self::from_verdict(&settlement.verdict, &settlement.superseded)
    }

    /// The contribution of a trial with this verdict and these superseded executions.
    pub fn from_verdict(verdict: &Verdict, superseded: &[Execution]) -> Self {
        let (mut retries, mut lost) = (0, 0);
        for execution in superseded {
            match execution.end {
                ExecutionEnd::Reported { .. } => retries += 1,
                ExecutionEnd::Lost { .. } => lost += 1,
                ExecutionEnd::Open => {}
            }
        }
        let completed = verdict.outcome == ItemOutcome::Completed;
        let failure = FailureParty::from_verdict(verdict);
        let is_early = verdict.error.as_ref().is_some_and(|error| error.before_agent);
        Self {
            outcome: verdict.outcome,
            reward: verdict.reward.filter(|_| completed),
            passed: verdict.passed(),
            with_error: completed && verdict.error.is_some(),
            step_unverified: completed && !verdict.unverified_steps.is_empty(),
            failure,
            before_agent: is_early && failure == Some(FailureParty::Task),
            cost: cost_of(verdict, superseded),
            model_use: model_use(verdict, superseded),
            retries,
            lost,
            unreachable: reported(verdict, superseded).any(is_unreachable),
            not_installed: reported(verdict, superseded).any(is_not_installed),
            format_doubt: verdict.format_doubt.is_some(),
        }
    }

    /// Cost of all its executions; `None` if nothing of it is known.
    pub fn known_cost(&self) -> Option<f64> {
        known_cost(self.cost, self.model_use.unpriced_calls)
    }
}

/// The verdict of a trial and those of its earlier executions.
fn reported<'a>(
    verdict: &'a Verdict,
    superseded: &'a [Execution],
) -> impl Iterator<Item = &'a Verdict> {
    let earlier = superseded.iter().filter_map(|execution| match &execution.end {
        ExecutionEnd::Reported { verdict } => Some(verdict),
        ExecutionEnd::Lost { .. } | ExecutionEnd::Open => None,
    });
    earlier.chain([verdict])
}

fn is_unreachable(verdict: &Verdict) -> bool {
    verdict.error.as_ref().is_some_and(|error| error.code == ErrorCode::MODEL_UNREACHABLE)
}

/// Whether the installation of the agent failed, also in an image that cannot carry it.
fn is_not_installed(verdict: &Verdict) -> bool {
    let is_of_install = |error: &TrialError| {
        let failed = [ErrorType::AgentInstallFailed, ErrorType::AgentInstallTimeout];
        failed.contains(&error.kind) || error.is_unsupported() && error.phase == Phase::AgentSetup
    };
    verdict.outcome == ItemOutcome::Failed && verdict.error.as_ref().is_some_and(is_of_install)
}

/// The cost of a trial: the reported costs of the execution that settled it and of earlier ones; `None`
/// if it is not known.
pub fn total_cost(settlement: &Settlement) -> Option<f64> {
    TrialScore::from_settlement(settlement).known_cost()
}

fn cost_of(verdict: &Verdict, superseded: &[Execution]) -> f64 {
    let mut sum = NeumaierSum::default();
    sum.add(verdict.cost);
    for Execution { end, .. } in superseded {
        match end {
            ExecutionEnd::Reported { verdict } => sum.add(verdict.cost),
            ExecutionEnd::Lost { cost, .. } => sum.add(*cost),
            ExecutionEnd::Open => {}
        }
    }
    sum.value()
}

fn model_use(verdict: &Verdict, superseded: &[Execution]) -> ModelUse {
    let others = superseded.iter().map(|execution| match &execution.end {
        ExecutionEnd::Reported { verdict } => verdict.model_use,
        ExecutionEnd::Lost { model_use, .. } => *model_use,
        ExecutionEnd::Open => ModelUse::NONE,
    });
    others.fold(verdict.model_use, ModelUse::plus)
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

    /// Takes out the reward of one completed trial that was added. The extremes stay: they are those
    /// of all rewards so far.
    pub(super) fn remove(&mut self, reward: f64) {
        self.count = self.count.saturating_sub(1);
        self.sum.add(-reward);
    }

    /// These rewards plus `zeros` rewards of 0.
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

    /// Sum; `None` without rewards.
    pub fn sum(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum.value())
    }

    /// Minimum; `None` without rewards.
    pub fn min(&self) -> Option<f64> {
        self.min
    }

    /// Maximum; `None` without rewards.
    pub fn max(&self) -> Option<f64> {
        self.max
    }

    /// Mean; `None` without rewards.
    pub fn mean(&self) -> Option<f64> {
        self.sum().map(|sum| sum / self.count as f64)
    }

    /// Value of a metric; `None` without rewards.
    pub fn metric(&self, kind: MetricKind) -> Option<f64> {
        match kind {
            MetricKind::Sum => self.sum(),
            MetricKind::Min => self.min(),
            MetricKind::Max => self.max(),
            MetricKind::Mean => self.mean(),
        }
    }
}

/// Totals over settled trials of a run or of one agent.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Tally {
    /// The verifier produced a reward.
    pub completed: u64,
    /// An error prevented a reward.
    pub failed: u64,
    /// Cancelled by the user.
    pub cancelled: u64,
    /// Ran to the end without a verifier.
    pub unverified: u64,
    /// Completed with a reward of 1, every step verified.
    pub passed: u64,
    /// Completed with an error beside the reward.
    pub with_error: u64,
    /// Completed with a step that could not be verified.
    pub steps_unverified: u64,
    /// Failed trials by responsible party.
    pub failures: FailureCounts,
    /// Failures of tasks before the agent began, part of `failures`.
    pub before_agent: u64,
    /// Executions that failed and were retried.
    pub retries: u64,
    /// Executions that ended without a verdict.
    pub lost: u64,
    /// Trials with an execution that has no verdict because a model server did not answer.
    pub unreachable: u64,
    /// Trials with an execution that has no verdict because the agent could not be installed.
    pub not_installed: u64,
    /// Trials whose verdict is decided by the guessed format of the task.
    pub format_doubts: u64,
    /// Rewards of completed trials.
    pub rewards: Rewards,
    /// Use of model calls.
    pub model_use: ModelUse,
    /// The part of the rewards that the headline does not count.
    uncounted: NeumaierSum,
    cost: NeumaierSum,
}

impl Tally {
    /// Adds one settled trial.
    pub fn add(&mut self, scored: &TrialScore) {
        self.count(scored, u64::saturating_add);
        if let Some(reward) = scored.reward {
            self.rewards.add(reward);
        }
        self.uncounted.add(scored.uncounted_reward());
        self.model_use = self.model_use.plus(scored.model_use);
        self.cost.add(scored.cost);
    }

    /// Takes out one settled trial that was added: it runs again.
    pub fn remove(&mut self, scored: &TrialScore) {
        self.count(scored, u64::saturating_sub);
        if let Some(reward) = scored.reward {
            self.rewards.remove(reward);
        }
        self.uncounted.add(-scored.uncounted_reward());
        self.model_use = self.model_use.minus(scored.model_use);
        self.cost.add(-scored.cost);
    }

    /// Changes every count to which a trial contributes.
    fn count(&mut self, scored: &TrialScore, change: impl Fn(u64, u64) -> u64) {
        let outcome = match scored.outcome {
            ItemOutcome::Completed => &mut self.completed,
            ItemOutcome::Failed => &mut self.failed,
            ItemOutcome::Cancelled => &mut self.cancelled,
            ItemOutcome::Unverified => &mut self.unverified,
        };
        *outcome = change(*outcome, 1);
        if let Some(failure) = scored.failure {
            let count = self.failures.of_mut(failure);
            *count = change(*count, 1);
        }
        for (count, by) in [
            (&mut self.passed, u64::from(scored.passed)),
            (&mut self.with_error, u64::from(scored.with_error)),
            (&mut self.steps_unverified, u64::from(scored.step_unverified)),
            (&mut self.before_agent, u64::from(scored.before_agent)),
            (&mut self.retries, u64::from(scored.retries)),
            (&mut self.lost, u64::from(scored.lost)),
            (&mut self.unreachable, u64::from(scored.unreachable)),
            (&mut self.not_installed, u64::from(scored.not_installed)),
            (&mut self.format_doubts, u64::from(scored.format_doubt)),
        ] {
            *count = change(*count, by);
        }
    }

    /// The rewards of completed trials as the headline counts them. The extremes are those of all.
    pub(super) fn scored_rewards(&self) -> Rewards {
        let mut rewards = self.rewards;
        rewards.sum.add(-self.uncounted.value());
        rewards
    }

    /// Trials with a terminal record.
    pub fn settled(&self) -> u64 {
        self.completed + self.failed + self.cancelled + self.unverified
    }

    /// Share of completed trials that passed; `None` when none completed.
    pub fn pass_rate(&self) -> Option<f64> {
        (self.completed > 0).then(|| self.passed as f64 / self.completed as f64)
    }

    /// Cost of all executions, as far as it is known.
    pub fn cost(&self) -> f64 {
        self.cost.value()
    }

    /// Cost of all executions; `None` if nothing of it is known.
    pub fn known_cost(&self) -> Option<f64> {
        known_cost(self.cost(), self.model_use.unpriced_calls)
    }
}
