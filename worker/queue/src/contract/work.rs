//! Contract checks: offers, deliveries and their acknowledgements.

use std::time::Duration;

use rollout_protocol::wire::delivery::{FreeCapacity, OfferOutcome};
use rollout_protocol::wire::offer::{Offer, SizeClass};
use tokio::time::timeout;

use super::{
    ANSWER_TIMEOUT, Broker, FIRST, item, items, list, offer, publish, pull_all, pull_once, run,
    take, tokens, wait_until,
};

/// A try is in the queue once, and again after it was acknowledged only if it is offered again.
pub(super) async fn offer_of_same_try_is_published_once(broker: &dyn Broker) {
    let dispatch = broker.dispatch();
    publish(broker, &[offer(1, 1, FIRST)]).await;
    let again = [offer(1, 1, FIRST), offer(2, 1, FIRST), offer(1, 1, FIRST.next(1))];
    let answers = dispatch.offer(&again).await.expect("reachable");
    assert_eq!(
        answers,
        [
            Ok(OfferOutcome::AlreadyPresent),
            Ok(OfferOutcome::Published),
            Ok(OfferOutcome::Published)
        ]
    );
    let deliveries = take(broker, 3).await;
    assert_eq!(deliveries.len(), 3);
    let present = dispatch.offer(&[offer(1, 1, FIRST)]).await.expect("reachable");
    assert_eq!(present, [Ok(OfferOutcome::AlreadyPresent)], "delivered, but still there");
    broker.source().ack(&tokens(&deliveries)).await.expect("reachable");
    wait_until("acknowledged", async || list(broker, 1).await.is_empty()).await;
    assert_eq!(pull_once(broker).await, []);
    publish(broker, &[offer(1, 1, FIRST)]).await;
}

/// First published, first delivered.
pub(super) async fn pull_returns_offers_in_order_within_capacity(broker: &dyn Broker) {
    let offers: Vec<Offer> = (0..10).map(|n| offer(n % 2, n, FIRST)).collect();
    publish(broker, &offers).await;
    let first = take(broker, 4).await;
    assert_eq!(items(&first), (0..4).map(item).collect::<Vec<_>>());
    assert!(first.iter().all(|d| d.delivered == 1));
    assert_eq!(first.iter().map(|d| d.offer).collect::<Vec<_>>(), offers[..4]);
    assert_eq!(items(&take(broker, 6).await), (4..10).map(item).collect::<Vec<_>>());
}

/// A pull waits for an offer, and no longer than its limit.
pub(super) async fn pull_waiting_gets_new_offer(broker: &dyn Broker) {
    let source = broker.source();
    let wait = Duration::from_millis(300);
    let began = tokio::time::Instant::now();
    assert_eq!(source.pull(FreeCapacity::with_slots(1), wait).await.expect("reachable"), []);
    assert!(began.elapsed() >= wait - broker.quiet_period(), "{:?}", began.elapsed());
    let later = async {
        tokio::time::sleep(broker.quiet_period()).await;
        publish(broker, &[offer(1, 1, FIRST)]).await;
    };
    let (pulled, ()) =
        tokio::join!(source.pull(FreeCapacity::with_slots(5), ANSWER_TIMEOUT), later);
    assert_eq!(items(&pulled.expect("reachable")), [item(1)]);
}

/// A worker that does not extend its lease loses the delivery.
pub async fn delivery_without_progress_is_redelivered_after_lease(broker: &dyn Broker) {
    publish(broker, &[offer(1, 1, FIRST)]).await;
    let first = take(broker, 1).await;
    broker.advance_lease(2).await;
    assert_eq!(pull_once(broker).await, []);
    broker.advance_lease(2).await;
    let second = pull_all(broker, FreeCapacity::with_slots(1), &[item(1)]).await;
    assert_eq!(first[0].delivered, 1);
    assert!(second[0].delivered > 1, "{second:?}");
}

/// A worker that extends its lease keeps the delivery.
pub(super) async fn progress_extends_lease(broker: &dyn Broker) {
    publish(broker, &[offer(1, 1, FIRST)]).await;
    let held = tokens(&take(broker, 1).await);
    for _ in 0..3 {
        broker.advance_lease(2).await;
        broker.source().progress(&held).await.expect("reachable");
        assert_eq!(pull_once(broker).await, []);
    }
    broker.advance_lease(4).await;
    pull_all(broker, FreeCapacity::with_slots(1), &[item(1)]).await;
}

/// Progress after the end of the lease is too late: the offer is delivered again at once.
pub(super) async fn progress_after_lease_end_has_no_effect(broker: &dyn Broker) {
    publish(broker, &[offer(1, 1, FIRST)]).await;
    let held = tokens(&take(broker, 1).await);
    broker.advance_lease(4).await;
    broker.source().progress(&held).await.expect("reachable");
    let again = async {
        let source = broker.source();
        source.pull(FreeCapacity::with_slots(1), ANSWER_TIMEOUT).await.expect("reachable")
    };
    tokio::select! {
        biased;
        again = again => assert_eq!(items(&again), [item(1)]),
        () = broker.advance_lease(2) => panic!("the lease was extended after its end"),
    }
}

/// A returned delivery goes to the next pull.
pub(super) async fn nak_redelivers_at_once(broker: &dyn Broker) {
    publish(broker, &[offer(1, 1, FIRST), offer(1, 2, FIRST)]).await;
    let first = take(broker, 2).await;
    broker.source().nak(&tokens(&first[..1])).await.expect("reachable");
    let again = pull_all(broker, FreeCapacity::with_slots(1), &[item(1)]).await;
    assert_eq!(items(&again), [item(1)]);
    assert_eq!(again[0].delivered, 2);
}

