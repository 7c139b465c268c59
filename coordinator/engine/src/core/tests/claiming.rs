//! Answers to claims and effects of heartbeats, rule by rule.

use rollout_protocol::wire::heartbeat::Heartbeat;

use super::fleet::running_execution;
use super::*;

#[test]
fn claim_of_try_no_other_worker_has_runs_at_once() {
    let mut world = CoreFixture::remote(2, 2);
    assert_eq!(world.ask(1, 0, FIRST, 1), Some(ClaimAnswer::Run), "the watch has just begun");
    assert_eq!(world.ask(2, 0, FIRST, 1), Some(ClaimAnswer::Run), "its answer was lost");
    let claims = world.journal.iter().filter(|(_, r)| matches!(r, JournalRecord::Claimed { .. }));
    assert_eq!(claims.count(), 1);
}

#[test]
fn claim_of_try_running_on_live_worker_is_held() {
    let mut world = CoreFixture::remote(1, 1);
    world.show(&[("a", &[running_execution(0, FIRST, 1, false)])]);
    assert_eq!(world.ask(1, 0, FIRST, 2), Some(ClaimAnswer::Hold));
    world.watch(70, &[("a", &[running_execution(0, FIRST, 1, false)])]);
    assert_eq!(world.ask(2, 0, FIRST, 3), Some(ClaimAnswer::Hold));
}

#[test]
fn claim_after_run_answer_waits_for_first_heartbeat() {
    let mut world = CoreFixture::remote(1, 1);
    world.watch(100, &[]);
    assert_eq!(world.ask(1, 0, FIRST, 1), Some(ClaimAnswer::Run));
    assert_eq!(world.ask(2, 0, FIRST, 2), None);
    world.watch(2, &[("a", &[running_execution(0, FIRST, 1, false)])]);
    assert_eq!(world.answer(2), Some(ClaimAnswer::Hold));
}

#[test]
fn claim_after_silent_execution_declares_it_lost_and_runs() {
    let mut world = CoreFixture::remote(1, 1);
    world.watch(2, &[("a", &[running_execution(0, FIRST, 1, false)])]);
    world.watch(60, &[]);
    assert_eq!((world.ask(1, 0, FIRST, 2), world.lookups()), (None, 1));
    world.handle(CoreInput::Found { item: item(0), reports: Vec::new() });
    assert_eq!(world.answer(1), Some(ClaimAnswer::Run));
    assert_eq!(world.lost_executions(), [(exec(1), LostReason::Unreachable)]);
    assert_eq!(world.offered().len(), 1, "under the same try");
    world.report(0, FIRST, 1, 1, ok(1.0));
    assert!(world.settled().is_empty(), "the newer one runs");
    world.report(0, FIRST, 2, 1, ok(0.0));
    assert_eq!(world.settled()[0].by.as_ref().map(|by| by.exec), Some(exec(2)));
}

#[test]
fn claim_after_silent_execution_settles_by_stored_result() {
    let mut world = CoreFixture::remote(1, 1);
    world.watch(2, &[("a", &[running_execution(0, FIRST, 1, false)])]);
    world.watch(60, &[]);
    assert_eq!(world.ask(1, 0, FIRST, 2), None);
    let reports = vec![fleet::marker(0, FIRST, 1, ok(1.0))];
    world.handle(CoreInput::Found { item: item(0), reports });
    assert_eq!(world.answer(1), Some(ClaimAnswer::Drop));
    assert_eq!(world.settled()[0].by.as_ref().map(|by| by.exec), Some(exec(1)));
}

#[test]
fn claim_with_unresponsive_store_runs_after_timeout() {
    let mut world = CoreFixture::remote(1, 1);
    world.watch(2, &[("a", &[running_execution(0, FIRST, 1, false)])]);
    world.watch(60, &[]);
    assert_eq!(world.ask(1, 0, FIRST, 2), None);
    world.watch(14, &[]);
    assert_eq!(world.answer(1), None);
    world.watch(2, &[]);
    assert_eq!((world.answer(1), world.lookups()), (Some(ClaimAnswer::Run), 1));
}

#[test]
fn claim_of_item_with_withheld_result_is_dropped() {
    let mut world = CoreFixture::remote(1, 1);
    world.watch(2, &[("a", &[running_execution(0, FIRST, 2, false)])]);
    world.report(0, FIRST, 1, 1, ok(1.0));
    assert!(world.settled().is_empty());
    assert_eq!(world.ask(1, 0, FIRST, 3), Some(ClaimAnswer::Drop), "withheld and eligible");
    world.watch(80, &[]);
    world.observe(&[(0, FIRST, true)]);
    assert_eq!(world.settled()[0].by.as_ref().map(|by| by.exec), Some(exec(1)));
}

