//! Random verdicts and executions.

use proptest::prelude::*;
use rollout_protocol::error::{ErrorClass, ErrorCode, ErrorType, RetryClass, TrialError};
use rollout_protocol::harness::HookEventType;
use rollout_protocol::record::{
    ExecutionEnd, HarnessEventCounts, HarnessSummary, ItemOutcome, LostReason, Rewards, Verdict,
};
use rollout_protocol::spec::budget::ModelUse;

use super::harness_summary;

/// An error of a class.
pub(crate) fn error(class: ErrorClass) -> TrialError {
    TrialError::new(
        ErrorType::InternalError,
        ErrorCode::BUG,
        class,
        RetryClass::Permanent,
        "it broke",
    )
}

/// An error of a task that its environment cannot run.
pub(crate) fn unsupported() -> TrialError {
    TrialError { code: ErrorCode::UNSUPPORTED_BY_ENVIRONMENT, ..error(ErrorClass::Task) }
}

/// An error of a task before the agent began.
pub(crate) fn before_agent() -> TrialError {
    TrialError { before_agent: true, ..error(ErrorClass::Task) }
}

/// Results of harnesses, with and without an objective and events.
fn harness() -> impl Strategy<Value = HarnessSummary> {
    let name = prop_oneof![9 => Just("score"), 1 => Just("loss")];
    let objective = prop::option::weighted(0.9, (name, -1e6..1e6f64));
    let types = HookEventType::NAMES.len();
    let events = prop::option::weighted(0.8, (prop::collection::vec(0..3u64, types), 0..5u64));
    (objective, events).prop_map(|(objective, events)| {
        let (name, value) = objective.unwrap_or_default();
        let summary = harness_summary(name, value);
        let events = events.map(|(counts, violations)| HarnessEventCounts {
            total: counts.iter().sum(),
            counts: HookEventType::NAMES
                .iter()
                .zip(counts)
                .map(|((name, _), count)| ((*name).to_owned(), count))
                .collect(),
            violations,
        });
        HarnessSummary {
            objective: summary.objective.filter(|_| objective.is_some()),
            events,
            ..summary
        }
    })
}

/// Verdicts of every outcome and party, of agents with and without a harness.
pub(crate) fn verdict() -> impl Strategy<Value = Verdict> {
    let cost = prop_oneof![Just(0.0), 0.0..10.0f64];
    let reward = prop_oneof![Just(0.0), Just(1.0), -1e6..1e6f64];
    let completed = (reward, cost.clone(), 0..8u8).prop_map(|(reward, cost, kind)| {
        let completed = Verdict { cost, ..Verdict::completed(reward) };
        let several = Rewards::from([("a".to_owned(), 1.0), ("b".to_owned(), 0.5)]);
        match kind {
            0 => Verdict { unverified_steps: vec!["two".into()], ..completed },
            1 => Verdict { reward: None, rewards: several, ..completed },
            _ => completed,
        }
    });
    let other = (0..8usize, cost).prop_map(|(which, cost)| {
        let (outcome, error) = [
            (ItemOutcome::Failed, Some(error(ErrorClass::Infrastructure))),
            (ItemOutcome::Failed, Some(error(ErrorClass::Agent))),
            (ItemOutcome::Failed, Some(error(ErrorClass::Verifier))),
            (ItemOutcome::Failed, Some(error(ErrorClass::Task))),
            (ItemOutcome::Failed, Some(unsupported())),
            (ItemOutcome::Failed, Some(before_agent())),
            (ItemOutcome::Cancelled, None),
            (ItemOutcome::Unverified, None),
        ][which]
            .clone();
        Verdict { outcome, error, ..Verdict::cancelled(cost) }
    });
    let harness = prop::option::weighted(0.8, harness().prop_map(Box::new));
    (prop_oneof![completed, other], harness)
        .prop_map(|(verdict, harness)| Verdict { harness, ..verdict })
}

/// Ends of executions.
pub(crate) fn execution_end() -> impl Strategy<Value = ExecutionEnd> {
    prop_oneof![
        verdict().prop_map(|verdict| ExecutionEnd::Reported { verdict }),
        prop_oneof![Just(0.0), 0.001..5.0f64].prop_map(|cost| {
            let model_use = ModelUse {
                calls: 2,
                tokens: 30,
                cost,
                unpriced_calls: 1,
                sec: 0.5,
                ..ModelUse::NONE
            };
            ExecutionEnd::Lost { reason: LostReason::Stopped, phase: None, cost, model_use }
        }),
        Just(ExecutionEnd::Open),
    ]
}
