use std::sync::Arc;

use proptest::prelude::*;
use rollout_protocol::Timestamp;
use rollout_protocol::error::{ErrorClass, ErrorCode};
use rollout_protocol::event::{EventKind, RunEvent};
use rollout_protocol::id::{ExecId, TryId};
use rollout_protocol::record::{Execution, ExecutionEnd, ItemOutcome, Settlement, Verdict};
use rollout_protocol::spec::metric::MetricKind;
use rollout_protocol::spec::trial::TrialName;

use super::*;
use crate::results::testing;
use crate::results::testing::strategies::{
    before_agent, error, execution_end, unsupported, verdict,
};

fn settlement() -> impl Strategy<Value = Settlement> {
    let superseded = prop::collection::vec(execution_end(), 0..3);
    (0..3u8, verdict(), superseded).prop_map(|(agent, verdict, ends)| {
        let trial = TrialName {
            agent: format!("agent-{agent}"),
            dataset: "d".into(),
            task: "t".into(),
            attempt: 1,
        };
        let execution = |end| Execution {
            try_id: TryId::first(1),
            exec: ExecId::from_bytes([1; 16]),
            worker: "w".parse().expect("a token"),
            end,
            record: None,
            durations: None,
            timestamps: None,
        };
        Settlement {
            item: trial.item(),
            name: trial.into(),
            by: None,
            verdict,
            superseded: ends.into_iter().map(execution).collect(),
            settled_at: Timestamp::UNIX_EPOCH,
            task_git_commit_id: None,
        }
    })
}

fn event(settlement: &Settlement) -> RunEvent {
    RunEvent {
        at: Timestamp::UNIX_EPOCH,
        kind: EventKind::TrialSettled {
            ordinal: 0,
            replayed: false,
            settlement: Arc::new(settlement.clone()),
        },
    }
}

fn fold(totals: &[AgentTotal], settlements: &[Settlement]) -> RunStats {
    let mut stats = RunStats::new(totals);
    for settlement in settlements {
        stats.apply(&event(settlement));
    }
    stats
}

/// Reference implementation of the headline: counts trials one by one.
#[derive(Debug, Default)]
struct ReferenceScore {
    passed: u64,
    counted: u64,
    infrastructure: u64,
    unsupported: u64,
    before_agent: u64,
    task: u64,
    /// Contribution of each trial to the mean.
    rewards: Vec<f64>,
    /// Whether a completed trial has several rewards and no single one.
    several: bool,
    single: bool,
}

impl ReferenceScore {
    fn from_settlements(settlements: &[&Settlement]) -> Self {
        let mut reference = Self::default();
        for verdict in settlements.iter().map(|settlement| &settlement.verdict) {
            match verdict.outcome {
                ItemOutcome::Cancelled | ItemOutcome::Unverified => continue,
                ItemOutcome::Completed => {
                    reference.counted += 1;
                    let whole = verdict.unverified_steps.is_empty();
                    let counted = |reward: f64| if whole { reward } else { reward.min(0.0) };
                    reference.rewards.extend(verdict.reward.map(counted));
                    reference.single |= verdict.reward.is_some();
                    reference.several |= verdict.reward.is_none();
                    reference.passed += u64::from(verdict.reward == Some(1.0) && whole);
                }
                ItemOutcome::Failed => {
                    let error = verdict.error.as_ref().expect("a cause");
                    if error.class == ErrorClass::Infrastructure {
                        reference.infrastructure += 1;
                    } else if error.code == ErrorCode::UNSUPPORTED_BY_ENVIRONMENT {
                        reference.unsupported += 1;
                    } else if error.before_agent {
                        reference.before_agent += 1;
                    } else {
                        reference.counted += 1;
                        reference.task += u64::from(error.class == ErrorClass::Task);
                        reference.rewards.push(0.0);
                    }
                }
            }
        }
        reference
    }

    fn mean(&self) -> Option<f64> {
        if self.rewards.is_empty() || self.several && !self.single {
            return None;
        }
        Some(self.rewards.iter().sum::<f64>() / self.rewards.len() as f64)
    }

