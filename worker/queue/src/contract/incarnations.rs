//! Contract checks: restarted and wiped brokers.

use bytes::Bytes;
use rollout_protocol::wire::delivery::{FreeCapacity, OfferOutcome};

use super::{
    Broker, FIRST, item, items, list, offer, publish, pull_all, read_reports, report, run,
    send_reports, take, tokens, wait_until,
};
use crate::traits::QueueError;

/// A restart ends all leases and keeps the offers. Delivery counts may be lost.
pub(super) async fn restart_redelivers_everything_in_flight(broker: &dyn Broker) {
    let incarnation = broker.dispatch().incarnation().await.expect("reachable");
    publish(broker, &[offer(1, 1, FIRST), offer(1, 2, FIRST), offer(1, 3, FIRST)]).await;
    let held = take(broker, 2).await;
    assert_eq!(items(&held), [item(1), item(2)]);
    broker.source().ack(&tokens(&held[..1])).await.expect("reachable");
    wait_until("acknowledged", async || list(broker, 1).await.len() == 2).await;
    broker.restart().await;
    assert_eq!(broker.dispatch().incarnation().await.expect("reachable"), incarnation);
    let again = pull_all(broker, FreeCapacity::with_slots(5), &[item(2), item(3)]).await;
    assert!(!items(&again).contains(&item(1)), "{again:?}");
    broker.source().ack(&tokens(&again)).await.expect("reachable");
    wait_until("acknowledged", async || list(broker, 1).await.is_empty()).await;
}

/// Writes that were acknowledged survive a restart.
pub(super) async fn restart_keeps_reports_and_kv_entries(broker: &dyn Broker) {
    send_reports(broker, vec![report(1, 1), report(1, 2), report(1, 3)]).await;
    let all = read_reports(broker, 1, None).await;
    let value = Bytes::from_static(b"value");
    let revision = broker.kv_store().write("key", value.clone(), None).await.expect("reachable");
    broker.restart().await;
    assert_eq!(read_reports(broker, 1, Some(all[0].0)).await, all[1..]);
    assert_eq!(read_reports(broker, 1, None).await, all);
    send_reports(broker, vec![report(1, 4)]).await;
    assert_eq!(read_reports(broker, 1, Some(all[2].0)).await.len(), 1);
    let entry = broker.kv_store().read("key").await.expect("reachable").expect("it is there");
    assert_eq!((Some(entry.revision), entry.value), (revision, value));
}

/// A wiped broker has a new incarnation in which nothing of the former one is valid, and needs no
/// manual set-up.
pub(super) async fn wipe_starts_new_incarnation(broker: &dyn Broker) {
    let dispatch = broker.dispatch();
    let incarnation = dispatch.incarnation().await.expect("reachable");
    publish(broker, &[offer(1, 1, FIRST), offer(1, 2, FIRST)]).await;
    let held = take(broker, 2).await;
    send_reports(broker, vec![report(1, 1), report(1, 2)]).await;
    let all = read_reports(broker, 1, None).await;
    broker.kv_store().write("key", Bytes::new(), None).await.expect("reachable");
    broker.wipe().await;
    assert_ne!(dispatch.incarnation().await.expect("reachable"), incarnation);
    let gone = dispatch.reports(run(1), Some(all[0].0), 10, broker.quiet_period()).await;
    assert!(matches!(gone, Err(QueueError::Position)), "{gone:?}");
    assert_eq!(read_reports(broker, 1, None).await, []);
    assert_eq!(dispatch.last_report_sequence(run(1)).await.expect("reachable"), 0);
    assert_eq!(list(broker, 1).await, []);
    assert_eq!(broker.kv_store().entries().await.expect("reachable"), []);
    // The same sequences, other messages.
    let offers = [offer(2, 7, FIRST), offer(2, 8, FIRST)];
    let answers = dispatch.offer(&offers).await.expect("reachable");
    assert_eq!(answers, [Ok(OfferOutcome::Published), Ok(OfferOutcome::Published)]);
    broker.source().ack(&tokens(&held)).await.expect("harmless");
    broker.source().nak(&tokens(&held)).await.expect("harmless");
    send_reports(broker, vec![report(2, 3), report(2, 4), report(2, 5)]).await;
    dispatch.mark_journaled(run(2), all[1].0).await.expect("harmless");
    let again = pull_all(broker, FreeCapacity::with_slots(2), &[item(7), item(8)]).await;
    broker.source().ack(&tokens(&held)).await.expect("harmless");
    assert_eq!(list(broker, 2).await.len(), 2);
    assert_eq!(read_reports(broker, 2, None).await.len(), 3);
    assert!(again.iter().all(|d| d.token.incarnation != incarnation), "{again:?}");
    broker.source().ack(&tokens(&again)).await.expect("reachable");
    wait_until("acknowledged", async || list(broker, 2).await.is_empty()).await;
}
