//! Which items are offered when, rule by rule.

use std::collections::BTreeMap;

use rollout_protocol::limits::READY_AHEAD;

use super::fleet::running_execution;
use super::*;

const SMALL: SizeClass = SizeClass(0);
const LARGE: SizeClass = SizeClass(3);

/// Items in the order of the plan, by class and lane.
fn world_with_items(kinds: &[(SizeClass, u16)], permits: usize) -> CoreFixture {
    let mut world = CoreFixture::remote(0, permits);
    let items = (0..).zip(kinds).map(|(n, (class, lane))| NewItem {
        class: *class,
        lane: *lane,
        ..fleet::planned(n, 1)
    });
    world.handle(CoreInput::Items(items.collect()));
    world
}

fn set_capacity(world: &mut CoreFixture, small: usize, large: usize) {
    world.handle(CoreInput::OfferLimits(BTreeMap::from([(SMALL, small), (LARGE, large)])));
}

fn offered(world: &CoreFixture) -> Vec<u8> {
    world.offered().iter().map(|(item, _)| item.as_bytes()[0]).collect()
}

#[test]
fn offer_picks_first_item_of_size_class_with_capacity() {
    let mut world = CoreFixture::remote(0, 10);
    set_capacity(&mut world, 2, 1);
    let kinds = [LARGE, LARGE, SMALL, SMALL, SMALL, LARGE];
    let items = (0..).zip(kinds).map(|(n, class)| NewItem { class, ..fleet::planned(n, 1) });
    world.handle(CoreInput::Items(items.collect()));
    assert_eq!(offered(&world), [0, 2, 3]);
    assert_eq!(world.core.unstarted(), BTreeMap::from([(SMALL, 2), (LARGE, 1)]));
    world.report(2, FIRST, 1, 1, ReportBody::Started);
    assert_eq!(offered(&world), [0, 2, 3, 4], "one of the small ones was taken");
    world.report(0, FIRST, 2, 1, ok(1.0));
    assert_eq!(offered(&world), [0, 2, 3, 4, 1]);
    set_capacity(&mut world, 2, 9);
    assert_eq!(offered(&world), [0, 2, 3, 4, 1, 5]);
}

#[test]
fn item_without_capacity_does_not_block_planning() {
    let mut world = world_with_items(&[], 4);
    world.core.exhausted = false;
    set_capacity(&mut world, 16, 1);
    assert_eq!(world.core.wanted_items(READY_AHEAD), 4);
    let large = (0..4).map(|n| NewItem { class: LARGE, ..fleet::planned(n, 1) });
    world.handle(CoreInput::Items(large.collect()));
    assert_eq!(offered(&world), [0]);
    assert_eq!(world.core.wanted_items(READY_AHEAD), 3);
    world.handle(CoreInput::Unplaceable(BTreeMap::from([(7, "too large".to_owned())])));
    let nowhere = (4..9).map(|n| NewItem { lane: 7, ..fleet::planned(n, 1) });
    world.handle(CoreInput::Items(nowhere.collect()));
    assert_eq!((offered(&world), world.core.wanted_items(READY_AHEAD)), (vec![0], 3));
}

#[test]
fn idle_offer_after_one_lease_yields_to_other_size_class() {
    let mut world =
        world_with_items(&[(LARGE, 0), (LARGE, 0), (SMALL, 0), (SMALL, 0), (SMALL, 0)], 2);
    set_capacity(&mut world, 16, 16);
    assert_eq!(offered(&world), [0, 1]);
    world.watch(59, &[("a", &[running_execution(0, FIRST, 1, true)])]);
    assert_eq!(offered(&world), [0, 1]);
    world.watch(2, &[("a", &[running_execution(0, FIRST, 1, true)])]);
    assert_eq!(world.withdrawn(), [(item(1), FIRST)], "the first one is about to be run");
    assert_eq!(offered(&world), [0, 1, 2]);
    world.report(2, FIRST, 2, 1, ok(1.0));
    world.report(3, FIRST, 3, 1, ok(1.0));
    assert_eq!(offered(&world), [0, 1, 2, 3, 4], "the class that gave its permit back comes last");
    world.report(4, FIRST, 4, 1, ok(1.0));
    assert_eq!(world.offered().last(), Some(&(item(1), SECOND)), "nothing else is pending");
    let ended = world.core.items[&item(1)].ended_executions();
    assert_eq!(ended, 0, "an offer that no worker started does not count");
    world.assert_replay_matches();
}

#[test]
fn idle_offer_not_yet_published_stays() {
    let mut world = world_with_items(&[], 1);
    set_capacity(&mut world, 16, 16);
    let kinds = [(0, LARGE), (1, SMALL)];
    let items = kinds.map(|(n, class)| NewItem { class, ..fleet::planned(n, 1) });
    world.handle_unpublished(CoreInput::Items(items.to_vec()));
    world.watch(300, &[]);
    assert_eq!(world.withdrawn(), [], "the queue has no room for it");
    world.handle(CoreInput::Published(vec![(item(0), FIRST)]));
    world.watch(59, &[]);
    assert_eq!(world.withdrawn(), []);
    world.watch(2, &[]);
    assert_eq!((world.withdrawn(), offered(&world)), (vec![(item(0), FIRST)], vec![0, 1]));
}

