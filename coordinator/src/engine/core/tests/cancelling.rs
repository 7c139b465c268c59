//! Ends by command, rule by rule.

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
fn what_nobody_runs_is_cancelled_at_once_and_what_runs_is_stopped() {
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
fn items_that_nobody_asked_for_yet_are_never_offered() {
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
fn a_result_before_the_cancel_wins_and_one_after_it_does_not() {
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
fn every_word_of_a_cancelled_item_is_answered_with_a_stop() {
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
fn a_cancelled_item_whose_worker_is_gone_settles_when_it_is_lost() {
    let mut world = CoreFixture::remote(1, 1);
    world.show(&[("a", &[running_execution(0, FIRST, 1, false)])]);
    cancel(&mut world, &[0]);
    world.watch(61, &[]);
    world.observe(&[]);
    assert_eq!(outcomes(&world), [(0, ItemOutcome::Cancelled)]);
}

#[test]
fn a_cancel_ends_the_waiting_for_a_retry() {
    let mut world = CoreFixture::remote(1, 1);
    world.report(0, FIRST, 1, 1, outage());
    cancel(&mut world, &[0]);
    assert_eq!(outcomes(&world), [(0, ItemOutcome::Cancelled)]);
    assert_eq!(world.settled()[0].by.as_ref().map(|by| by.exec), Some(exec(1)));
    world.wait(60_000);
    assert_eq!(world.offered().len(), 1);
}

#[test]
fn a_stop_gives_back_what_nobody_runs_and_is_quiet_when_the_rest_has_ended() {
    let mut world = CoreFixture::remote(3, 2);
    world.show(&[("a", &[running_execution(0, FIRST, 1, false)])]);
    world.handle(CoreInput::Stop(StopLevel::Drain));
    assert_eq!(world.withdrawn(), [(item(1), FIRST), (item(0), FIRST)]);
    assert_eq!((world.core.in_flight(), world.core.is_quiet()), (1, false));
    assert_eq!(world.ask(1, 1, FIRST, 2), Some(ClaimAnswer::Drop));
    world.report(0, FIRST, 1, 1, lost(LostReason::Stopped));
    assert!(world.core.is_quiet());
    world.show(&[("a", &[running_execution(1, FIRST, 3, false)])]);
    assert!(!world.core.is_quiet(), "somebody had taken it unseen");
    world.watch(6, &[("a", &[running_execution(1, FIRST, 3, false)])]);
    assert_eq!(world.stops(), [exec(3)], "it missed that the run stops");
    world.report(1, FIRST, 3, 1, ok(1.0));
    assert!(world.core.is_quiet());
    world.take_over(&[1, 1, 1]);
    let second = TryId { epoch: 2, n: 2 };
    assert_eq!(world.offered(), [(item(0), second), (item(2), TryId { epoch: 2, n: 1 })]);
}
