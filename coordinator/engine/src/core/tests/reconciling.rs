//! Reconciliation rounds, rule by rule.

use super::fleet::running_execution;
use super::*;

/// A core whose queue lost everything, after a lease of watching.
fn wiped() -> CoreFixture {
    let mut world = CoreFixture::remote(1, 1);
    world.watch(61, &[]);
    world.observe(&[]);
    assert_eq!(world.lookups(), 0, "it may have been on its way");
    world.watch(30, &[]);
    world.observe(&[]);
    assert_eq!(world.lookups(), 1);
    world
}

/// The second of two items, offered and not published, after the first was settled.
fn unpublished() -> CoreFixture {
    let mut world = CoreFixture::remote(2, 1);
    world.watch(1, &[]);
    let result = world.reported(0, FIRST, 1, 1, ok(1.0));
    world.handle_unpublished(result);
    assert_eq!(world.offered().last(), Some(&(item(1), FIRST)));
    world
}

fn found(e: u64, body: ReportBody) -> Report {
    fleet::marker(0, FIRST, e, body)
}

#[test]
fn offer_missing_in_two_rounds_is_looked_up_and_reoffered() {
    let mut world = wiped();
    world.observe(&[]);
    assert_eq!(world.lookups(), 1, "once");
    world.handle(CoreInput::Found { item: item(0), reports: Vec::new() });
    assert_eq!(world.withdrawn()[0], (item(0), FIRST));
    assert_eq!(world.offered().last(), Some(&(item(0), SECOND)));
    world.assert_replay_matches();
}

#[test]
fn offer_not_yet_published_is_not_missing() {
    let mut world = unpublished();
    for _ in 0..5 {
        world.watch(61, &[]);
        world.observe(&[]);
    }
    assert_eq!(world.lookups(), 0, "the disk is slow");
    world.handle(CoreInput::Published(vec![(item(1), FIRST)]));
    world.observe(&[]);
    assert_eq!(world.lookups(), 0, "its worker has not sent a heartbeat yet");
    for _ in 0..2 {
        world.watch(30, &[]);
        world.observe(&[]);
    }
    assert_eq!(world.lookups(), 1);
}

#[test]
fn result_marker_of_missing_offer_settles_item() {
    let mut world = wiped();
    world.handle(CoreInput::Found { item: item(0), reports: vec![found(1, ok(1.0))] });
    assert_eq!(world.settled()[0].by.as_ref().map(|by| by.exec), Some(exec(1)));
    assert_eq!(world.offered().len(), 1);
    assert!(world.core.is_complete());
    world.assert_replay_matches();
}

#[test]
fn result_marker_of_known_result_adds_no_record() {
    let mut world = CoreFixture::remote(1, 1);
    world.report(0, FIRST, 1, 1, outage());
    world.watch(61, &[]);
    world.observe(&[]);
    world.observe(&[]);
    let records = world.journal.len();
    world.handle(CoreInput::Found { item: item(0), reports: vec![found(1, outage())] });
    let recovered = |(_, record): &&(Timestamp, JournalRecord)| {
        matches!(record, JournalRecord::Recovered { .. })
    };
    assert!(!world.journal[records..].iter().any(|record| recovered(&record)));
    assert_eq!(world.offered().last(), Some(&(item(0), TryId { epoch: 1, n: 3 })));
}

#[test]
fn result_received_during_marker_lookup_settles_item_once() {
    let mut world = wiped();
    world.report(0, FIRST, 1, 1, ok(1.0));
    world.handle(CoreInput::Found { item: item(0), reports: vec![found(2, ok(0.0))] });
    assert_eq!((world.settled().len(), world.offered().len()), (1, 1));
}

#[test]
fn offer_running_or_claimed_in_heartbeat_is_not_missing() {
    for claiming in [false, true] {
        let mut world = CoreFixture::remote(1, 1);
        let running = [running_execution(0, FIRST, 1, claiming)];
        world.watch(61, &[("a", &running)]);
        for _ in 0..5 {
            world.observe(&[]);
            world.watch(30, &[("a", &running)]);
        }
        assert_eq!(world.lookups(), 0);
    }
}