#[test]
fn idle_offer_without_competing_size_class_stays() {
    let mut world = world_with_items(&[(LARGE, 0), (LARGE, 0), (LARGE, 0)], 2);
    set_capacity(&mut world, 16, 16);
    world.watch(300, &[]);
    assert_eq!((offered(&world), world.withdrawn()), (vec![0, 1], vec![]));
}

#[test]
fn unplaceable_item_fails_at_timeout() {
    let reason = || BTreeMap::from([(1, "needs 64 cpus".to_owned())]);
    let mut world = CoreFixture::remote(0, 2);
    world.handle(CoreInput::Unplaceable(reason()));
    let items = (0..3).map(|n| NewItem { lane: u16::from(n > 0), ..fleet::planned(n, 1) });
    world.handle(CoreInput::Items(items.collect()));
    assert_eq!(offered(&world), [0]);
    assert_eq!(world.core.unplaceable().collect::<Vec<_>>(), [(1, "needs 64 cpus", 2)]);
    world.report(0, FIRST, 1, 1, ok(1.0));
    let timeout = RemoteTimeouts::default().unplaceable_timeout.expect("bounded").as_millis();
    assert_eq!(world.core.next_due_ms().map(u128::from), Some(timeout));
    world.wait(400_000);
    world.handle(CoreInput::Unplaceable(reason()));
    assert_eq!(world.settled().len(), 1);
    world.wait(200_000);
    let settled = world.settled();
    assert_eq!(settled.len(), 3);
    let error = settled[2].verdict.error.clone().expect("an error");
    assert_eq!(error.kind, ErrorType::EnvironmentResourceAllocationFailed);
    assert_eq!(error.code, ErrorCode::UNPLACEABLE);
    assert!(error.message.contains("needs 64 cpus"), "{}", error.message);
    assert!(world.core.is_complete());
    assert_eq!(world.core.next_due_ms(), None);
    let items = vec![NewItem { lane: 1, ..fleet::planned(9, 1) }];
    world.handle(CoreInput::Items(items));
    assert_eq!(world.settled().len(), 4, "later ones have no worker to wait for");
    world.assert_replay_matches();
}

#[test]
fn item_without_worker_waits_without_limit_in_elastic_pool() {
    let lanes = || BTreeMap::from([(0, "needs 64 cpus".to_owned())]);
    let mut world = elastic_pool(None);
    world.handle(CoreInput::Unplaceable(lanes()));
    world.handle(CoreInput::Items(vec![fleet::planned(0, 1), fleet::planned(1, 1)]));
    assert_eq!(world.core.next_due_ms(), None, "nothing is given up");
    world.wait(400 * 24 * 3600 * 1000);
    world.handle(CoreInput::Unplaceable(lanes()));
    assert_eq!((world.settled().len(), offered(&world)), (0, vec![]));
    assert_eq!(world.core.unplaceable().collect::<Vec<_>>(), [(0, "needs 64 cpus", 2)]);
    world.handle(CoreInput::Unplaceable(BTreeMap::new()));
    assert_eq!(offered(&world), [0, 1], "a worker was started");
    world.assert_replay_matches();
}

#[test]
fn item_without_worker_fails_at_longest_wait_of_elastic_pool() {
    let mut world = elastic_pool(Some(Duration::from_secs(3600)));
    world.handle(CoreInput::Unplaceable(BTreeMap::from([(0, "needs 64 cpus".to_owned())])));
    world.handle(CoreInput::Items(vec![fleet::planned(0, 1)]));
    world.wait(3_599_000);
    assert_eq!(world.settled().len(), 0);
    world.wait(1000);
    let error = world.settled()[0].verdict.error.clone().expect("an error");
    assert_eq!(error.code, ErrorCode::UNPLACEABLE);
}

/// A session whose pool has this longest wait.
fn elastic_pool(longest_wait: Option<Duration>) -> CoreFixture {
    let mut world = CoreFixture::remote(0, 2);
    world.core.settings.timeouts.unplaceable_timeout = longest_wait;
    world
}

#[test]
fn unplaceable_item_is_offered_when_worker_joins() {
    let mut world = CoreFixture::remote(0, 2);
    world.handle(CoreInput::Unplaceable(BTreeMap::from([(0, "no worker".to_owned())])));
    world.handle(CoreInput::Items(vec![fleet::planned(0, 1)]));
    assert!(offered(&world).is_empty());
    world.handle(CoreInput::Unplaceable(BTreeMap::new()));
    assert_eq!(offered(&world), [0]);
}

#[test]
fn offered_item_turned_unplaceable_fails_at_timeout() {
    let mut world = CoreFixture::remote(2, 2);
    world.show(&[("a", &[running_execution(0, FIRST, 1, false)])]);
    world.handle(CoreInput::Unplaceable(BTreeMap::from([(0, "no worker".to_owned())])));
    world.watch(900, &[("a", &[running_execution(0, FIRST, 1, false)])]);
    let settled: Vec<_> = world.settled().iter().map(|settled| settled.item).collect();
    assert_eq!(settled, [item(1)], "the other one runs");
    assert_eq!(world.withdrawn(), [(item(1), FIRST)]);
}
