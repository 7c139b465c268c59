//! The headline of a run, and whether it reaches a threshold.

use super::tally::Tally;

/// Passed trials and the mean reward, over the completed trials and the failures that count. A
/// failure has no reward: it counts as 0 in the mean.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Score {
    /// Trials that count.
    pub trials: u64,
    /// Of these, passed ones.
    pub passed: u64,
    /// Mean reward; nothing when no trial counts, and when the completed trials have no single
    /// reward. Completed trials without one are left out.
    pub mean_reward: Option<f64>,
    /// Infrastructure failures, which do not count.
    infrastructure: u64,
}

/// How a run stands against a least share of passed trials.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ThresholdOutcome {
    /// Reached, even if every infrastructure failure had not passed.
    Reached,
    /// Not reached, even if every infrastructure failure had passed.
    Missed,
    /// It depends on the trials that failed by the infrastructure's fault.
    Undecided,
}

impl Tally {
    /// The headline figures.
    pub fn score(&self) -> Score {
        Score::from_tally(self)
    }
}

impl Score {
    /// The headline of `tally`.
    pub fn from_tally(tally: &Tally) -> Self {
        let counted = tally.failures.counted();
        let rewards = &tally.rewards;
        // Where verifiers give several numbers of which none is the reward, there is no mean.
        let known = rewards.count() > 0 || tally.completed == 0;
        let over = rewards.count() + counted;
        let mean = rewards.sum().unwrap_or(0.0) / over as f64;
        Self {
            trials: tally.completed + counted,
            passed: tally.passed,
            mean_reward: (known && over > 0).then_some(mean),
            infrastructure: tally.failures.infrastructure,
        }
    }

    /// Share of the trials that count which passed; nothing when none counts.
    pub fn pass_rate(&self) -> Option<f64> {
        (self.trials > 0).then(|| self.passed as f64 / self.trials as f64)
    }

    /// How the run stands against a least share of passed trials. With nothing that counts,
    /// nothing passed.
    pub fn compare_with_threshold(&self, least: f64) -> ThresholdOutcome {
        let reaches = |passed: u64| {
            let trials = self.trials + self.infrastructure;
            let rate = if trials > 0 { passed as f64 / trials as f64 } else { 0.0 };
            rate >= least
        };
        if reaches(self.passed) {
            ThresholdOutcome::Reached
        } else if reaches(self.passed + self.infrastructure) {
            ThresholdOutcome::Undecided
        } else {
            ThresholdOutcome::Missed
        }
    }
}
