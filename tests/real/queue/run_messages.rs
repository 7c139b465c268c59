//! Messages of runs in the queue, and their removal.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use rollout_protocol::id::RunId;
use rollout_queue::contract::{CLASSES, samples};
use rollout_queue::nats::Nats;
use rollout_queue::traits::{Dispatch as _, KvStore as _, WorkSource as _};

use crate::queue::fixture::{QueueFixture, pool, with_every_server};

/// Messages in the bucket of the entries of runs.
async fn entry_messages(nats: &Nats) -> u64 {
    let streams = nats.server_info().await.expect("reachable").streams;
    let bucket = streams.iter().find(|stream| stream.name.ends_with("_RUNS")).expect("a bucket");
    bucket.messages
}

#[test]
fn old_removed_entries_leave_no_message_when_purged() {
    with_every_server(async |program| {
        let lab = QueueFixture::new(&program, "");
        let nats = lab.connect().await;
        nats.prepare(&pool("one"), &CLASSES).await.expect("streams");
        nats.bind_pool(&pool("one"), "store", false).await.expect("a binding");
        let runs = [1, 2, 3, 4].map(|number| samples::offer(number, 1).run);
        let store = nats.kv_store();
        let write = async |run: RunId, revision| {
            let (key, value) = (run.to_string(), Bytes::from_static(b"entry"));
            store.write(&key, value, revision).await.expect("reachable")
        };
        let bound = entry_messages(&nats).await;
        for run in runs {
            let revision = write(run, None).await.expect("nothing stood there");
            if run != runs[3] {
                assert!(store.remove(&run.to_string(), revision).await.expect("reachable"));
            }
        }
        nats.purge_removed_entries(Duration::from_hours(1)).await.expect("reachable");
        assert_eq!(entry_messages(&nats).await, bound + 4, "a removal leaves a message for a time");
        // It is another session's now.
        write(runs[1], None).await.expect("nothing stands there");
        nats.purge_removed_entries(Duration::ZERO).await.expect("reachable");
        assert_eq!(entry_messages(&nats).await, bound + 2);
        let left = store.entries().await.expect("reachable");
        let left: BTreeSet<String> = left.into_iter().map(|listed| listed.key).collect();
        assert_eq!(left, BTreeSet::from([runs[1].to_string(), runs[3].to_string()]));
        let stale = write(runs[2], Some(1)).await;
        assert_eq!(stale, None, "its entry was removed");
        write(runs[2], None).await.expect("nothing stands there");
    });
}

#[test]
fn entries_and_markers_of_more_runs_than_are_read_at_once_are_all_found() {
    const RUNS: u16 = 1100;
    with_every_server(async |program| {
        let lab = QueueFixture::new(&program, "");
        let nats = lab.connect().await;
        nats.prepare(&pool("one"), &CLASSES).await.expect("streams");
        let store = nats.kv_store();
        let value = Bytes::from_static(b"entry");
        let mut revisions = BTreeMap::new();
        for number in 0..RUNS {
            let key = format!("run-{number}");
            let written = store.write(&key, value.clone(), None).await.expect("reachable");
            revisions.insert(key, written.expect("nothing stood there"));
        }
        let found = store.entries().await.expect("reachable").into_iter();
        let found: BTreeMap<_, _> =
            found.map(|listed| (listed.key, listed.entry.revision)).collect();
        assert_eq!(found, revisions);
        for (key, revision) in revisions {
            assert!(store.remove(&key, revision).await.expect("reachable"), "{key}");
        }
        nats.purge_removed_entries(Duration::ZERO).await.expect("reachable");
        assert_eq!(entry_messages(&nats).await, 0);
    });
}

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