    /// The pass rates with none and all failures of the infrastructure, and of tasks before the agent
    /// began, as passed.
    fn bounds(&self) -> [Option<f64>; 2] {
        let uncounted = self.infrastructure + self.before_agent;
        let trials = self.counted + uncounted;
        let rate = |lucky| (trials > 0).then(|| (self.passed + lucky) as f64 / trials as f64);
        [rate(0), rate(uncounted)]
    }

    /// Tries every number of failures of the infrastructure and of tasks as passed.
    fn compare_with_threshold(&self, least: f64) -> ThresholdOutcome {
        let uncounted = self.infrastructure + self.before_agent;
        let trials = self.counted + uncounted;
        if self.counted + self.infrastructure == 0 {
            return ThresholdOutcome::NothingScored;
        }
        let mut reached: Vec<bool> = (0..=uncounted + self.task)
            .map(|lucky| (self.passed + lucky) as f64 / trials as f64 >= least)
            .collect();
        // Without a scored trial there is no rate that could be reached.
        reached[0] &= self.counted > 0;
        match (reached.contains(&true), reached.contains(&false)) {
            (true, true) => ThresholdOutcome::Undecided,
            (true, false) => ThresholdOutcome::Reached,
            (false, _) => ThresholdOutcome::Missed,
        }
    }
}

fn close(a: Option<f64>, b: Option<f64>) -> bool {
    match (a, b) {
        (None, None) => true,
        (Some(a), Some(b)) => (a - b).abs() <= 1e-9 * (1.0 + a.abs().max(b.abs())),
        _ => false,
    }
}

