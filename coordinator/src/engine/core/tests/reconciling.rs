//! Rounds of reconciliation, rule by rule.

use super::fleet::running_execution;
use super::*;

/// One of which the queue has lost everything, after a lease of watching.
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

fn found(e: u64, body: ReportBody) -> Report {
    fleet::marker(0, FIRST, e, body)
}

#[test]
fn what_is_nowhere_in_two_rounds_is_looked_for_and_offered_again() {
    let mut world = wiped();
    world.observe(&[]);
    assert_eq!(world.lookups(), 1, "once");
    world.handle(CoreInput::Found { item: item(0), reports: Vec::new() });
    assert_eq!(world.withdrawn()[0], (item(0), FIRST));
    assert_eq!(world.offered().last(), Some(&(item(0), SECOND)));
    world.assert_replay_matches();
}

#[test]
fn a_marker_settles_what_is_nowhere() {
    let mut world = wiped();
    world.handle(CoreInput::Found { item: item(0), reports: vec![found(1, ok(1.0))] });
    assert_eq!(world.settled()[0].by.as_ref().map(|by| by.exec), Some(exec(1)));
    assert_eq!(world.offered().len(), 1);
    assert!(world.core.is_complete());
    world.assert_replay_matches();
}

#[test]
fn a_marker_of_a_known_result_says_nothing_new() {
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
fn a_result_that_comes_while_markers_are_looked_for_leaves_nothing_to_do() {
    let mut world = wiped();
    world.report(0, FIRST, 1, 1, ok(1.0));
    world.handle(CoreInput::Found { item: item(0), reports: vec![found(2, ok(0.0))] });
    assert_eq!((world.settled().len(), world.offered().len()), (1, 1));
}

#[test]
fn what_somebody_shows_or_claims_is_not_nowhere() {
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

#[test]
fn the_watch_begins_anew_when_the_queue_was_out_of_reach() {
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
fn what_an_outage_cost_counts_against_nobody() {
    let mut world = CoreFixture::remote(1, 1);
    world.watch(10, &[("a", &[running_execution(0, FIRST, 1, false)])]);
    world.handle(CoreInput::Reconnected);
    world.watch(61, &[]);
    world.observe(&[(0, FIRST, true)]);
    assert_eq!(world.lost_executions(), [(exec(1), LostReason::Outage)]);
}

#[test]
fn what_was_delivered_and_nobody_shows_for_two_leases_is_nowhere() {
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
fn what_waits_in_the_queue_is_left_there() {
    let mut world = CoreFixture::remote(1, 1);
    for _ in 0..20 {
        world.watch(30, &[]);
        world.observe(&[(0, FIRST, false)]);
    }
    assert_eq!((world.lookups(), world.offered().len()), (0, 1));
}

#[test]
fn what_the_journal_does_not_owe_is_withdrawn() {
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
fn an_execution_that_nobody_shows_is_lost_and_lets_an_older_result_settle() {
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
fn a_takeover_offers_what_was_never_offered_at_once_and_leaves_the_rest_offered() {
    let mut world = CoreFixture::remote(4, 2);
    world.report(0, FIRST, 1, 1, outage());
    assert_eq!(world.offered().len(), 3);
    world.take_over(&[1, 1, 1, 1]);
    assert_eq!(world.core.in_flight(), 2, "the offers of the former sitting hold their permits");
    assert_eq!(world.offered(), []);
    world.wait(1000);
    world.report(1, FIRST, 2, 1, ok(1.0));
    let retried = (item(0), TryId { epoch: 2, n: 2 });
    assert_eq!(world.offered(), [retried], "what waited is owed");
    assert_eq!(world.withdrawn(), [(item(0), FIRST)]);
}

#[test]
fn a_change_of_spec_withdraws_the_offer_and_its_results_never_settle() {
    let mut world = CoreFixture::remote(1, 1);
    world.watch(2, &[("a", &[running_execution(0, FIRST, 1, false)])]);
    world.take_over(&[2]);
    assert_eq!(world.withdrawn()[0], (item(0), FIRST));
    let second = TryId { epoch: 2, n: 2 };
    assert_eq!(world.offered(), [(item(0), second)]);
    world.watch(3, &[("a", &[running_execution(0, FIRST, 1, false)])]);
    assert_eq!(world.stops(), []);
    world.watch(3, &[("a", &[running_execution(0, FIRST, 1, false)])]);
    assert_eq!(world.stops(), [exec(1)], "it works for nothing");
    world.report(0, FIRST, 1, 1, ok(1.0));
    assert!(world.settled().is_empty());
    world.report(0, second, 2, 2, ok(0.5));
    assert_eq!(world.settled()[0].by.as_ref().map(|by| by.exec), Some(exec(2)));
}

#[test]
fn offers_of_what_is_no_longer_planned_are_withdrawn() {
    let mut world = CoreFixture::remote(2, 2);
    world.take_over(&[1]);
    assert_eq!(world.withdrawn(), [(item(1), FIRST)]);
    assert_eq!(world.core.in_flight(), 1);
    world.report(0, FIRST, 1, 1, ok(1.0));
    assert!(world.core.is_complete());
}

#[test]
fn a_result_without_its_record_is_an_infrastructure_failure() {
    let mut world = CoreFixture::remote(1, 1);
    world.unbacked(FIRST, 1, RecordBlobStatus::Missing);
    assert!(world.settled().is_empty());
    world.wait(60_000);
    world.report(0, SECOND, 2, 1, ok(1.0));
    assert_eq!(world.settled()[0].by.as_ref().map(|by| by.exec), Some(exec(2)));
    world.assert_replay_matches();
}

#[test]
fn a_result_whose_record_cannot_be_looked_for_counts_and_is_looked_for_later() {
    let mut world = CoreFixture::remote(1, 1);
    world.unbacked(FIRST, 1, RecordBlobStatus::Unchecked);
    assert_eq!(world.settled().len(), 1);
    assert_eq!(world.core.unchecked_results().count(), 1);
    world.take_over(&[1]);
    assert_eq!(world.core.unchecked_results().count(), 1);
    world.handle(CoreInput::Checked { item: item(0), exec: exec(1), found: true });
    assert_eq!(world.core.unchecked_results().count(), 0);
}
