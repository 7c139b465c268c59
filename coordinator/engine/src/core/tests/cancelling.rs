//! Cancellation, rule by rule.

use rollout_protocol::wire::command::CommandReceipt;
use rollout_protocol::wire::control::StopLevel;

use super::fleet::{planned, running_execution};
use super::*;

fn cancel(world: &mut CoreFixture, items: &[u8]) -> CommandReceipt {
    let items = items.iter().map(|n| planned(*n, 1)).collect();
    world.handle(CoreInput::Cancel { id: 7, items });
    let mut receipts = world.effects.iter().filter_map(|effect| match effect {
        CoreEffect::Receipt { id: 7, receipt } => Some(receipt.clone()),
        _ => None,
    });
    receipts.next_back().expect("a receipt")
}

fn outcomes(world: &CoreFixture) -> Vec<(u8, ItemOutcome)> {
    let settled = world.settled().into_iter();
    settled.map(|settled| (settled.item.as_bytes()[0], settled.verdict.outcome)).collect()
}

#[test]
fn cancel_settles_idle_items_and_stops_running_ones() {
    let mut world = CoreFixture::remote(3, 2);
    world.show(&[("a", &[running_execution(0, FIRST, 1, false)])]);
    let receipt = cancel(&mut world, &[0, 1, 2]);
    assert_eq!((receipt.named, receipt.settled, receipt.ended), (3, 0, 3));
    assert_eq!(outcomes(&world), [(1, ItemOutcome::Cancelled), (2, ItemOutcome::Cancelled)]);
    assert_eq!(world.stops(), [exec(1)]);
    assert_eq!(world.withdrawn(), [(item(0), FIRST), (item(1), FIRST)]);
    assert_eq!(world.core.in_flight(), 1, "it still runs");
    world.report(0, FIRST, 1, 1, lost(LostReason::Stopped));
    assert_eq!(outcomes(&world).last(), Some(&(0, ItemOutcome::Cancelled)));
    assert!(world.core.is_complete());
    assert_eq!(world.core.in_flight(), 0);
    world.assert_replay_matches();
}

#[test]
fn cancel_of_unplanned_item_prevents_its_offer() {
    let mut world = CoreFixture::remote(1, 4);
    let receipt = cancel(&mut world, &[5]);
    assert_eq!((receipt.named, receipt.ended), (1, 1));
    world.handle(CoreInput::Items(vec![planned(5, 1)]));
    assert_eq!(world.offered(), [(item(0), FIRST)]);
    let replayed = world.take_over(&[1, 1, 1, 1, 1, 1]);
    assert_eq!(replayed[0].item, item(5));
    assert!(!world.offered().iter().any(|(of, _)| *of == item(5)));
}

#[test]
fn cancel_keeps_earlier_result_and_ignores_later_one() {
    let mut world = CoreFixture::remote(2, 2);
    world.show(&[(
        "a",
        &[running_execution(0, FIRST, 1, false), running_execution(1, FIRST, 2, false)],
    )]);
    world.report(0, FIRST, 9, 1, ok(0.5));
    assert!(world.settled().is_empty(), "withheld: execution 1 is newer");
    cancel(&mut world, &[0, 1]);
    world.report(0, FIRST, 1, 1, ok(1.0));
    world.report(1, FIRST, 2, 1, ok(1.0));
    let settled = world.settled();
    assert_eq!(settled[0].by.as_ref().map(|by| by.exec), Some(exec(9)));
    assert_eq!(settled[0].verdict.reward, Some(0.5));
    assert_eq!(
        (settled[1].verdict.outcome, settled[1].verdict.reward),
        (ItemOutcome::Cancelled, None)
    );
    assert_eq!(settled[1].by.as_ref().map(|by| by.exec), Some(exec(2)), "its record is attached");
    assert_eq!(cancel(&mut world, &[0]).settled, 1);
}

#[test]
fn cancelled_item_still_claimed_or_running_gets_stop() {
    let mut world = CoreFixture::remote(2, 2);
    cancel(&mut world, &[0]);
    assert_eq!(world.ask(1, 0, FIRST, 1), Some(ClaimAnswer::Drop));
    world.report(0, FIRST, 2, 1, ReportBody::Started);
    assert_eq!(world.stops(), [exec(2)]);
    world.watch(1, &[("a", &[running_execution(0, FIRST, 3, false)])]);
    assert_eq!(world.stops(), [exec(2), exec(3)]);
    world.watch(4, &[("a", &[running_execution(0, FIRST, 3, false)])]);
    assert_eq!(world.stops().len(), 2, "it was told a moment ago");
    world.watch(2, &[("a", &[running_execution(0, FIRST, 3, false)])]);
    assert_eq!(world.stops().len(), 3);
}

