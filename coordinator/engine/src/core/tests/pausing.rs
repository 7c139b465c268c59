//! Pauses, rule by rule.

use rollout_protocol::limits::READY_AHEAD;
use rollout_protocol::wire::command::CommandReceipt;
use rollout_protocol::wire::control::StopLevel;

use super::fleet::{planned, running_execution};
use super::*;

fn pause(world: &mut CoreFixture, is_paused: bool) -> CommandReceipt {
    world.handle(CoreInput::Pause { id: 9, is_paused });
    let mut receipts = world.effects.iter().filter_map(|effect| match effect {
        CoreEffect::Receipt { id: 9, receipt } => Some(receipt.clone()),
        _ => None,
    });
    receipts.next_back().expect("a receipt")
}

#[test]
fn pause_withdraws_waiting_offers_and_keeps_running_ones() {
    let mut world = CoreFixture::remote(4, 2);
    world.show(&[("a", &[running_execution(0, FIRST, 1, false)])]);
    let receipt = pause(&mut world, true);
    assert_eq!((receipt.named, receipt.running), (4, Some(1)));
    assert_eq!(world.withdrawn(), [(item(1), FIRST)]);
    let offered = world.offered().len();
    world.report(0, FIRST, 1, 1, ok(1.0));
    assert_eq!(world.settled().len(), 1, "its result counts");
    assert_eq!((world.core.in_flight(), world.core.wanted_items(READY_AHEAD)), (0, 0));
    assert_eq!(world.offered().len(), offered, "nothing is offered in a pause");
    assert_eq!(pause(&mut world, true).named, 3, "a second pause changes nothing");
    world.assert_replay_matches();

    pause(&mut world, false);
    let again = &world.offered()[offered..];
    assert!(again.iter().any(|(of, _)| *of == item(1)), "{again:?}");
    assert_eq!(world.core.in_flight(), 2);
    world.assert_replay_matches();
}

#[test]
fn pause_ends_with_its_session_and_is_refused_while_stopping() {
    let mut world = CoreFixture::remote(3, 2);
    pause(&mut world, true);
    assert!(world.core.is_paused());
    let _settled = world.take_over(&[1, 1, 1]);
    assert!(!world.core.is_paused());
    world.handle(CoreInput::Stop(StopLevel::Drain));
    let refused = pause(&mut world, true).refused.expect("refused");
    assert!(refused.contains("stopping"), "{refused}");
    assert!(!world.core.is_paused());
}

#[test]
fn paused_run_whose_items_are_cancelled_is_complete() {
    let mut world = CoreFixture::without_items(2);
    world.handle(CoreInput::Items(vec![planned(0, 1), planned(1, 1)]));
    world.handle(CoreInput::ResumeRemote);
    pause(&mut world, true);
    assert_eq!(world.core.wanted_items(READY_AHEAD), 0, "items are left");
    world.handle(CoreInput::Cancel { id: 1, items: vec![planned(0, 1), planned(1, 1)] });
    assert_eq!(world.core.wanted_items(READY_AHEAD), 1, "the plan may have another one");
    world.handle(CoreInput::PlanComplete);
    assert!(world.core.is_complete());
    world.assert_replay_matches();
}