/// Acknowledgements are not fenced.
pub(super) async fn ack_of_earlier_delivery_removes_offer(broker: &dyn Broker) {
    publish(broker, &[offer(1, 1, FIRST)]).await;
    let first = take(broker, 1).await;
    broker.advance_lease(4).await;
    let second = pull_all(broker, FreeCapacity::with_slots(1), &[item(1)]).await;
    broker.source().ack(&tokens(&first)).await.expect("reachable");
    wait_until("acknowledged", async || list(broker, 1).await.is_empty()).await;
    broker.source().nak(&tokens(&second)).await.expect("harmless");
    broker.source().progress(&tokens(&second)).await.expect("harmless");
    broker.source().ack(&tokens(&second)).await.expect("harmless");
    assert_eq!(pull_once(broker).await, []);
}

/// Withdrawn offers are removed, in flight or not.
pub(super) async fn withdrawn_offer_is_not_delivered(broker: &dyn Broker) {
    publish(broker, &[offer(1, 1, FIRST), offer(1, 2, FIRST), offer(2, 1, FIRST)]).await;
    let held = take(broker, 1).await;
    let gone = [(item(1), FIRST), (item(2), FIRST), (item(7), FIRST)];
    broker.dispatch().withdraw(run(1), &gone).await.expect("reachable");
    assert_eq!(list(broker, 1).await, []);
    broker.source().progress(&tokens(&held)).await.expect("harmless");
    broker.advance_lease(4).await;
    let left = pull_all(broker, FreeCapacity::with_slots(5), &[item(1)]).await;
    assert!(left.iter().all(|d| d.offer.run == run(2)), "{left:?}");
}

/// The listing holds the offers of the run, and whether they were ever delivered.
pub(super) async fn list_shows_every_offer_in_queue(broker: &dyn Broker) {
    publish(broker, &[offer(1, 1, FIRST), offer(2, 5, FIRST), offer(1, 2, FIRST)]).await;
    take(broker, 1).await;
    let listed = list(broker, 1).await;
    let seen: Vec<_> = listed.iter().map(|l| (l.item, l.try_id, l.delivered)).collect();
    assert_eq!(seen, [(item(1), FIRST, true), (item(2), FIRST, false)]);
    assert_eq!(list(broker, 3).await, []);
}

/// Offers that a dropped pull requested go to the next one.
pub(super) async fn pull_dropped_loses_no_offer(broker: &dyn Broker) {
    let offers: Vec<Offer> = (0..20).map(|n| offer(1, n, FIRST)).collect();
    publish(broker, &offers).await;
    let source = broker.source();
    let mut held = Vec::new();
    for n in 0..20 {
        let max_wait = Duration::from_micros(200 * n);
        let pulled =
            timeout(max_wait, source.pull(FreeCapacity::with_slots(5), ANSWER_TIMEOUT)).await;
        held.extend(pulled.map_or(Vec::new(), |pulled| pulled.expect("reachable")));
    }
    wait_until("each is delivered", async || {
        held.extend(
            source
                .pull(FreeCapacity::with_slots(20), broker.quiet_period())
                .await
                .expect("reachable"),
        );
        (0..20).all(|n| held.iter().any(|d| d.offer.item == item(n)))
    })
    .await;
}

fn sized_offer(n: u8, class: SizeClass) -> Offer {
    Offer { class, ..offer(1, n, FIRST) }
}

/// A pull delivers the largest class that fits first.
pub(super) async fn pull_prefers_largest_class_that_fits(broker: &dyn Broker) {
    let (small, big) = (SizeClass(0), SizeClass(1));
    publish(
        broker,
        &[sized_offer(1, small), sized_offer(2, big), sized_offer(3, small), sized_offer(4, big)],
    )
    .await;
    let room = FreeCapacity { slots: 1, shares: Some(big.shares()), idle: false };
    let first = pull_all(broker, room, &[item(2)]).await;
    assert_eq!(items(&first), [item(2)]);
    let room = FreeCapacity { slots: 9, shares: Some(big.shares() - 1), idle: false };
    let mut small = items(&pull_all(broker, room, &[item(1), item(3)]).await);
    small.sort();
    small.dedup();
    assert_eq!(small, [item(1), item(3)], "the other one does not fit");
    pull_all(broker, FreeCapacity::with_slots(4), &[item(4)]).await;
}

/// A solo offer is delivered only to an idle worker, and alone.
pub(super) async fn solo_offer_is_delivered_to_idle_worker_only(broker: &dyn Broker) {
    publish(broker, &[sized_offer(1, SizeClass::SOLO), sized_offer(2, SizeClass::SOLO)]).await;
    let busy = FreeCapacity { idle: false, ..FreeCapacity::with_slots(4) };
    let none = broker.source().pull(busy, broker.quiet_period()).await.expect("reachable");
    assert_eq!(none, []);
    let mut got = Vec::new();
    wait_until("both are delivered, one after the other", async || {
        let more = broker
            .source()
            .pull(FreeCapacity::with_slots(4), broker.quiet_period())
            .await
            .expect("reachable");
        assert!(more.len() <= 1, "{more:?}");
        broker.source().ack(&tokens(&more)).await.expect("reachable");
        got.extend(items(&more));
        [item(1), item(2)].iter().all(|item| got.contains(item))
    })
    .await;
}
