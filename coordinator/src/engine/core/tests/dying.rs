//! Deaths, and what follows from them.

use rollout_protocol::limits::{DEATHS_BEFORE_SOLO, MAX_DEATHS, SOLO_DEATHS, TRIES_PER_ITEM};

use super::fleet::running_execution;
use super::*;

/// The class of the last offer.
fn class(world: &CoreFixture) -> SizeClass {
    let mut offers = world.effects.iter().filter_map(|effect| match effect {
        CoreEffect::Offer { class, .. } => Some(*class),
        _ => None,
    });
    offers.next_back().expect("an offer")
}

fn nth(n: u32) -> TryId {
    TryId { epoch: 1, n }
}

#[test]
fn after_two_deaths_an_item_runs_alone_and_after_three_more_it_is_poisoned() {
    let mut world = CoreFixture::remote(1, 1);
    for n in 1..=DEATHS_BEFORE_SOLO {
        assert_eq!(class(&world), SizeClass(0));
        world.report(0, nth(n), u64::from(n), 1, lost(LostReason::WorkerDied));
    }
    for n in DEATHS_BEFORE_SOLO + 1..=DEATHS_BEFORE_SOLO + SOLO_DEATHS {
        assert_eq!(class(&world), SizeClass::SOLO);
        assert!(world.settled().is_empty());
        world.report(0, nth(n), u64::from(n), 1, lost(LostReason::WorkerDied));
    }
    let settled = world.settled();
    assert_eq!(settled[0].verdict.outcome, ItemOutcome::Failed);
    assert_eq!(settled[0].verdict.reward, None);
    let error = settled[0].verdict.error.clone().expect("an error");
    assert_eq!((error.code.clone(), error.is_retryable()), (ErrorCode::POISONED, false));
    assert_eq!(settled[0].superseded.len(), 5, "every execution is kept");
    world.assert_replay_matches();
}

#[test]
fn an_innocent_item_that_died_in_company_ends_normally() {
    let mut world = CoreFixture::remote(1, 1);
    for n in 1..=DEATHS_BEFORE_SOLO {
        world.report(0, nth(n), u64::from(n), 1, lost(LostReason::WorkerDied));
    }
    world.report(0, nth(3), 3, 1, ok(1.0));
    assert_eq!(world.settled()[0].verdict.outcome, ItemOutcome::Completed);
}

#[test]
fn deaths_that_nobody_can_attribute_have_a_bound_too() {
    let mut world = CoreFixture::remote(1, 1);
    // Heard of only by their loss, under a try that is over.
    for e in 1..=u64::from(MAX_DEATHS) {
        assert!(world.settled().is_empty());
        world.report(0, TryId { epoch: 0, n: 1 }, e, 1, lost(LostReason::WorkerDied));
    }
    assert_eq!(world.settled()[0].verdict.error.clone().expect("one").code, ErrorCode::POISONED);
}

#[test]
fn a_death_is_withdrawn_when_the_execution_reports_after_all() {
    let mut world = CoreFixture::remote(1, 1);
    world.report(0, nth(1), 1, 1, lost(LostReason::WorkerDied));
    world.report(0, nth(2), 2, 1, lost(LostReason::WorkerDied));
    assert_eq!(class(&world), SizeClass::SOLO);
    world.report(0, nth(2), 2, 1, outage());
    world.report(0, nth(3), 3, 1, outage());
    world.wait(60_000);
    assert_eq!(class(&world), SizeClass(0), "one death is left");
}

#[test]
fn what_is_out_of_reach_is_dead_only_after_it_was_for_as_long_as_a_worker_goes_on() {
    let mut world = CoreFixture::remote(1, 1);
    world.watch(1, &[("a", &[running_execution(0, nth(1), 1, false)])]);
    world.watch(90, &[("b", &[])]);
    world.observe(&[(0, nth(1), true)]);
    assert_eq!(world.lost_executions(), [(exec(1), LostReason::Unreachable)]);
    world.watch(1800, &[("b", &[])]);
    world.observe(&[(0, nth(1), true)]);
    let died = (exec(1), LostReason::WorkerDied);
    assert_eq!(world.lost_executions().last(), Some(&died));
    world.observe(&[(0, nth(1), true)]);
    assert_eq!(world.lost_executions().len(), 2, "once");
    world.assert_replay_matches();
}

#[test]
fn the_word_of_its_host_says_more_than_silence() {
    let mut world = CoreFixture::remote(1, 1);
    world.watch(1, &[("a", &[running_execution(0, nth(1), 1, false)])]);
    world.watch(90, &[("b", &[])]);
    world.observe(&[(0, nth(1), true)]);
    assert_eq!(world.offered().len(), 1, "it will be delivered again");
    world.report(0, nth(1), 1, 1, lost(LostReason::WorkerDied));
    assert_eq!(world.offered().last(), Some(&(item(0), nth(2))), "nobody has to wait for that");
    world.report(0, nth(2), 2, 1, lost(LostReason::WorkerDied));
    assert_eq!(class(&world), SizeClass::SOLO);
}

#[test]
fn what_we_ended_ourselves_counts_as_nothing() {
    for reason in [LostReason::Stopped, LostReason::ProcessDied, LostReason::Outage] {
        let mut world = CoreFixture::remote(1, 1);
        for n in 1..=2 * TRIES_PER_ITEM {
            world.report(0, nth(n), u64::from(n), 1, lost(reason));
        }
        assert!(world.settled().is_empty());
        assert_eq!(class(&world), SizeClass(0));
    }
}