#[test]
fn claim_after_takeover_waits_one_lease_of_heartbeats() {
    let mut world = CoreFixture::remote(2, 2);
    world.watch(2, &[("a", &[running_execution(0, FIRST, 1, false)])]);
    world.take_over(&[1, 1]);
    assert_eq!(world.ask(1, 0, FIRST, 2), None);
    assert_eq!(world.ask(2, 1, FIRST, 3), None, "a worker may have taken it before");
    world.watch(30, &[]);
    assert_eq!(world.ask(3, 0, FIRST, 2), None);
    world.watch(10, &[("a", &[running_execution(0, FIRST, 1, false)])]);
    let both = (world.answer(1), world.answer(3));
    assert_eq!(
        both,
        (Some(ClaimAnswer::Hold), Some(ClaimAnswer::Hold)),
        "under every name it was asked"
    );
    assert_eq!(world.answer(2), None);
    world.watch(25, &[("a", &[running_execution(0, FIRST, 1, false)])]);
    assert_eq!(world.answer(2), Some(ClaimAnswer::Run));
}

#[test]
fn claim_after_takeover_runs_once_all_workers_are_heard() {
    let mut world = CoreFixture::remote(1, 1);
    world.take_over(&[1]);
    world.handle(CoreInput::HeartbeatsKept(Duration::from_secs(61)));
    assert_eq!(world.ask(1, 0, FIRST, 2), None, "no worker was heard yet");
    world.watch(2, &[("a", &[]), ("b", &[])]);
    assert_eq!(world.answer(1), Some(ClaimAnswer::Run));
}

#[test]
fn claim_after_takeover_with_short_heartbeat_history_waits() {
    let mut world = CoreFixture::remote(1, 1);
    world.take_over(&[1]);
    world.handle(CoreInput::HeartbeatsKept(Duration::from_secs(59)));
    assert_eq!(world.ask(1, 0, FIRST, 2), None);
    world.watch(20, &[("a", &[])]);
    assert_eq!(world.answer(1), None);
}

#[test]
fn claim_after_takeover_waits_until_silent_worker_is_gone() {
    let mut world = CoreFixture::remote(1, 1);
    world.take_over(&[1]);
    world.handle(CoreInput::HeartbeatsKept(Duration::from_secs(600)));
    let silent = |age, gone| {
        let heartbeat = fleet::heartbeat("b", Vec::new());
        ReceivedHeartbeat {
            heartbeat: Heartbeat { gone, ..heartbeat },
            age: Duration::from_secs(age),
        }
    };
    let live =
        || ReceivedHeartbeat { heartbeat: fleet::heartbeat("a", Vec::new()), age: Duration::ZERO };
    world.handle(CoreInput::Heartbeats(vec![silent(5, false)]));
    assert_eq!(world.ask(1, 0, FIRST, 2), None);
    for second in 0..10 {
        world.wait(1000);
        world.handle(CoreInput::Heartbeats(vec![live(), silent(6 + second, false)]));
    }
    assert_eq!(world.answer(1), None, "it may come back and show that it runs it");
    world.wait(1000);
    world.handle(CoreInput::Heartbeats(vec![live(), silent(20, true)]));
    assert_eq!(world.answer(1), Some(ClaimAnswer::Run));
}

#[test]
fn claim_after_reconnect_waits_only_for_earlier_offers() {
    let mut world = CoreFixture::remote(3, 2);
    world.watch(50, &[]);
    world.handle(CoreInput::Reconnected);
    world.report(0, FIRST, 1, 1, ok(1.0));
    assert_eq!(world.ask(1, 2, FIRST, 2), Some(ClaimAnswer::Run), "offered after it");
    assert_eq!(world.ask(2, 1, FIRST, 3), None);
    world.watch(61, &[("a", &[running_execution(2, FIRST, 2, false)])]);
    assert_eq!(world.answer(2), Some(ClaimAnswer::Run));
}

#[test]
fn claim_after_reconnect_to_young_queue_runs_once_all_workers_are_heard() {
    let mut world = CoreFixture::remote(2, 1);
    world.handle(CoreInput::HeartbeatsKept(Duration::ZERO));
    world.watch(20, &[("a", &[running_execution(0, FIRST, 1, false)]), ("b", &[])]);
    world.report(0, FIRST, 1, 1, ok(1.0));
    assert_eq!(world.offered().last(), Some(&(item(1), FIRST)));
    world.handle(CoreInput::Reconnected);
    assert_eq!(world.ask(1, 1, FIRST, 2), None, "another worker may have taken it before");
    world.watch(2, &[("a", &[])]);
    assert_eq!(world.answer(1), None, "it may be the other one");
    world.watch(1, &[("a", &[]), ("b", &[])]);
    assert_eq!(world.answer(1), Some(ClaimAnswer::Run), "no lease has passed");
}

#[test]
fn claim_of_offer_from_before_kept_heartbeats_waits_one_lease() {
    let mut world = CoreFixture::remote(1, 1);
    world.watch(3, &[("a", &[])]);
    world.handle(CoreInput::HeartbeatsKept(Duration::ZERO));
    world.watch(20, &[("a", &[])]);
    world.handle(CoreInput::Reconnected);
    assert_eq!(world.ask(1, 0, FIRST, 1), None);
    world.watch(30, &[("a", &[])]);
    assert_eq!(world.answer(1), None, "a worker whose heartbeats were not kept may have it");
    world.watch(31, &[("a", &[])]);
    assert_eq!(world.answer(1), Some(ClaimAnswer::Run));
}