/// Item 1 of two, offered after 10 s in which workers `a` and `b` sent heartbeats.
fn delivered_once() -> CoreFixture {
    let mut world = CoreFixture::remote(2, 1);
    world.handle(CoreInput::HeartbeatsKept(Duration::ZERO));
    world.watch(10, &[("a", &[running_execution(0, FIRST, 1, false)]), ("b", &[])]);
    world.report(0, FIRST, 1, 1, ok(1.0));
    assert_eq!(world.offered().last(), Some(&(item(1), FIRST)));
    world
}

#[test]
fn offer_whose_delivery_was_lost_is_offered_again_within_its_lease() {
    let mut world = delivered_once();
    world.watch(1, &[("a", &[]), ("b", &[])]);
    world.observe(&[(1, FIRST, true)]);
    world.watch(5, &[("a", &[]), ("b", &[])]);
    world.observe(&[(1, FIRST, true)]);
    assert_eq!(world.lookups(), 0, "a worker may be about to begin it");
    world.watch(1, &[("a", &[]), ("b", &[])]);
    world.observe(&[(1, FIRST, true)]);
    assert_eq!(world.lookups(), 1);
    world.handle(CoreInput::Found { item: item(1), reports: Vec::new() });
    assert_eq!(world.withdrawn().last(), Some(&(item(1), FIRST)));
    assert_eq!(world.offered().last(), Some(&(item(1), SECOND)));
    assert_eq!(world.ask(1, 1, FIRST, 2), Some(ClaimAnswer::Drop), "the delivery comes after all");
    world.assert_replay_matches();
}

#[test]
fn delivery_that_a_silent_worker_may_have_is_not_lost() {
    let mut world = delivered_once();
    for _ in 0..4 {
        world.watch(10, &[("a", &[])]);
        world.observe(&[(1, FIRST, true)]);
    }
    assert_eq!(world.lookups(), 0, "worker b may have taken it before it was cut off");
}

#[test]
fn delivery_that_was_begun_is_not_lost() {
    let mut world = delivered_once();
    world.watch(1, &[("a", &[running_execution(1, FIRST, 2, false)]), ("b", &[])]);
    for _ in 0..4 {
        world.watch(10, &[("a", &[]), ("b", &[])]);
        world.observe(&[(1, FIRST, true)]);
    }
    assert_eq!(world.lookups(), 0, "its lease decides");
}

#[test]
fn queue_reconnect_restarts_watch_for_missing_offers() {
    let mut world = CoreFixture::remote(1, 1);
    world.watch(100, &[]);
    world.observe(&[]);
    world.handle(CoreInput::Reconnected);
    for _ in 0..2 {
        world.observe(&[]);
        world.watch(25, &[]);
    }
    assert_eq!(world.lookups(), 0);
    world.watch(15, &[]);
    world.observe(&[]);
    world.observe(&[]);
    assert_eq!(world.lookups(), 1);
}

#[test]
fn execution_lost_after_reconnect_has_reason_outage() {
    let mut world = CoreFixture::remote(1, 1);
    world.watch(10, &[("a", &[running_execution(0, FIRST, 1, false)])]);
    world.handle(CoreInput::Reconnected);
    world.watch(61, &[]);
    world.observe(&[(0, FIRST, true)]);
    assert_eq!(world.lost_executions(), [(exec(1), LostReason::Outage)]);
}

#[test]
fn offer_delivered_and_unseen_for_two_leases_is_missing() {
    let mut world = CoreFixture::remote(1, 1);
    world.watch(61, &[]);
    for _ in 0..4 {
        world.observe(&[(0, FIRST, true)]);
        world.watch(30, &[]);
    }
    assert_eq!(world.lookups(), 0);
    world.observe(&[(0, FIRST, true)]);
    assert_eq!(world.lookups(), 1);
    world.handle(CoreInput::Found { item: item(0), reports: Vec::new() });
    assert_eq!(world.offered().last(), Some(&(item(0), SECOND)));
}