#[test]
fn cancelled_item_with_lost_worker_settles_as_cancelled() {
    let mut world = CoreFixture::remote(1, 1);
    world.show(&[("a", &[running_execution(0, FIRST, 1, false)])]);
    cancel(&mut world, &[0]);
    world.watch(61, &[]);
    world.observe(&[]);
    assert_eq!(outcomes(&world), [(0, ItemOutcome::Cancelled)]);
}

#[test]
fn cancel_during_retry_wait_settles_item_at_once() {
    let mut world = CoreFixture::remote(1, 1);
    world.report(0, FIRST, 1, 1, outage());
    cancel(&mut world, &[0]);
    assert_eq!(outcomes(&world), [(0, ItemOutcome::Cancelled)]);
    assert_eq!(world.settled()[0].by.as_ref().map(|by| by.exec), Some(exec(1)));
    world.wait(60_000);
    assert_eq!(world.offered().len(), 1);
}

#[test]
fn stop_withdraws_idle_offers_and_waits_for_running_ones() {
    let mut world = CoreFixture::remote(3, 2);
    world.show(&[("a", &[running_execution(0, FIRST, 1, false)])]);
    world.handle(CoreInput::Stop(StopLevel::Drain));
    assert_eq!(world.withdrawn(), [(item(1), FIRST), (item(0), FIRST)]);
    assert_eq!((world.core.in_flight(), world.core.is_quiet()), (1, false));
    assert_eq!(world.ask(1, 1, FIRST, 2), Some(ClaimAnswer::Drop));
    world.report(0, FIRST, 1, 1, lost(LostReason::Stopped));
    assert!(world.core.is_quiet());
    world.show(&[("a", &[running_execution(1, FIRST, 3, false)])]);
    assert!(!world.core.is_quiet(), "a worker had taken it unseen");
    world.watch(6, &[("a", &[running_execution(1, FIRST, 3, false)])]);
    assert_eq!(world.stops(), [exec(3)], "it missed that the run stops");
    world.report(1, FIRST, 3, 1, ok(1.0));
    assert!(world.core.is_quiet());
    world.take_over(&[1, 1, 1]);
    let second = TryId { epoch: 2, n: 2 };
    assert_eq!(world.offered(), [(item(0), second), (item(2), TryId { epoch: 2, n: 1 })]);
}

/// Everything is cancelled in portions; the process dies after any record, and the user cancels again.
#[test]
fn cancel_in_portions_loses_nothing_at_a_crash_after_any_record() {
    const ITEMS: u8 = 12;
    let all: Vec<u8> = (0..ITEMS).collect();
    let under = [1; ITEMS as usize];
    let records = |crash: usize| {
        let mut world = CoreFixture::remote(2, 2);
        world.show(&[("a", &[running_execution(0, FIRST, 1, false)])]);
        world.report(1, FIRST, 2, 1, ok(1.0));
        for portion in all.chunks(5) {
            cancel(&mut world, portion);
        }
        world.report(0, FIRST, 1, 1, lost(LostReason::Stopped));
        let records = world.journal.len();
        world.journal.truncate(crash.min(records));
        world.take_over(&under);
        let receipt = cancel(&mut world, &all);
        assert_eq!(u64::from(ITEMS), receipt.settled + receipt.ended, "{crash}");
        world.report(0, FIRST, 1, 1, lost(LostReason::Stopped));
        let settled = replay_journal(&mut Core::new(settings(1, 2)), &world.journal);
        let mut items: Vec<u8> = settled.iter().map(|settled| settled.item.as_bytes()[0]).collect();
        items.sort_unstable();
        items.dedup();
        assert_eq!(settled.len(), items.len(), "{crash}: an item has two results");
        let open = all.iter().filter(|n| world.core.settled_spec(&item(**n)).is_none());
        // Whatever runs on a worker that this session has not heard of is waited for.
        assert!(open.clone().all(|n| *n <= 1), "{crash}: {:?}", open.collect::<Vec<_>>());
        records
    };
    for crash in 1..=records(usize::MAX) {
        records(crash);
    }
}

#[test]
fn cancelled_items_that_were_not_requested_wait_in_no_queue() {
    let mut world = CoreFixture::remote(1, 1);
    cancel(&mut world, &[1, 2, 3]);
    assert_eq!(world.core.ready.len(), 0);
    assert_eq!(world.core.begun(), [0]);
    let again = cancel(&mut world, &[1, 2, 3]);
    assert_eq!((again.named, again.settled, again.ended), (3, 0, 3), "it is the same command");
}
