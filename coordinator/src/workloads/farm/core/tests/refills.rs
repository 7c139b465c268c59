//! Tests of refills: which losses are replaced, and how many executions a group costs.

use rollout_protocol::farm::GroupEnd;

use super::*;

#[test]
fn lost_sample_is_replaced_by_next_generation_alone() {
    let mut farm = FarmFixture::new();
    farm.admit(request("g", 2));
    let begun = farm.begin(2);
    farm.settle(begun[0], Outcome::Lost);
    assert!(farm.shown.is_empty() && farm.core.status().queued_samples == 1);
    farm.restart();
    let refill = farm.begin(9);
    let key = farm.core.sample(refill[0]).expect("a sample");
    assert_eq!((refill.len(), key.index, key.generation), (1, 0, 2));
    farm.settle(refill[0], Outcome::Reward(1.0));
    farm.settle(begun[1], Outcome::Reward(0.0));
    let generations: Vec<u32> = farm.shown.iter().map(|one| one.sample.generation).collect();
    assert_eq!((generations, farm.last_end()), (vec![2, 1], Some(GroupEnd::Complete)));
}

#[test]
fn refills_end_at_their_limit() {
    let mut farm = FarmFixture::new();
    farm.admit(GroupRequest { max_refills: Some(1), ..request("g", 2) });
    let begun = farm.begin(2);
    farm.settle(begun[0], Outcome::Lost);
    farm.settle(begun[1], Outcome::Lost);
    let refill = farm.begin(1)[0];
    farm.settle(refill, Outcome::Lost);
    assert_eq!(farm.outcomes(), ["no_result", "no_result"]);
    assert_eq!(farm.last_end(), Some(GroupEnd::Complete));
    assert!(farm.shown.iter().all(|one| one.result.reward.is_none() && !one.usable));
}

#[test]
fn failure_of_agent_truncation_and_users_cancel_are_not_replaced() {
    let mut farm = FarmFixture::new();
    farm.admit(request("g", 3));
    let begun = farm.begin(3);
    let outcomes = [Outcome::AgentFailed, Outcome::Truncated, Outcome::CancelledByUser];
    for (ordinal, outcome) in begun.into_iter().zip(outcomes) {
        farm.settle(ordinal, outcome);
    }
    assert_eq!(farm.outcomes(), ["no_result", "truncated", "cancelled"]);
    assert_eq!(farm.core.totals.refills, 0);
}

#[test]
fn executions_under_failures_are_near_samples_divided_by_success_rate() {
    let mut farm = FarmFixture::new();
    let (groups, n) = (100, 8);
    for group in 0..groups {
        let limit = Some(1000);
        farm.admit(GroupRequest { max_refills: limit, ..request(&format!("g{group}"), n) });
    }
    // A linear congruential generator: the same failures in every run.
    let (mut random, mut executions) = (12_345u64, 0u32);
    loop {
        let begun = farm.begin(16);
        if begun.is_empty() {
            break;
        }
        for ordinal in begun {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let is_lost = (random >> 33) % 10 < 3;
            executions += 1;
            farm.settle(ordinal, if is_lost { Outcome::Lost } else { Outcome::Reward(1.0) });
        }
    }
    assert_eq!(farm.shown.len() as u32, groups * n);
    let expected = f64::from(groups * n) / 0.7;
    assert!((f64::from(executions) / expected - 1.0).abs() < 0.1, "{executions} for {expected}");
}