#[test]
fn claim_waits_only_for_workers_that_were_heard_when_it_was_offered() {
    for (silent_for, waits) in [(4, true), (8, false)] {
        let mut world = CoreFixture::remote(2, 1);
        world.handle(CoreInput::HeartbeatsKept(Duration::from_secs(600)));
        let running = [running_execution(0, FIRST, 1, false)];
        world.watch(10, &[("a", &running), ("b", &[])]);
        world.watch(silent_for, &[("a", &running)]);
        world.report(0, FIRST, 1, 1, ok(1.0));
        world.handle(CoreInput::Reconnected);
        assert_eq!(world.ask(1, 1, FIRST, 2), None);
        world.watch(3, &[("a", &[])]);
        let expected = (!waits).then_some(ClaimAnswer::Run);
        assert_eq!(world.answer(1), expected, "worker b was silent for {silent_for} s");
    }
}

#[test]
fn coordinator_pause_declares_no_execution_lost() {
    let mut world = CoreFixture::remote(1, 1);
    let running = [running_execution(0, FIRST, 1, false)];
    world.watch(70, &[("a", &running)]);
    world.wait(50_000);
    assert_eq!(world.ask(1, 0, FIRST, 2), None, "it was the coordinator that saw nothing");
    world.watch(1, &[("a", &running)]);
    assert_eq!(world.answer(1), Some(ClaimAnswer::Hold));
    assert_eq!(world.lost_executions(), []);
}

#[test]
fn claim_of_try_not_pending_is_dropped() {
    let mut world = CoreFixture::remote(2, 1);
    assert_eq!(world.ask(1, 0, SECOND, 1), Some(ClaimAnswer::Drop), "a try not journalled");
    assert_eq!(world.ask(2, 1, FIRST, 1), Some(ClaimAnswer::Drop), "not offered");
    world.report(0, FIRST, 1, 1, outage());
    assert_eq!(world.ask(3, 0, FIRST, 2), Some(ClaimAnswer::Drop), "waits for its retry");
    world.wait(60_000);
    world.report(1, FIRST, 3, 1, ok(1.0));
    assert_eq!(world.ask(4, 0, FIRST, 2), Some(ClaimAnswer::Drop), "below the current try");
    assert_eq!(world.ask(5, 1, FIRST, 4), Some(ClaimAnswer::Drop), "settled");
    assert_eq!(world.ask(6, 0, SECOND, 5), Some(ClaimAnswer::Run));
}

#[test]
fn claim_is_held_when_lost_worker_returns() {
    let mut world = CoreFixture::remote(1, 1);
    world.watch(2, &[("a", &[running_execution(0, FIRST, 1, false)])]);
    world.watch(80, &[]);
    world.observe(&[(0, FIRST, true)]);
    assert_eq!(world.lost_executions(), [(exec(1), LostReason::Unreachable)]);
    world.show(&[("a", &[running_execution(0, FIRST, 1, false)])]);
    assert_eq!(world.ask(1, 0, FIRST, 2), Some(ClaimAnswer::Hold));
    world.report(0, FIRST, 1, 1, ok(1.0));
    assert_eq!(world.settled()[0].by.as_ref().map(|by| by.exec), Some(exec(1)));
}

#[test]
fn heartbeat_repeated_is_journaled_once() {
    let mut world = CoreFixture::remote(1, 1);
    let running = [
        running_execution(0, FIRST, 1, false),
        running_execution(9, FIRST, 2, false),
        running_execution(0, FIRST, 3, true),
    ];
    world.watch(1, &[("a", &running)]);
    let records = world.journal.len();
    world.watch(10, &[("a", &running)]);
    assert_eq!(world.journal.len(), records);
    let heard = world.journal.iter().filter_map(|(_, record)| match record {
        JournalRecord::Heard { executions, .. } => Some(executions.len()),
        _ => None,
    });
    assert_eq!(heard.collect::<Vec<_>>(), [1], "not a claim, not another plan's");
}

#[test]
fn execution_seen_in_heartbeat_outranks_unseen_result() {
    let mut world = CoreFixture::remote(1, 1);
    world.show(&[("a", &[running_execution(0, FIRST, 1, false)])]);
    world.report(0, FIRST, 2, 1, ok(0.0));
    assert!(world.settled().is_empty());
    world.report(0, FIRST, 1, 1, ok(1.0));
    assert_eq!(world.settled()[0].by.as_ref().map(|by| by.exec), Some(exec(1)));
}

#[test]
fn heartbeat_too_old_is_ignored_by_claim() {
    let mut world = CoreFixture::remote(1, 1);
    world.now_ms = 100_000;
    let heartbeat = fleet::heartbeat("a", vec![running_execution(0, FIRST, 1, false)]);
    world.handle(CoreInput::Heartbeats(vec![ReceivedHeartbeat {
        heartbeat,
        age: Duration::from_secs(20),
    }]));
    assert_eq!(world.ask(1, 0, FIRST, 2), Some(ClaimAnswer::Run));
}
