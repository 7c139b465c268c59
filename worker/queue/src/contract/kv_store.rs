//! Contract checks: the key-value store.

use bytes::Bytes;

use super::{Broker, wait_until};

fn value(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}

/// A write or removal happens only on top of the revision that its writer has seen.
pub(super) async fn kv_write_compares_revision(broker: &dyn Broker) {
    let store = broker.kv_store();
    let write = async |key: &str, text, revision| {
        store.write(key, value(text), revision).await.expect("reachable")
    };
    let read = async |key: &str| {
        let entry = store.read(key).await.expect("reachable");
        entry.map(|entry| (entry.revision, entry.value))
    };
    let remove = async |revision| store.remove("a", revision).await.expect("reachable");
    assert_eq!(read("a").await, None);
    let first = write("a", "one", None).await.expect("nothing stood there");
    assert_eq!(read("a").await, Some((first, value("one"))));
    assert_eq!(write("a", "two", None).await, None, "something stands there");
    assert_eq!(write("a", "two", Some(first + 100)).await, None);
    assert_eq!(write("b", "two", Some(first)).await, None, "nothing stands there");
    let second = write("a", "two", Some(first)).await.expect("it was seen");
    assert!(second > first);
    assert_eq!(write("a", "three", Some(first)).await, None, "it has been replaced");
    write("b-b_B", "other", None).await.expect("nothing stood there");
    let mut all = store.entries().await.expect("reachable");
    all.sort_by(|a, b| a.key.cmp(&b.key));
    let all: Vec<_> = all.into_iter().map(|listed| (listed.key, listed.entry.value)).collect();
    assert_eq!(all, [("a".to_owned(), value("two")), ("b-b_B".to_owned(), value("other"))]);
    assert!(!remove(first).await);
    assert!(remove(second).await);
    assert!(!remove(second).await, "it is gone");
    assert_eq!(read("a").await, None);
    assert_eq!(store.entries().await.expect("reachable").len(), 1);
    assert_eq!(write("a", "four", Some(second)).await, None);
    let third = write("a", "four", None).await.expect("nothing stands there");
    assert!(third > second, "revisions keep growing after a removal");
    assert_eq!(read("a").await, Some((third, value("four"))));
}

/// The age of an entry is the time since its last write.
pub(super) async fn kv_entry_is_listed_with_age(broker: &dyn Broker) {
    let store = broker.kv_store();
    let write = async |key: &str, revision| {
        store.write(key, value("text"), revision).await.expect("reachable").expect("it was seen")
    };
    let renewed = write("a-renewed", None).await;
    write("b-left", None).await;
    broker.advance_lease(1).await;
    write("a-renewed", Some(renewed)).await;
    let mut listed = store.entries().await.expect("reachable");
    listed.sort_by(|a, b| a.key.cmp(&b.key));
    let [renewed, left] = &*listed else { panic!("{listed:?}") };
    assert!(renewed.age < left.age, "{listed:?}");
}

/// Of several concurrent writes, one succeeds.
pub(super) async fn kv_write_race_has_one_winner(broker: &dyn Broker) {
    let store = broker.kv_store();
    let mut revision = None;
    for _ in 0..5 {
        let write = |text| store.write("lock", value(text), revision);
        let (a, b, c) = tokio::join!(write("a"), write("b"), write("c"));
        let written: Vec<(u64, Bytes)> = [(a, "a"), (b, "b"), (c, "c")]
            .into_iter()
            .filter_map(|(written, text)| Some((written.expect("reachable")?, value(text))))
            .collect();
        let [winner] = &*written else { panic!("{written:?}") };
        let entry = store.read("lock").await.expect("reachable").expect("it is there");
        assert_eq!((entry.revision, entry.value), *winner);
        revision = Some(winner.0);
    }
    wait_until("it is removed", async || {
        store.remove("lock", revision.expect("written")).await.expect("reachable")
    })
    .await;
}
