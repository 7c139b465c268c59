//! Harbor's `stats` of a job, accumulated trial by trial.

use std::collections::BTreeMap;

use rollout_protocol::record::ItemOutcome;
use rollout_protocol::spec::metric::MetricKind;
use serde_json::{Map, Value, json};

use super::agent_use::AgentUse;
use super::documents::task_name;
use super::errors::{CANCELLED, exceptions, has_valid_reward};
use crate::results::export::source::SettledTrial;
use crate::results::metrics::{KeyRewards, TrialScore};

/// The figures of a job.
#[derive(Default)]
pub(super) struct HarborStats {
    trials: u64,
    errored: u64,
    cancelled: u64,
    retries: u64,
    usage: AgentUse,
    evals: BTreeMap<String, HarborEval>,
}

/// The figures of an agent on a dataset. Only trials with a valid reward are in means, counts and
/// pass@k.
#[derive(Default)]
struct HarborEval {
    valid: u64,
    errored: u64,
    keys: KeyRewards,
    /// Trial names by key and reward text.
    rewards: BTreeMap<String, BTreeMap<String, Vec<String>>>,
    exceptions: BTreeMap<String, Vec<String>>,
    /// Number of trials and of passed trials of each task.
    tasks: BTreeMap<String, (u64, u64)>,
    /// Whether a trial has a reward other than 0 and 1, or several rewards.
    graded: bool,
}

impl HarborStats {
    /// Adds a trial.
    pub(super) fn add(&mut self, trial: &SettledTrial, name: &str) {
        let settlement = &trial.settlement;
        self.trials += 1;
        self.retries += u64::from(TrialScore::from_settlement(settlement).retries);
        self.usage.add(&AgentUse::of(trial));
        let key = format!("{}__{}", trial.name.agent, trial.name.dataset);
        let eval = self.evals.entry(key).or_default();
        let exceptions = exceptions(trial);
        let numbers = valid_numbers(trial);
        if !numbers.is_empty() && exceptions.iter().all(|exception| has_valid_reward(exception)) {
            eval.add(task_name(trial), &numbers, name);
        }
        self.errored += u64::from(!exceptions.is_empty());
        eval.errored += u64::from(!exceptions.is_empty());
        self.cancelled += u64::from(exceptions.contains(CANCELLED));
        for exception in exceptions {
            eval.exceptions.entry(exception.to_owned()).or_default().push(name.to_owned());
        }
    }

    /// `stats` of the job's result; `planned` is the number of trials in the plan.
    pub(super) fn document(&self, planned: u64, kinds: &[MetricKind]) -> Value {
        let kinds = if kinds.is_empty() { &[MetricKind::Mean] } else { kinds };
        let evals: Map<String, Value> =
            self.evals.iter().map(|(key, eval)| (key.clone(), eval.document(kinds))).collect();
        let mut document = json!({
            "n_completed_trials": self.trials,
            "n_errored_trials": self.errored,
            "n_running_trials": 0,
            "n_pending_trials": planned.saturating_sub(self.trials),
            "n_cancelled_trials": self.cancelled,
            "n_retries": self.retries,
            "evals": evals,
        });
        self.usage.write(&mut document);
        document
    }
}

/// The rewards of a trial with a verdict.
fn valid_numbers(trial: &SettledTrial) -> BTreeMap<&str, f64> {
    let verdict = &trial.settlement.verdict;
    let has_verdict = verdict.outcome == ItemOutcome::Completed;
    verdict.numbers().filter(|_| has_verdict).collect()
}

impl HarborEval {
    /// Adds a trial of `task` with valid rewards.
    fn add(&mut self, task: &str, numbers: &BTreeMap<&str, f64>, name: &str) {
        self.valid += 1;
        for (key, number) in numbers {
            self.keys.add(key, *number);
            let texts = self.rewards.entry((*key).to_owned()).or_default();
            texts.entry(format!("{number:?}")).or_default().push(name.to_owned());
        }
        let lone = numbers.values().next().filter(|_| numbers.len() == 1);
        match lone {
            Some(number) if *number == 0.0 || *number == 1.0 => {
                let (trials, passed) = self.tasks.entry(task.to_owned()).or_default();
                *trials += 1;
                *passed += u64::from(*number == 1.0);
            }
            _ => self.graded = true,
        }
    }

    /// The metrics as Harbor computes them: over trials with a valid reward, with 0 for a key that one
    /// of them lacks; none without such a trial.
    fn metrics(&self, kinds: &[MetricKind]) -> Vec<Value> {
        if self.valid == 0 {
            return Vec::new();
        }
        let lone = self.keys.iter().count() <= 1;
        let metrics = kinds.iter().map(|kind| {
            let values = self.keys.iter().map(|(key, rewards)| {
                let name = if lone { kind.as_str() } else { key };
                let missing = self.valid.saturating_sub(rewards.count());
                (name.to_owned(), json!(rewards.with_zeros(missing).metric(*kind)))
            });
            Value::Object(values.collect())
        });
        metrics.collect()
    }

