//! The headline score of a run and its comparison with a threshold.

use super::tally::Tally;

/// Passed trials and the mean reward, over completed trials and failures that count. A failure
/// counts as reward 0 in the mean.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Score {
    /// Trials that count.
    pub trials: u64,
    /// Passed ones of these.
    pub passed: u64,
    /// Mean reward; `None` when no trial counts, or when trials completed but none with a single
    /// reward. Completed trials without a single reward are left out.
    pub mean_reward: Option<f64>,
    /// Infrastructure failures, which do not count.
    infrastructure: u64,
    /// Failures of tasks before the agent began, which do not count.
    before_agent: u64,
    /// Later failures of tasks, which count as not passed though the task may be their cause.
    after_agent: u64,
}

/// Outcome of comparing a run with a minimum share of passed trials.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ThresholdOutcome {
    /// Reached, even if no trial with a failure of the infrastructure or the task had passed.
    Reached,
    /// Not reached, even if every one of these had passed.
    Missed,
    /// Depends on the trials with failures of the infrastructure or the task.
    Undecided,
    /// No trial counts, and none could.
    NothingScored,
}

impl Tally {
    /// The headline score.
    pub fn score(&self) -> Score {
        Score::from_tally(self)
    }
}

impl Score {
    /// The headline score of `tally`.
    pub fn from_tally(tally: &Tally) -> Self {
        let before_agent = tally.before_agent;
        let counted = tally.failures.counted().saturating_sub(before_agent);
        let rewards = tally.scored_rewards();
        // Verifiers that report several numbers without a single reward define no mean.
        let known = rewards.count() > 0 || tally.completed == 0;
        let over = rewards.count() + counted;
        let mean = rewards.sum().unwrap_or(0.0) / over as f64;
        Self {
            trials: tally.completed + counted,
            passed: tally.passed,
            mean_reward: (known && over > 0).then_some(mean),
            infrastructure: tally.failures.infrastructure,
            before_agent,
            after_agent: tally.failures.task.saturating_sub(before_agent),
        }
    }

    /// Share of counted trials that passed; `None` when no trial counts.
    pub fn pass_rate(&self) -> Option<f64> {
        (self.trials > 0).then(|| self.passed as f64 / self.trials as f64)
    }

    /// The pass rate if every trial without a verdict on the agent counted as not passed; `None`
    /// without any trial.
    pub fn pass_rate_low(&self) -> Option<f64> {
        self.bound(0)
    }

    /// The pass rate if every trial without a verdict on the agent had passed; `None` without any
    /// trial.
    pub fn pass_rate_high(&self) -> Option<f64> {
        self.bound(self.without_verdict())
    }

    /// Failures that do not count and could have passed.
    fn without_verdict(&self) -> u64 {
        self.infrastructure + self.before_agent
    }

    /// The share of passed trials with `more` passed ones, over all that count or could.
    fn bound(&self, more: u64) -> Option<f64> {
        let trials = self.trials + self.without_verdict();
        (trials > 0).then(|| (self.passed + more) as f64 / trials as f64)
    }

    /// Compares the pass rate with a minimum. A run without a scored trial reaches none.
    pub fn compare_with_threshold(&self, threshold: f64) -> ThresholdOutcome {
        let reaches = |more: u64| self.bound(more).is_some_and(|pass_rate| pass_rate >= threshold);
        if self.trials == 0 && self.infrastructure == 0 {
            ThresholdOutcome::NothingScored
        } else if self.trials > 0 && reaches(0) {
            ThresholdOutcome::Reached
        } else if reaches(self.without_verdict() + self.after_agent) {
            ThresholdOutcome::Undecided
        } else {
            ThresholdOutcome::Missed
        }
    }
}
