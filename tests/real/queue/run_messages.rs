//! Messages of runs in the queue, and their removal.

use std::collections::BTreeMap;

use rollout_worker::queue::contract::{CLASSES, samples};
use rollout_worker::queue::traits::{Dispatch as _, WorkSource as _};

use crate::queue::fixture::{QueueFixture, pool, with_every_server};

#[test]
fn removal_of_messages_leaves_later_ones_and_those_of_other_runs() {
    with_every_server(async |program| {
        let lab = QueueFixture::new(&program, "");
        let nats = lab.connect().await;
        let dispatch = nats.dispatch(&pool("one"), &CLASSES).await.expect("a dispatch");
        let source = nats.source(&pool("two"), "store").await.expect("a source");
        let [one, two] = [samples::offer(1, 1), samples::offer(2, 1)];
        dispatch.offer(&[one, two]).await.expect("reachable");
        source.report(vec![samples::report(1, 1)]).await.expect("reachable");
        let ends = nats.queue_ends().await.expect("reachable");
        source.report(vec![samples::report(1, 2)]).await.expect("reachable");
        let found = nats.runs_in_queue(2).await.expect("reachable");
        assert_eq!(found, BTreeMap::from([(one.run, 3), (two.run, 1)]));
        assert_eq!(nats.remove_messages(one.run, ends).await.expect("reachable"), 2);
        assert_eq!(nats.remove_messages(one.run, ends).await.expect("reachable"), 0);
        let left = nats.runs_in_queue(u64::MAX).await.expect("reachable");
        assert_eq!(left, BTreeMap::from([(one.run, 1), (two.run, 1)]));
    });
}

#[test]
fn long_queue_of_offers_is_not_looked_through_for_runs() {
    with_every_server(async |program| {
        let lab = QueueFixture::new(&program, "");
        let nats = lab.connect().await;
        let dispatch = nats.dispatch(&pool("one"), &CLASSES).await.expect("a dispatch");
        let source = nats.source(&pool("one"), "store").await.expect("a source");
        let offers = [1, 2, 3].map(|number| samples::offer(number, 1));
        let ended = offers[0].run;
        dispatch.offer(&offers).await.expect("reachable");
        source.report(vec![samples::report(1, 1)]).await.expect("reachable");
        let found = nats.runs_in_queue(2).await.expect("reachable");
        assert_eq!(found, BTreeMap::from([(ended, 1)]), "reports alone");
        // The removal takes the offers of the run, too.
        let ends = nats.queue_ends().await.expect("reachable");
        assert_eq!(nats.remove_messages(ended, ends).await.expect("reachable"), 2);
        assert_eq!(nats.runs_in_queue(2).await.expect("reachable").len(), 2, "all of them");
    });
}
