use futures_util::FutureExt as _;
use tokio::time::timeout;

use super::*;

fn user(name: &str) -> LimitUser {
    LimitUser { name: name.to_owned(), is_admin: name == "root" }
}

/// Takes as many places as a user gets.
fn all(limit: &Arc<SharedLimit>, name: &str) -> Vec<SharedPlace> {
    std::iter::from_fn(|| limit.try_acquire(&user(name), 1).ok()).collect()
}

/// Starts to wait for a place.
fn waiting(
    limit: &Arc<SharedLimit>,
    name: &str,
    priority: i32,
) -> impl Future<Output = SharedPlace> + use<> {
    waiting_for(limit, name, priority, 1)
}

/// Starts to wait for an amount.
fn waiting_for(
    limit: &Arc<SharedLimit>,
    name: &str,
    priority: i32,
    amount: u64,
) -> impl Future<Output = SharedPlace> + use<> {
    let (limit, user) = (Arc::clone(limit), user(name));
    let mut acquiring = Box::pin(async move { limit.acquire(&user, priority, amount).await });
    // One look puts it into the queue.
    let _pending = (&mut acquiring).now_or_never();
    acquiring
}

#[test]
fn user_who_takes_all_leaves_places_for_others_and_the_administrator() {
    for total in [4, 8, 64, 512, 1008] {
        let limit = SharedLimit::new(LimitShares::new(total));
        let ada = all(&limit, "ada");
        assert!(ada.len() as u64 >= total / 2, "{total}: {}", ada.len());
        let bob = all(&limit, "bob");
        assert!(!bob.is_empty(), "{total}");
        let _rest: Vec<_> = ["c", "d", "e", "f", "g"].map(|name| all(&limit, name)).into();
        assert!(!all(&limit, "root").is_empty(), "{total}");
    }
    for (total, of_ada) in [(1, 1), (2, 1), (3, 2)] {
        let limit = SharedLimit::new(LimitShares::new(total));
        assert_eq!(all(&limit, "ada").len(), of_ada);
    }
    assert_eq!(all(&SharedLimit::new(LimitShares::new(8)), "root").len(), 8);
    assert_eq!(all(&SharedLimit::new(LimitShares::whole(8)), "ada").len(), 8);
    assert_eq!(all(&SharedLimit::new(LimitShares::new(0)), "root").len(), 0);
}

#[test]
fn amount_that_exceeds_the_limit_is_refused_and_a_place_grows_within_it() {
    let limit = SharedLimit::new(LimitShares::new(80));
    let ada = user("ada");
    assert!(limit.try_acquire(&ada, 71).is_err());
    let mut place = limit.try_acquire(&ada, 10).expect("room");
    place.grow(30).expect("her part");
    let reached = place.grow(10).expect_err("more than her part");
    assert_eq!(reached, LimitReached { own: 40, held: 40, total: 80 });
    assert_eq!(place.amount(), 40);
    place.shrink_to(50);
    place.shrink_to(15);
    assert_eq!((place.amount(), limit.counts().held), (15, 15));
    drop(place);
    assert_eq!(limit.counts(), LimitCounts { free: 80, held: 0, waiting: 0 });
}

#[tokio::test]
async fn room_goes_to_the_user_with_the_least_and_priority_counts_within_a_user() {
    let limit = SharedLimit::new(LimitShares::whole(2));
    let first = limit.acquire(&user("ada"), 0, 1).await;
    let second = limit.acquire(&user("ada"), 0, 1).await;
    let of_ada = waiting(&limit, "ada", 0);
    let urgent = waiting(&limit, "ada", 1000);
    let of_bob = waiting(&limit, "bob", -1000);
    assert_eq!(limit.counts(), LimitCounts { free: 0, held: 2, waiting: 3 });
    drop(first);
    let of_bob = of_bob.await;
    drop(second);
    let urgent = urgent.await;
    assert_eq!(limit.counts(), LimitCounts { free: 0, held: 2, waiting: 1 });
    drop(urgent);
    let of_ada = of_ada.await;
    drop((of_ada, of_bob));
    assert_eq!(limit.counts(), LimitCounts { free: 2, held: 0, waiting: 0 });
}

#[tokio::test]
async fn users_take_turns_at_the_last_place() {
    let limit = SharedLimit::new(LimitShares::whole(1));
    let held = limit.acquire(&user("ada"), 0, 1).await;
    let many: Vec<_> = (0..9).map(|_| waiting(&limit, "ada", 1000)).collect();
    let of_bob = waiting(&limit, "bob", 0);
    drop(held);
    let of_bob = of_bob.now_or_never().expect("the next turn is his");
    drop(of_bob);
    drop(many);
}

#[tokio::test]
async fn large_request_is_not_passed_by_small_ones_without_end() {
    let limit = SharedLimit::new(LimitShares::new(80));
    let mut held = Vec::new();
    for _ in 0..5 {
        held.push(limit.acquire(&user("ada"), 0, 8).await);
    }
    let large = waiting_for(&limit, "bob", 0, 40);
    drop(held.pop());
    let next = waiting_for(&limit, "ada", 0, 8);
    assert_eq!(limit.counts().held, 32, "she does not take the room that he waits for");
    drop(held.pop());
    let large = large.now_or_never().expect("there is room for him");
    assert_eq!(limit.counts(), LimitCounts { free: 16, held: 64, waiting: 1 });
    drop(large);
    assert!(next.now_or_never().is_some());
}