proptest! {
    #[test]
    fn stats_of_any_settlements_equal_naive_count(
        settlements in prop::collection::vec(settlement(), 0..60),
        owed in prop::collection::vec(0u64..4, 3),
    ) {
        let names: Vec<String> = (0..3).map(|n| format!("agent-{n}")).collect();
        let of = |name: &str| -> Vec<&Settlement> {
            settlements.iter().filter(|s| s.trial().is_some_and(|trial| trial.agent == name)).collect()
        };
        let totals: Vec<AgentTotal> = names
            .iter()
            .zip(&owed)
            .map(|(name, owed)| AgentTotal { name: name.clone(), total: of(name).len() as u64 + owed })
            .collect();
        let stats = fold(&totals, &settlements);
        prop_assert_eq!(stats.pending(), owed.iter().sum::<u64>());
        let mut groups: Vec<(Vec<&Settlement>, &Tally)> =
            vec![(settlements.iter().collect(), stats.overall())];
        for agent in stats.agents() {
            prop_assert_eq!(agent.total, agent.tally.settled() + agent.pending());
            groups.push((of(&agent.name), &agent.tally));
        }
        for (mine, tally) in groups {
            let count = |outcome| mine.iter().filter(|s| s.verdict.outcome == outcome).count() as u64;
            prop_assert_eq!(tally.completed, count(ItemOutcome::Completed));
            prop_assert_eq!(tally.failed, count(ItemOutcome::Failed));
            prop_assert_eq!(tally.cancelled, count(ItemOutcome::Cancelled));
            prop_assert_eq!(tally.unverified, count(ItemOutcome::Unverified));
            prop_assert_eq!(tally.settled(), mine.len() as u64);
            let rewards: Vec<f64> = mine.iter().filter_map(|s| s.verdict.reward).collect();
            let sum: f64 = rewards.iter().sum();
            let some = |value: f64| (!rewards.is_empty()).then_some(value);
            let expected = [
                (MetricKind::Sum, some(sum)),
                (MetricKind::Min, rewards.iter().copied().reduce(f64::min)),
                (MetricKind::Max, rewards.iter().copied().reduce(f64::max)),
                (MetricKind::Mean, some(sum / rewards.len() as f64)),
            ];
            for (kind, value) in expected {
                prop_assert!(close(tally.rewards.metric(kind), value), "{kind}");
            }
            let plain = ReferenceScore::from_settlements(&mine);
            let completed = count(ItemOutcome::Completed);
            let rate = (completed > 0).then(|| plain.passed as f64 / completed as f64);
            prop_assert!(close(tally.pass_rate(), rate));
            let score = tally.score();
            prop_assert_eq!((score.passed, score.trials), (plain.passed, plain.counted));
            prop_assert!(close(score.mean_reward, plain.mean()));
            prop_assert_eq!(tally.passed, plain.passed);
            let [low, high] = plain.bounds();
            prop_assert!(close(score.pass_rate_low(), low) && close(score.pass_rate_high(), high));
            let failures = FailureParty::ALL.iter().map(|failure| tally.failures.get(*failure));
            prop_assert_eq!(failures.sum::<u64>(), tally.failed);
            prop_assert_eq!(tally.failures.infrastructure, plain.infrastructure);
            prop_assert_eq!(tally.failures.unsupported, plain.unsupported);
            prop_assert_eq!(tally.before_agent, plain.before_agent);
            for least in [0.0, 0.25, 0.5, 2.0 / 3.0, 1.0] {
                prop_assert_eq!(score.compare_with_threshold(least), plain.compare_with_threshold(least), "{}", least);
            }
            let ends = || mine.iter().flat_map(|s| &s.superseded).map(|e| &e.end);
            let spent: f64 = mine.iter().map(|s| s.verdict.cost).sum::<f64>()
                + ends().map(|e| match e {
                    ExecutionEnd::Reported { verdict } => verdict.cost,
                    ExecutionEnd::Lost { cost, .. } => *cost,
                    ExecutionEnd::Open => 0.0,
                }).sum::<f64>();
            prop_assert!(close(Some(tally.cost()), Some(spent)));
            let retries = ends().filter(|e| matches!(e, ExecutionEnd::Reported { .. })).count();
            prop_assert_eq!(tally.retries, retries as u64);
        }
    }

    #[test]
    fn stats_in_any_arrival_order_agree_within_rounding(
        (settlements, shuffled) in prop::collection::vec(settlement(), 0..200)
            .prop_flat_map(|all| (Just(all.clone()), Just(all).prop_shuffle())),
    ) {
        let (a, b) = (fold(&[], &settlements), fold(&[], &shuffled));
        for kind in MetricKind::ALL {
            let (x, y) = (a.overall().rewards.metric(*kind), b.overall().rewards.metric(*kind));
            prop_assert_eq!(x.is_some(), y.is_some());
            if let (Some(x), Some(y)) = (x, y) {
                prop_assert!((x - y).abs() <= 1e-12 * (1.0 + x.abs()), "{}: {} {}", kind, x, y);
            }
        }
        prop_assert_eq!(a.overall().passed, b.overall().passed);
        prop_assert_eq!(a.overall().failures, b.overall().failures);
        prop_assert!((a.overall().cost() - b.overall().cost()).abs() <= 1e-12 * (1.0 + a.overall().cost()));
    }
}

#[test]
fn stats_without_completed_trials_are_none() {
    let stats = RunStats::new(&[AgentTotal { name: "a".into(), total: 3 }]);
    assert_eq!((stats.total(), stats.pending()), (3, 3));
    assert_eq!(stats.overall().pass_rate(), None);
    let score = stats.overall().score();
    assert_eq!((score.trials, score.pass_rate(), score.mean_reward), (0, None, None));
    for kind in MetricKind::ALL {
        assert_eq!(stats.overall().rewards.metric(*kind), None);
    }
}

fn tally(verdicts: &[(usize, Verdict)]) -> Tally {
    let mut tally = Tally::default();
    for (count, verdict) in verdicts {
        let scored = TrialScore::from_verdict(verdict, &[]);
        (0..*count).for_each(|_| tally.add(&scored));
    }
    tally
}

