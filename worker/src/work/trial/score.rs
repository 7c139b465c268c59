//! Scores: of one step, and of all steps together.

use std::collections::{BTreeMap, BTreeSet};

use rollout_protocol::record::{REWARD_KEY, Rewards};
use rollout_protocol::spec::task::StepStrategy;

use crate::verifier::keyed_reward;

/// A verifier's numbers.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct VerifierScore {
    /// The number that is the reward.
    pub(super) reward: Option<f64>,
    /// All numbers by name; empty when there is only one, without a name.
    pub(super) rewards: Rewards,
}

impl VerifierScore {
    /// One number without a name.
    pub(super) const fn plain(reward: f64) -> Self {
        Self { reward: Some(reward), rewards: Rewards::new() }
    }

    /// Numbers with names; `key` of the job selects the reward.
    pub(super) fn keyed(rewards: Rewards, key: Option<&str>) -> Self {
        Self { reward: keyed_reward::select_reward(&rewards, key), rewards }
    }

    fn get(&self, key: &str) -> Option<f64> {
        if self.rewards.is_empty() {
            self.reward.filter(|_| key == REWARD_KEY)
        } else {
            self.rewards.get(key).copied()
        }
    }

    /// Whether it has every number that the following steps require.
    pub(super) fn reaches(&self, least: &BTreeMap<String, f64>) -> bool {
        least.iter().all(|(key, least)| self.get(key).is_some_and(|number| number >= *least))
    }

    /// The score of all steps together: `scores` are those of the steps that ran, in order. `None`
    /// when no step that counts was verified.
    ///
    /// As in Harbor, the mean is over the verified steps, and the final step of a task that ended
    /// early is the last one that ran.
    pub(super) fn from_steps<'a>(
        mut scores: impl DoubleEndedIterator<Item = Option<&'a Self>>,
        strategy: StepStrategy,
        key: Option<&str>,
    ) -> Option<Self> {
        match strategy {
            StepStrategy::Final => scores.next_back().flatten().cloned(),
            StepStrategy::Mean => Self::mean(&scores.flatten().collect::<Vec<_>>(), key),
        }
    }

    fn mean(scores: &[&Self], key: Option<&str>) -> Option<Self> {
        if scores.is_empty() {
            return None;
        }
        let mean = |key: &str| {
            scores.iter().filter_map(|score| score.get(key)).sum::<f64>() / scores.len() as f64
        };
        if scores.iter().all(|score| score.rewards.is_empty()) {
            return Some(Self::plain(mean(REWARD_KEY)));
        }
        let named = scores.iter().flat_map(|score| score.rewards.keys().map(String::as_str));
        let plain = scores.iter().any(|score| score.rewards.is_empty()).then_some(REWARD_KEY);
        let keys: BTreeSet<&str> = named.chain(plain).collect();
        Some(Self::keyed(keys.into_iter().map(|key| (key.to_owned(), mean(key))).collect(), key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn score(pairs: &[(&str, f64)]) -> VerifierScore {
        VerifierScore::keyed(
            pairs.iter().map(|(key, number)| ((*key).to_owned(), *number)).collect(),
            None,
        )
    }

    fn score_of(scores: &[Option<VerifierScore>], strategy: StepStrategy) -> Option<VerifierScore> {
        VerifierScore::from_steps(scores.iter().map(Option::as_ref), strategy, None)
    }

    #[test]
    fn step_score_mean_is_per_key_over_verified_steps() {
        use StepStrategy::Mean;
        let (half, one) = (Some(VerifierScore::plain(0.5)), Some(VerifierScore::plain(1.0)));
        assert_eq!(score_of(&[half, one.clone(), None], Mean), Some(VerifierScore::plain(0.75)));
        assert_eq!(score_of(&[None], Mean), None);
        let keyed = Some(score(&[("reward", 1.0), ("speed", 0.5)]));
        let mixed = score_of(&[keyed, one, None], Mean);
        assert_eq!(mixed, Some(score(&[("reward", 1.0), ("speed", 0.25)])));
    }

    #[test]
    fn step_score_final_is_of_last_step_run() {
        use StepStrategy::Final;
        let (low, keyed) = (Some(VerifierScore::plain(0.25)), Some(score(&[("a", 1.0)])));
        assert_eq!(score_of(&[keyed.clone(), low.clone()], Final), low);
        assert_eq!(score_of(&[low, keyed.clone()], Final), keyed);
        assert_eq!(score_of(&[keyed, None], Final), None);
    }

    #[test]
    fn score_with_missing_key_does_not_reach_minimum() {
        let least = |key: &str, least| BTreeMap::from([(key.to_owned(), least)]);
        assert!(VerifierScore::plain(0.5).reaches(&least("reward", 0.5)));
        assert!(!VerifierScore::plain(0.4).reaches(&least("reward", 0.5)));
        assert!(!VerifierScore::plain(1.0).reaches(&least("quality", 0.0)));
        assert!(score(&[("quality", 1.0)]).reaches(&least("quality", 0.5)));
        assert!(VerifierScore::plain(0.0).reaches(&BTreeMap::new()));
    }
}
