//! Worker deaths and their consequences.

use rollout_protocol::limits::{DEATHS_BEFORE_SOLO, MAX_DEATHS, SOLO_DEATHS, TRIES_PER_ITEM};
use rollout_protocol::wire::heartbeat::Heartbeat;

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
fn item_with_repeated_worker_deaths_runs_solo_then_is_poisoned() {
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
fn item_completed_solo_after_worker_deaths_is_not_poisoned() {
    let mut world = CoreFixture::remote(1, 1);
    for n in 1..=DEATHS_BEFORE_SOLO {
        world.report(0, nth(n), u64::from(n), 1, lost(LostReason::WorkerDied));
    }
    world.report(0, nth(3), 3, 1, ok(1.0));
    assert_eq!(world.settled()[0].verdict.outcome, ItemOutcome::Completed);
}

#[test]
fn worker_deaths_unattributed_poison_item_at_limit() {
    let mut world = CoreFixture::remote(1, 1);
    // Known only by their loss, under a try that is over.
    for e in 1..=u64::from(MAX_DEATHS) {
        assert!(world.settled().is_empty());
        world.report(0, TryId { epoch: 0, n: 1 }, e, 1, lost(LostReason::WorkerDied));
    }
    assert_eq!(world.settled()[0].verdict.error.clone().expect("one").code, ErrorCode::POISONED);
}

#[test]
fn worker_death_is_uncounted_when_execution_reports_later() {
    let mut world = CoreFixture::remote(1, 1);
    world.report(0, nth(1), 1, 1, lost(LostReason::WorkerDied));
    world.report(0, nth(2), 2, 1, lost(LostReason::WorkerDied));
    assert_eq!(class(&world), SizeClass::SOLO);
    world.report(0, nth(2), 2, 1, outage());
    world.report(0, nth(3), 3, 1, outage());
    world.wait(60_000);
    assert_eq!(class(&world), SizeClass(0), "one death is left");
}

/// After the first time, seconds, worker `a` is unreachable; after the second one, it is dead.
fn assert_unreachable_then_dead(world: &mut CoreFixture, [unreachable, dead]: [u64; 2]) {
    world.watch(unreachable, &[("b", &[])]);
    world.observe(&[(0, nth(1), true)]);
    assert_eq!(world.lost_executions(), [(exec(1), LostReason::Unreachable)]);
    world.watch(dead, &[("b", &[])]);
    world.observe(&[(0, nth(1), true)]);
    let died = (exec(1), LostReason::WorkerDied);
    assert_eq!(world.lost_executions().last(), Some(&died));
}

#[test]
fn execution_unreachable_past_offline_limit_is_worker_death() {
    let mut world = CoreFixture::remote(1, 1);
    world.watch(1, &[("a", &[running_execution(0, nth(1), 1, false)])]);
    assert_unreachable_then_dead(&mut world, [90, 1800]);
    world.observe(&[(0, nth(1), true)]);
    assert_eq!(world.lost_executions().len(), 2, "once");
    world.assert_replay_matches();
}

#[test]
fn worker_with_longer_offline_limit_is_dead_only_past_it() {
    let mut world = CoreFixture::remote(1, 1);
    world.now_ms += 1000;
    let running = vec![running_execution(0, nth(1), 1, false)];
    let heartbeat = Heartbeat { max_offline_sec: Some(3600), ..fleet::heartbeat("a", running) };
    world.handle(CoreInput::Heartbeats(vec![ReceivedHeartbeat { heartbeat, age: Duration::ZERO }]));
    assert_unreachable_then_dead(&mut world, [1890, 1800]);
}

#[test]
fn worker_death_reported_by_host_reoffers_at_once() {
    let mut world = CoreFixture::remote(1, 1);
    world.watch(1, &[("a", &[running_execution(0, nth(1), 1, false)])]);
    world.watch(90, &[("b", &[])]);
    world.observe(&[(0, nth(1), true)]);
    assert_eq!(world.offered().len(), 1, "it will be delivered again");
    world.report(0, nth(1), 1, 1, lost(LostReason::WorkerDied));
    assert_eq!(world.offered().last(), Some(&(item(0), nth(2))), "it is offered at once");
    world.report(0, nth(2), 2, 1, lost(LostReason::WorkerDied));
    assert_eq!(class(&world), SizeClass::SOLO);
}

#[test]
fn execution_lost_to_stop_or_outage_is_no_worker_death() {
    for reason in [LostReason::Stopped, LostReason::ProcessDied, LostReason::Outage] {
        let mut world = CoreFixture::remote(1, 1);
        for n in 1..=2 * TRIES_PER_ITEM {
            world.report(0, nth(n), u64::from(n), 1, lost(reason));
        }
        assert!(world.settled().is_empty());
        assert_eq!(class(&world), SizeClass(0));
    }
}
