use std::sync::Arc;

use proptest::prelude::*;
use rollout_protocol::Timestamp;
use rollout_protocol::error::{ErrorClass, ErrorCode, ErrorType, RetryClass, TrialError};
use rollout_protocol::event::{EventKind, RunEvent};
use rollout_protocol::id::{ExecId, TryId};
use rollout_protocol::record::{
    Execution, ExecutionEnd, LostReason, Outcome, Rewards, Settlement, Verdict,
};
use rollout_protocol::spec::trial::TrialName;

use super::*;

fn error(class: ErrorClass) -> TrialError {
    TrialError::new(
        ErrorType::InternalError,
        ErrorCode::BUG,
        class,
        RetryClass::Permanent,
        "it broke",
    )
}

fn verdict() -> impl Strategy<Value = Verdict> {
    let cost = prop_oneof![Just(0.0), 0.0..10.0f64];
    let completed = (prop_oneof![Just(0.0), Just(1.0), -1e6..1e6f64], cost.clone())
        .prop_map(|(reward, cost)| Verdict { cost, ..Verdict::completed(reward) });
    let other = (0..4usize, cost).prop_map(|(which, cost)| {
        let (outcome, class) = [
            (Outcome::Failed, Some(ErrorClass::Infrastructure)),
            (Outcome::Failed, Some(ErrorClass::Agent)),
            (Outcome::Cancelled, None),
            (Outcome::Unverified, None),
        ][which];
        Verdict { outcome, reward: None, rewards: Rewards::new(), cost, error: class.map(error) }
    });
    prop_oneof![completed, other]
}

fn end() -> impl Strategy<Value = ExecutionEnd> {
    prop_oneof![
        verdict().prop_map(|verdict| ExecutionEnd::Reported { verdict }),
        (0.0..5.0).prop_map(|cost| {
            ExecutionEnd::Lost { reason: LostReason::Stopped, phase: None, cost }
        }),
        Just(ExecutionEnd::Open),
    ]
}

fn settlement() -> impl Strategy<Value = Settlement> {
    let superseded = prop::collection::vec(end(), 0..3);
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
            trial,
            by: None,
            verdict,
            superseded: ends.into_iter().map(execution).collect(),
            settled_at: Timestamp::UNIX_EPOCH,
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

fn fold(totals: &[AgentTotal], settlements: &[Settlement]) -> Stats {
    let mut stats = Stats::new(totals);
    for settlement in settlements {
        stats.apply(&event(settlement));
    }
    stats
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
    fn agrees_with_counting_by_hand(
        settlements in prop::collection::vec(settlement(), 0..60),
        owed in prop::collection::vec(0u64..4, 3),
    ) {
        let names: Vec<String> = (0..3).map(|n| format!("agent-{n}")).collect();
        let of = |name: &str| -> Vec<&Settlement> {
            settlements.iter().filter(|s| s.trial.agent == name).collect()
        };
        let totals: Vec<AgentTotal> = names
            .iter()
            .zip(&owed)
            .map(|(name, owed)| AgentTotal { name: name.clone(), total: of(name).len() as u64 + owed })
            .collect();
        let stats = fold(&totals, &settlements);
        prop_assert_eq!(stats.owed(), owed.iter().sum::<u64>());
        let mut groups: Vec<(Vec<&Settlement>, &Tally)> =
            vec![(settlements.iter().collect(), stats.overall())];
        for agent in stats.agents() {
            prop_assert_eq!(agent.total, agent.tally.settled() + agent.owed());
            groups.push((of(&agent.name), &agent.tally));
        }
        for (mine, tally) in groups {
            let count = |outcome| mine.iter().filter(|s| s.verdict.outcome == outcome).count() as u64;
            prop_assert_eq!(tally.completed, count(Outcome::Completed));
            prop_assert_eq!(tally.failed, count(Outcome::Failed));
            prop_assert_eq!(tally.cancelled, count(Outcome::Cancelled));
            prop_assert_eq!(tally.unverified, count(Outcome::Unverified));
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
                prop_assert!(close(kind.of(&tally.rewards), value), "{kind}");
            }
            let ones = rewards.iter().filter(|r| **r == 1.0).count();
            prop_assert!(close(tally.pass_rate(), some(ones as f64 / rewards.len() as f64)));
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
    fn order_of_arrival_hardly_matters(
        (settlements, shuffled) in prop::collection::vec(settlement(), 0..200)
            .prop_flat_map(|all| (Just(all.clone()), Just(all).prop_shuffle())),
    ) {
        let (a, b) = (fold(&[], &settlements), fold(&[], &shuffled));
        for kind in MetricKind::ALL {
            let (x, y) = (kind.of(&a.overall().rewards), kind.of(&b.overall().rewards));
            prop_assert_eq!(x.is_some(), y.is_some());
            if let (Some(x), Some(y)) = (x, y) {
                prop_assert!((x - y).abs() <= 1e-12 * (1.0 + x.abs()), "{}: {} {}", kind, x, y);
            }
        }
        prop_assert_eq!(a.overall().passed, b.overall().passed);
        prop_assert!((a.overall().cost() - b.overall().cost()).abs() <= 1e-12 * (1.0 + a.overall().cost()));
    }
}

#[test]
fn nothing_completed_says_nothing() {
    let stats = Stats::new(&[AgentTotal { name: "a".into(), total: 3 }]);
    assert_eq!((stats.total(), stats.owed()), (3, 3));
    assert_eq!(stats.overall().pass_rate(), None);
    for kind in MetricKind::ALL {
        assert_eq!(kind.of(&stats.overall().rewards), None);
    }
}