    fn document(&self, kinds: &[MetricKind]) -> Value {
        json!({
            "n_trials": self.valid,
            "n_errors": self.errored,
            "metrics": self.metrics(kinds),
            "pass_at_k": self.pass_at_k(),
            "reward_stats": self.rewards,
            "exception_stats": self.exceptions,
        })
    }

    /// The share of tasks that at least one of k trials passes, estimated without bias, for the
    /// powers of two and the multiples of five that every task has trials for.
    fn pass_at_k(&self) -> BTreeMap<u64, f64> {
        let least = self.tasks.values().map(|(trials, _)| *trials).min();
        let Some(least) = least.filter(|_| !self.graded) else { return BTreeMap::new() };
        (2..=least)
            .filter(|k| k.is_power_of_two() || k % 5 == 0)
            .map(|k| {
                let passed = self.tasks.values().map(|(n, c)| pass_at_k(*n, *c, k));
                (k, passed.sum::<f64>() / self.tasks.len() as f64)
            })
            .collect()
    }
}

/// The probability that `k` of `n` trials, of which `c` passed, include a passed one.
fn pass_at_k(n: u64, c: u64, k: u64) -> f64 {
    if n - c < k {
        return 1.0;
    }
    1.0 - (0..k).map(|i| (n - c - i) as f64 / (n - i) as f64).product::<f64>()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// Harbor's computation of a metric, trial by trial, over the rewards of its valid trials.
    fn harbor_metric(
        kind: MetricKind,
        trials: &[BTreeMap<String, f64>],
    ) -> Option<BTreeMap<String, f64>> {
        let aggregate = |values: Vec<f64>| match kind {
            MetricKind::Sum => values.iter().sum(),
            MetricKind::Mean => values.iter().sum::<f64>() / values.len() as f64,
            MetricKind::Min => values.into_iter().fold(f64::INFINITY, f64::min),
            MetricKind::Max => values.into_iter().fold(f64::NEG_INFINITY, f64::max),
        };
        let of = |key: &str| {
            let value = |trial: &BTreeMap<String, f64>| trial.get(key).copied().unwrap_or(0.0);
            aggregate(trials.iter().map(value).collect())
        };
        let keys: BTreeSet<&String> = trials.iter().flat_map(BTreeMap::keys).collect();
        let metric = match keys.len() {
            0 => return None,
            1 => keys.into_iter().map(|key| (kind.to_string(), of(key))).collect(),
            _ => keys.into_iter().map(|key| (key.clone(), of(key))).collect(),
        };
        Some(metric)
    }

    proptest! {
        #[test]
        fn harbor_metrics_of_any_rewards_equal_those_of_harbor(
            trials in prop::collection::vec(
                prop::collection::btree_map("[ab]", -3i8..3, 1..3), 0..9),
        ) {
            let number = |(key, number): (String, i8)| (key, f64::from(number));
            let trials: Vec<BTreeMap<String, f64>> =
                trials.into_iter().map(|trial| trial.into_iter().map(number).collect()).collect();
            let mut eval = HarborEval::default();
            for trial in &trials {
                let numbers = trial.iter().map(|(key, number)| (key.as_str(), *number)).collect();
                eval.add("task", &numbers, "trial");
            }
            for kind in MetricKind::ALL {
                let found = eval.metrics(&[*kind]).into_iter().next();
                let found: Option<BTreeMap<String, f64>> =
                    found.map(|found| serde_json::from_value(found).expect("numbers"));
                let expected = harbor_metric(*kind, &trials);
                let names = |of: &Option<BTreeMap<String, f64>>| {
                    of.iter().flat_map(BTreeMap::keys).cloned().collect::<Vec<_>>()
                };
                prop_assert_eq!(names(&found), names(&expected));
                for (key, expected) in expected.iter().flatten() {
                    let found = found.as_ref().expect("the same keys")[key];
                    prop_assert!((found - expected).abs() < 1e-12, "{} {}", kind, key);
                }
            }
        }
    }

    #[test]
    fn pass_at_k_is_estimated_without_replacement() {
        assert_eq!(pass_at_k(4, 0, 2), 0.0);
        assert_eq!(pass_at_k(4, 3, 2), 1.0);
        assert!((pass_at_k(4, 1, 2) - 0.5).abs() < 1e-12);
        assert!((pass_at_k(5, 2, 2) - 0.7).abs() < 1e-12);
        let tasks = BTreeMap::from([("a".to_owned(), (10, 10)), ("b".to_owned(), (12, 0))]);
        let eval = HarborEval { tasks, ..HarborEval::default() };
        let keys: Vec<u64> = eval.pass_at_k().into_keys().collect();
        assert_eq!(keys, [2, 4, 5, 8, 10]);
        assert_eq!(eval.pass_at_k()[&10], 0.5);
        assert!(HarborEval { graded: true, ..eval }.pass_at_k().is_empty());
    }
}