#[tokio::test]
async fn request_beyond_the_part_of_its_user_keeps_only_that_user_back() {
    let limit = SharedLimit::new(LimitShares::new(80));
    let held = limit.acquire(&user("ada"), 0, 40).await;
    let of_ada = waiting_for(&limit, "ada", 0, 20);
    let of_bob = limit.acquire(&user("bob"), 0, 8).now_or_never();
    assert!(of_bob.is_some(), "there is room for him");
    drop(held);
    assert_eq!(of_ada.await.amount(), 20);
}

#[tokio::test(start_paused = true)]
async fn request_that_waits_for_long_holds_none_back() {
    let limit = SharedLimit::new(LimitShares::new(80));
    let _held = limit.acquire(&user("ada"), 0, 40).await;
    let _of_bob = waiting_for(&limit, "bob", 0, 40);
    let of_eve = waiting_for(&limit, "eve", 0, 1);
    assert_eq!(limit.counts().waiting, 2, "she is behind him");
    // He is not looked at again: her own time is over, too.
    let of_eve = timeout(HOLD_BACK * 2, of_eve).await.expect("in bounded time");
    let of_dan = limit.acquire(&user("dan"), 0, 1).now_or_never();
    assert!(of_dan.is_some(), "the one who waits is late");
    drop(of_eve);

    // Another large request holds newer ones back, each for no longer.
    let _of_carl = waiting_for(&limit, "carl", 0, 40);
    let of_fay = waiting_for(&limit, "fay", 0, 1);
    assert_eq!(limit.counts().waiting, 3);
    assert!(timeout(HOLD_BACK * 2, of_fay).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn large_request_has_room_that_small_ones_hold_for_longer_than_it_holds_them_back() {
    let limit = SharedLimit::new(LimitShares::new(80));
    let mut held = Vec::new();
    for _ in 0..8 {
        held.push(limit.acquire(&user("ada"), 0, 5).await);
    }
    let large = waiting_for(&limit, "bob", 0, 40);
    let replaced = async {
        tokio::time::sleep(HOLD_BACK * 2).await;
        for _ in 0..100 {
            drop(held.pop());
            held.extend(limit.acquire(&user("ada"), 0, 5).now_or_never());
            tokio::time::sleep(Duration::from_secs(10)).await;
        }
    };
    let began = Instant::now();
    tokio::select! {
        large = timeout(Duration::from_secs(300), large) => {
            assert_eq!(large.expect("in bounded time").amount(), 40);
        }
        () = replaced => unreachable!("it lasts longer"),
    }
    assert!(began.elapsed() >= HOLD_BACK_PERIOD, "{:?}", began.elapsed());
}

#[tokio::test]
async fn request_that_takes_its_amount_in_parts_has_the_room_of_the_first_one_of_a_user() {
    let limit = SharedLimit::new(LimitShares::new(80));
    let _held = limit.acquire(&user("ada"), 0, 40).await;
    let mut place = limit.acquire(&user("bob"), 0, 1).await;
    let more = limit.acquire_more(&user("bob"), 0, 24, place.amount()).now_or_never();
    place.merge(more.expect("all that is left for users but 5"));
    assert_eq!(place.amount(), 25);
    let other = limit.acquire(&user("bob"), 0, 5).now_or_never();
    assert!(other.is_none(), "another request is beyond the part");
}

#[tokio::test]
async fn request_for_more_than_a_part_holds_none_back() {
    let limit = SharedLimit::new(LimitShares::new(80));
    let held = limit.acquire(&user("ada"), 0, 40).await;
    let of_bob = waiting_for(&limit, "bob", 0, 60);
    assert!(limit.acquire(&user("eve"), 0, 1).now_or_never().is_some());
    drop(held);
    assert!(of_bob.now_or_never().is_some(), "he has it when it is free");
}

#[tokio::test]
async fn administrator_passes_a_request_that_waits_for_others() {
    let limit = SharedLimit::new(LimitShares::new(80));
    let _held = limit.acquire(&user("ada"), 0, 40).await;
    let _of_bob = waiting_for(&limit, "bob", 0, 40);
    assert!(limit.acquire(&user("eve"), 0, 1).now_or_never().is_none(), "she is behind him");
    assert!(limit.acquire(&user("root"), 0, 1).now_or_never().is_some());
}

#[tokio::test]
async fn request_that_goes_lets_those_behind_it_be_served() {
    let limit = SharedLimit::new(LimitShares::new(80));
    let _held = limit.acquire(&user("ada"), 0, 40).await;
    let of_bob = waiting_for(&limit, "bob", 0, 40);
    let of_eve = waiting_for(&limit, "eve", 0, 1);
    assert_eq!(limit.counts().waiting, 2, "she is behind him");
    drop(of_bob);
    assert!(of_eve.now_or_never().is_some(), "nothing else would wake her");

    let large = waiting_for(&limit, "ada", 0, 20);
    let small = waiting_for(&limit, "ada", 0, 1);
    drop(large);
    assert!(small.now_or_never().is_some(), "nor the next one of the same user");
}

#[tokio::test]
async fn requests_that_no_longer_wait_take_no_room() {
    let limit = SharedLimit::new(LimitShares::whole(1));
    let held = limit.acquire(&user("ada"), 0, 1).await;
    let gone: Vec<_> = (0..100).map(|_| waiting(&limit, "ada", 0)).collect();
    drop(gone);
    let last = waiting(&limit, "ada", 0);
    assert_eq!(limit.counts().waiting, 1);
    drop(held);
    let _place = last.await;
    assert_eq!(limit.counts(), LimitCounts { free: 0, held: 1, waiting: 0 });
}