#[test]
fn score_counts_agent_failures_but_not_infrastructure_failures() {
    let tally = tally(&[
        (14, Verdict::completed(1.0)),
        (2, Verdict::failed(error(ErrorClass::Agent))),
        (4, Verdict::failed(error(ErrorClass::Infrastructure))),
        (3, Verdict::failed(unsupported())),
    ]);
    assert_eq!((tally.pass_rate(), tally.rewards.mean()), (Some(1.0), Some(1.0)));
    let score = tally.score();
    assert_eq!((score.passed, score.trials), (14, 16));
    assert_eq!((score.pass_rate(), score.mean_reward), (Some(0.875), Some(0.875)));
    assert_eq!((score.pass_rate_low(), score.pass_rate_high()), (Some(0.7), Some(0.9)));
    let against = [0.7, 0.71, 0.9, 0.91].map(|least| score.compare_with_threshold(least));
    let expected = [
        ThresholdOutcome::Reached,
        ThresholdOutcome::Undecided,
        ThresholdOutcome::Undecided,
        ThresholdOutcome::Missed,
    ];
    assert_eq!(against, expected);
}

#[test]
fn score_leaves_out_task_failures_before_agent() {
    let tally = tally(&[
        (6, Verdict::completed(1.0)),
        (2, Verdict::completed(0.0)),
        (2, Verdict::failed(before_agent())),
    ]);
    let score = tally.score();
    assert_eq!((tally.failures.task, tally.before_agent), (2, 2));
    assert_eq!((score.passed, score.trials), (6, 8));
    assert_eq!((score.pass_rate(), score.mean_reward), (Some(0.75), Some(0.75)));
    assert_eq!((score.pass_rate_low(), score.pass_rate_high()), (Some(0.6), Some(0.8)));
    let against = [0.6, 0.75, 0.81].map(|least| score.compare_with_threshold(least));
    let expected =
        [ThresholdOutcome::Reached, ThresholdOutcome::Undecided, ThresholdOutcome::Missed];
    assert_eq!(against, expected);
}

#[test]
fn agent_gains_nothing_by_what_it_breaks() {
    let unverified =
        |reward| Verdict { unverified_steps: vec!["two".into()], ..Verdict::completed(reward) };
    let honest = tally(&[(1, Verdict::completed(1.0)), (1, Verdict::completed(0.0))]).score();
    for broken in [
        Verdict::failed(error(ErrorClass::Verifier)),
        Verdict::failed(error(ErrorClass::Task)),
        Verdict::failed(error(ErrorClass::Agent)),
        unverified(1.0),
    ] {
        let score = tally(&[(1, Verdict::completed(1.0)), (1, broken.clone())]).score();
        assert_eq!(score.pass_rate(), honest.pass_rate(), "{broken:?}");
        assert_eq!(score.mean_reward, honest.mean_reward, "{broken:?}");
        assert_eq!(score.pass_rate_high(), honest.pass_rate_high(), "{broken:?}");
    }
    assert_eq!(tally(&[(1, unverified(-2.0))]).score().mean_reward, Some(-2.0));
}

#[test]
fn stats_of_reopened_trial_are_as_if_it_had_not_settled() {
    let settled =
        |task: &str, verdict| testing::settlement(testing::trial("a", task, 1), 1, verdict);
    let apply = |stats: &mut RunStats, settlement: &Settlement, is_over: bool| {
        let (item, name) = (settlement.item, settlement.name.clone());
        let settlement = Arc::new(settlement.clone());
        let kind = match is_over {
            true => EventKind::TrialReopened { item, name, ordinal: 0, former: Some(settlement) },
            false => EventKind::TrialSettled { ordinal: 0, replayed: false, settlement },
        };
        stats.apply(&RunEvent { at: Timestamp::UNIX_EPOCH, kind });
    };
    let one = settled("first", Verdict::completed(0.5));
    for verdict in [Verdict::failed(error(ErrorClass::Agent)), Verdict::completed(0.5)] {
        let other = settled("second", Verdict { cost: 2.5, ..verdict });
        let mut stats = RunStats::new(&[AgentTotal { name: "a".into(), total: 2 }]);
        apply(&mut stats, &one, false);
        let before = stats.clone();
        apply(&mut stats, &other, false);
        assert_ne!(stats, before);
        apply(&mut stats, &other, true);
        assert_eq!(stats, before);
        assert_eq!(stats.pending(), 1);
    }
}