#[test]
fn offer_queued_and_undelivered_is_left_alone() {
    let mut world = CoreFixture::remote(1, 1);
    for _ in 0..20 {
        world.watch(30, &[]);
        world.observe(&[(0, FIRST, false)]);
    }
    assert_eq!((world.lookups(), world.offered().len()), (0, 1));
}

#[test]
fn queued_offer_not_pending_in_journal_is_withdrawn() {
    let mut world = CoreFixture::remote(3, 2);
    world.report(0, FIRST, 1, 1, ok(1.0));
    world.report(1, FIRST, 2, 1, outage());
    world.wait(60_000);
    world.effects.clear();
    let third = TryId { epoch: 1, n: 3 };
    world.observe(&[(0, FIRST, true), (1, FIRST, true), (1, SECOND, false), (2, third, false)]);
    world.observe(&[(9, FIRST, false)]);
    let unwanted = [(0, FIRST), (1, FIRST), (2, third), (9, FIRST)];
    assert_eq!(world.withdrawn(), unwanted.map(|(n, try_id)| (item(n), try_id)));
}

#[test]
fn execution_unseen_for_a_lease_is_lost_and_older_result_wins() {
    let mut world = CoreFixture::remote(1, 1);
    world.watch(2, &[("a", &[running_execution(0, FIRST, 1, false)])]);
    world.report(0, FIRST, 9, 1, ok(0.5));
    world.watch(50, &[]);
    world.observe(&[]);
    assert!(world.settled().is_empty(), "not watched for one lease");
    world.watch(20, &[]);
    world.observe(&[]);
    assert_eq!(world.settled()[0].by.as_ref().map(|by| by.exec), Some(exec(9)));
    assert_eq!(world.settled()[0].superseded[0].exec, exec(1));
}

#[test]
fn takeover_keeps_existing_offers_and_reoffers_pending_retry() {
    let mut world = CoreFixture::remote(4, 2);
    world.report(0, FIRST, 1, 1, outage());
    assert_eq!(world.offered().len(), 3);
    world.take_over(&[1, 1, 1, 1]);
    assert_eq!(world.core.in_flight(), 2, "the offers of the previous session hold their permits");
    assert_eq!(world.offered(), []);
    world.wait(1000);
    world.report(1, FIRST, 2, 1, ok(1.0));
    let retried = (item(0), TryId { epoch: 2, n: 2 });
    assert_eq!(world.offered(), [retried], "the waiting item is pending");
    assert_eq!(world.withdrawn(), [(item(0), FIRST)]);
}

#[test]
fn spec_change_withdraws_offer_and_ignores_its_results() {
    let mut world = CoreFixture::remote(1, 1);
    world.watch(2, &[("a", &[running_execution(0, FIRST, 1, false)])]);
    world.take_over(&[2]);
    assert_eq!(world.withdrawn()[0], (item(0), FIRST));
    let second = TryId { epoch: 2, n: 2 };
    assert_eq!(world.offered(), [(item(0), second)]);
    world.watch(3, &[("a", &[running_execution(0, FIRST, 1, false)])]);
    assert_eq!(world.stops(), []);
    world.watch(3, &[("a", &[running_execution(0, FIRST, 1, false)])]);
    assert_eq!(world.stops(), [exec(1)], "it is unwanted");
    world.report(0, FIRST, 1, 1, ok(1.0));
    assert!(world.settled().is_empty());
    world.report(0, second, 2, 2, ok(0.5));
    assert_eq!(world.settled()[0].by.as_ref().map(|by| by.exec), Some(exec(2)));
}

#[test]
fn offer_of_item_removed_from_plan_is_withdrawn() {
    let mut world = CoreFixture::remote(2, 2);
    world.take_over(&[1]);
    assert_eq!(world.withdrawn(), [(item(1), FIRST)]);
    assert_eq!(world.core.in_flight(), 1);
    world.report(0, FIRST, 1, 1, ok(1.0));
    assert!(world.core.is_complete());
}
