//! Harbor's `stats` of a job, accumulated trial by trial.

use std::collections::BTreeMap;

use rollout_protocol::record::{ItemOutcome, Settlement};
use rollout_protocol::spec::metric::MetricKind;
use serde_json::{Map, Value, json};

use super::errors::exception;
use crate::results::export::source::SettledTrial;
use crate::results::metrics::{KeyRewards, TrialScore};

/// The figures of a job.
#[derive(Default)]
pub(super) struct HarborStats {
    trials: u64,
    errored: u64,
    cancelled: u64,
    retries: u64,
    evals: BTreeMap<String, HarborEval>,
}

/// The figures of an agent on a dataset.
#[derive(Default)]
struct HarborEval {
    trials: u64,
    verified: u64,
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
        self.cancelled += u64::from(settlement.verdict.outcome == ItemOutcome::Cancelled);
        let key = format!("{}__{}", trial.name.agent, trial.name.dataset);
        let eval = self.evals.entry(key).or_default();
        eval.trials += 1;
        if settlement.verdict.outcome == ItemOutcome::Completed {
            eval.verified += 1;
            for (key, number) in settlement.verdict.numbers() {
                eval.keys.add(key, number);
                let numbers = eval.rewards.entry(key.to_owned()).or_default();
                numbers.entry(format!("{number:?}")).or_default().push(name.to_owned());
            }
        }
        if let Some(exception) = exception(settlement) {
            self.errored += 1;
            eval.errored += 1;
            eval.exceptions.entry(exception.to_owned()).or_default().push(name.to_owned());
        }
        eval.count(&trial.name.task, settlement);
    }

    /// `stats` of the job's result; `planned` is the number of trials in the plan.
    pub(super) fn document(&self, planned: u64, kinds: &[MetricKind]) -> Value {
        let kinds = if kinds.is_empty() { &[MetricKind::Mean] } else { kinds };
        let evals: Map<String, Value> =
            self.evals.iter().map(|(key, eval)| (key.clone(), eval.document(kinds))).collect();
        json!({
            "n_completed_trials": self.trials,
            "n_errored_trials": self.errored,
            "n_running_trials": 0,
            "n_pending_trials": planned.saturating_sub(self.trials),
            "n_cancelled_trials": self.cancelled,
            "n_retries": self.retries,
            "evals": evals,
            "n_input_tokens": null,
            "n_cache_tokens": null,
            "n_output_tokens": null,
            "cost_usd": null,
        })
    }
}

impl HarborEval {
    /// Counts a trial of `task` for pass@k, unless it is not scored.
    fn count(&mut self, task: &str, settlement: &Settlement) {
        let verdict = &settlement.verdict;
        let numbers: Vec<f64> = verdict.numbers().map(|(_, number)| number).collect();
        let passed = match (verdict.outcome, &numbers[..]) {
            (ItemOutcome::Completed, [number]) if *number == 0.0 || *number == 1.0 => {
                *number == 1.0
            }
            (ItemOutcome::Completed, _) => {
                self.graded = true;
                return;
            }
            _ if !TrialScore::from_settlement(settlement).is_scored() => return,
            _ => false,
        };
        let task = self.tasks.entry(task.to_owned()).or_default();
        task.0 += 1;
        task.1 += u64::from(passed);
    }

    /// The metrics as Harbor computes them: over all trials, with 0 for every missing number, also
    /// for one that the infrastructure caused.
    fn metrics(&self, kinds: &[MetricKind]) -> Vec<Value> {
        let lone = self.keys.iter().count() <= 1;
        let metrics = kinds.iter().map(|kind| {
            if self.keys.iter().next().is_none() {
                return json!({kind.as_str(): 0.0});
            }
            let values = self.keys.iter().map(|(key, rewards)| {
                let name = if lone { kind.as_str() } else { key };
                let missing = self.trials.saturating_sub(rewards.count());
                (name.to_owned(), json!(rewards.with_zeros(missing).metric(*kind)))
            });
            Value::Object(values.collect())
        });
        metrics.collect()
    }

    fn document(&self, kinds: &[MetricKind]) -> Value {
        json!({
            "n_trials": self.verified,
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
    use proptest::prelude::*;
    use rollout_protocol::error::{ErrorCode, ErrorType, TrialError};

    use super::*;
    use crate::results::testing::{failed, passed, settlement, trial};

    /// Harbor's computation of the metrics, trial by trial.
    fn harbor_pass_at_k(
        kind: MetricKind,
        trials: &[Option<BTreeMap<String, f64>>],
    ) -> BTreeMap<String, f64> {
        let aggregate = |values: Vec<f64>| match kind {
            MetricKind::Sum => values.iter().sum(),
            MetricKind::Mean => values.iter().sum::<f64>() / values.len() as f64,
            MetricKind::Min => values.into_iter().fold(f64::INFINITY, f64::min),
            MetricKind::Max => values.into_iter().fold(f64::NEG_INFINITY, f64::max),
        };
        let of = |key: &str| {
            let value = |trial: &Option<BTreeMap<String, f64>>| -> f64 {
                trial.as_ref().and_then(|rewards| rewards.get(key).copied()).unwrap_or(0.0)
            };
            aggregate(trials.iter().map(value).collect())
        };
        let mut keys: Vec<&String> = trials.iter().flatten().flat_map(BTreeMap::keys).collect();
        keys.sort();
        keys.dedup();
        match &keys[..] {
            [] => BTreeMap::from([(kind.to_string(), 0.0)]),
            [key] => BTreeMap::from([(kind.to_string(), of(key))]),
            keys => keys.iter().map(|key| ((*key).clone(), of(key))).collect(),
        }
    }

    proptest! {
        #[test]
        fn harbor_metrics_of_any_rewards_equal_those_of_harbor(
            trials in prop::collection::vec(
                prop::option::of(prop::collection::btree_map("[ab]", -3i8..3, 1..3)), 1..9),
        ) {
            let number = |(key, number): (String, i8)| (key, f64::from(number));
            let trials: Vec<Option<BTreeMap<String, f64>>> = trials
                .into_iter()
                .map(|trial| trial.map(|rewards| rewards.into_iter().map(number).collect()))
                .collect();
            let mut eval = HarborEval::default();
            for trial in &trials {
                eval.trials += 1;
                for (key, number) in trial.iter().flatten() {
                    eval.keys.add(key, *number);
                }
            }
            for kind in MetricKind::ALL {
                let expected = harbor_pass_at_k(*kind, &trials);
                let found = eval.metrics(&[*kind]);
                let found: BTreeMap<String, f64> =
                    serde_json::from_value(found[0].clone()).expect("numbers");
                prop_assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
                for (key, expected) in &expected {
                    prop_assert!((found[key] - expected).abs() < 1e-12, "{} {}", kind, key);
                }
            }
        }
    }

    #[test]
    fn pass_at_k_leaves_out_failures_that_are_not_scored() {
        let lost = TrialError::transient(ErrorType::InternalError, ErrorCode::BUG, "lost");
        let unsupported = TrialError::unsupported("no graphics processors");
        let mut eval = HarborEval::default();
        for verdict in [passed(1.0), passed(0.0), failed(lost), failed(unsupported)] {
            eval.count("task", &settlement(trial("agent", "task", 1), 1, verdict));
        }
        assert_eq!(eval.tasks["task"], (2, 1));
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
