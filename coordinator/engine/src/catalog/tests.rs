//! Journals in a catalog: written, joined, taken over and cut off at every call to the store.

use std::sync::Arc;
use std::time::Duration;

use rollout_base::supervise;
use rollout_protocol::Timestamp;
use rollout_protocol::digest::Digest;
use rollout_protocol::id::{ItemId, RunId, TryId};
use rollout_protocol::wire::control::StopLevel;
use rollout_store::testing::{FaultyStore, StoreCall};
use rollout_store::{BlobStore, MemoryStore};
use tokio::sync::mpsc;

use super::*;
use crate::core::{JournalRecord, OfferedTry, PredecessorSegment, SessionStart};
use crate::journal::{JournalMirror, JournalWriter, ReplaySummary, RunLayout, replay};
use crate::{Interruption, testing};

const RUN: RunId = testing::RUN;

/// A host with a copy of the run.
struct Host {
    _directory: tempfile::TempDir,
    layout: RunLayout,
    mirror: Arc<CatalogMirror>,
}

impl Host {
    fn new(store: Arc<dyn BlobStore>) -> Self {
        Self::interrupted_by(store, Interruption::never())
    }

    fn interrupted_by(store: Arc<dyn BlobStore>, interruption: Interruption) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let layout = RunLayout::new(directory.path());
        let catalog = Catalog::new(store);
        let options = MirrorOptions { job: "demo".to_owned(), is_only_lock: true, interruption };
        let mirror = Arc::new(CatalogMirror::new(catalog, layout.clone(), options));
        Self { _directory: directory, layout, mirror }
    }

    async fn begin(
        &self,
        epoch: u32,
        former: Option<PredecessorSegment>,
    ) -> Result<JournalWriter, JournalError> {
        let (layout, mirror) = (self.layout.clone(), Arc::clone(&self.mirror));
        supervise::blocking(move || {
            let at = Timestamp::UNIX_EPOCH;
            JournalWriter::create_mirrored(
                &layout,
                at,
                testing::session_start(epoch, former),
                Some(mirror),
            )
        })
        .await
    }

    fn read(&self) -> (Vec<JournalRecord>, Option<ReplaySummary>) {
        let mut records = Vec::new();
        let summary = replay(&self.layout, &[], |_, record| records.push(record));
        (records, summary.expect("a whole journal"))
    }

    fn head(&self) -> Option<PredecessorSegment> {
        self.read().1.map(|summary| summary.head)
    }
}

fn record(n: u16) -> JournalRecord {
    let [high, low] = n.to_be_bytes();
    let mut item = [0; 16];
    item[..2].copy_from_slice(&[high, low]);
    let tries = vec![OfferedTry {
        item: ItemId::from_bytes(item),
        try_id: TryId::first(1),
        spec: Digest::sha256(&[high, low]),
    }];
    JournalRecord::Offered { tries }
}

/// Makes records durable, one batch each.
async fn commit(
    writer: &mut JournalWriter,
    records: impl IntoIterator<Item = u16>,
) -> Result<(), JournalError> {
    for n in records {
        writer.record(Timestamp::UNIX_EPOCH, &record(n));
        assert!(writer.submit());
        writer.durable().await?;
    }
    Ok(())
}

/// The numbered records of all sessions.
fn committed(host: &Host) -> Vec<JournalRecord> {
    let (records, _) = host.read();
    records.into_iter().filter(|r| matches!(r, JournalRecord::Offered { .. })).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn journal_of_two_hosts_is_read_on_a_third() {
    let store: Arc<dyn BlobStore> = Arc::new(MemoryStore::default());
    let first = Host::new(Arc::clone(&store));
    let mut writer = first.begin(1, None).await.expect("begun");
    commit(&mut writer, 0..5).await.expect("written");
    drop(writer);

    let second = Host::new(Arc::clone(&store));
    let catalog = Catalog::new(Arc::clone(&store));
    catalog.download(RUN, &second.layout).await.expect("downloaded");
    let mut writer = second.begin(2, second.head()).await.expect("begun");
    commit(&mut writer, 5..9).await.expect("written");
    drop(writer);

    let third = Host::new(Arc::clone(&store));
    catalog.download(RUN, &third.layout).await.expect("downloaded");
    assert_eq!(committed(&third), (0..9).map(record).collect::<Vec<_>>());
    assert_eq!(third.read().1.map(|summary| summary.last.epoch), Some(2));
    let header = catalog.find(Some("demo")).await.expect("one run");
    assert_eq!((header.run, catalog.find(None).await.expect("one run").job), (RUN, header.job));
    let id = RUN.to_string();
    assert_eq!(catalog.find(Some(&id[..8])).await.expect("one run").run, RUN);
    assert!(matches!(catalog.find(Some("other")).await, Err(CatalogError::NoRun(_))));
}

#[tokio::test(flavor = "multi_thread")]
async fn many_pieces_are_joined_and_read_as_before() {
    let store: Arc<dyn BlobStore> = Arc::new(MemoryStore::default());
    let host = Host::new(Arc::clone(&store));
    let mut writer = host.begin(1, None).await.expect("begun");
    commit(&mut writer, 0..300).await.expect("written");
    let pieces = async || store.list_documents("catalog/").await.expect("listed").len();
    supervise_until(async || pieces().await < 100).await;
    commit(&mut writer, 300..310).await.expect("written");
    drop(writer);
    let other = Host::new(Arc::clone(&store));
    Catalog::new(store).download(RUN, &other.layout).await.expect("downloaded");
    assert_eq!(committed(&other), (0..310).map(record).collect::<Vec<_>>());
}

/// Polls a condition with a deadline.
async fn supervise_until(mut condition: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), waiting).await.expect("in time");
}

#[tokio::test(flavor = "multi_thread")]
async fn batch_is_durable_only_when_the_store_has_it() {
    let store = Arc::new(FaultyStore::default());
    let host = Host::new(store.clone());
    let mut writer = host.begin(1, None).await.expect("begun");
    commit(&mut writer, 0..2).await.expect("written");
    store.set_down(true);
    writer.record(Timestamp::UNIX_EPOCH, &record(2));
    assert!(writer.submit());
    let calls = store.count(StoreCall::PutDocument) + store.count(StoreCall::GetDocument);
    supervise_until(async || {
        store.count(StoreCall::PutDocument) + store.count(StoreCall::GetDocument) > calls + 1
    })
    .await;
    assert_eq!(writer.committed(), 2);
    writer.record(Timestamp::UNIX_EPOCH, &record(3));
    assert!(!writer.submit(), "one batch is in flight");
    store.set_down(false);
    assert_eq!(writer.durable().await.expect("the store is back").number, 3);
    assert!(writer.submit());
    writer.durable().await.expect("written");
    let catalog = Catalog::new(store.clone());
    let other = Host::new(store.clone());
    catalog.download(RUN, &other.layout).await.expect("downloaded");
    assert_eq!(committed(&other).len(), 4);

    // A writer that is dropped during an outage does not wait for its end.
    store.set_down(true);
    writer.record(Timestamp::UNIX_EPOCH, &record(4));
    assert!(writer.submit());
    supervise::blocking(move || drop(writer)).await;
    store.set_down(false);
    host.mirror.synchronize(&host.layout).await.expect("synchronized");
    catalog.download(RUN, &other.layout).await.expect("downloaded");
    assert_eq!(committed(&other).len(), 5, "the record of the dead session is whole on its host");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_one_host_begins_a_session_and_the_former_owner_stops() {
    let store: Arc<dyn BlobStore> = Arc::new(MemoryStore::default());
    let (a, b, c) = (
        Host::new(Arc::clone(&store)),
        Host::new(Arc::clone(&store)),
        Host::new(Arc::clone(&store)),
    );
    let mut woken = a.begin(1, None).await.expect("begun");
    commit(&mut woken, 0..3).await.expect("written");
    let catalog = Catalog::new(Arc::clone(&store));
    for host in [&b, &c] {
        catalog.download(RUN, &host.layout).await.expect("downloaded");
    }
    // Epochs may be skipped.
    let mut owner = b.begin(3, b.head()).await.expect("begun");
    // The other one begins the same session with another former length.
    let head = c.head().map(|head| PredecessorSegment { bytes: head.bytes - 1, ..head });
    let error = c.begin(3, head).await.expect_err("the session is taken");
    assert!(matches!(error, JournalError::Mirror(MirrorError::Exists(3))), "{error:?}");
    assert!(!c.layout.segment(3).exists(), "it must not count");
    commit(&mut owner, 3..6).await.expect("written");

    let writing = async {
        loop {
            // Until it looks for a later session, its records go where nothing reads them.
            if let Err(error) = commit(&mut woken, [99]).await {
                return error;
            }
        }
    };
    let stopped = tokio::time::timeout(Duration::from_secs(30), writing).await;
    let error = stopped.expect("it looks for a later session");
    assert!(matches!(error, JournalError::Mirror(MirrorError::Superseded(3))), "{error:?}");
    let reader = Host::new(store);
    catalog.download(RUN, &reader.layout).await.expect("downloaded");
    assert_eq!(committed(&reader), (0..6).map(record).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn journal_of_a_run_directory_is_added_to_a_catalog_later() {
    let store: Arc<dyn BlobStore> = Arc::new(MemoryStore::default());
    let host = Host::new(Arc::clone(&store));
    let layout = host.layout.clone();
    let mut former = None;
    for epoch in 1..=2 {
        let of = layout.clone();
        let writer = JournalWriter::create(
            &of,
            Timestamp::UNIX_EPOCH,
            testing::session_start(epoch, former),
        );
        let mut writer = writer.expect("begun");
        commit(&mut writer, 0..3).await.expect("written");
        drop(writer);
        former = host.head();
    }
    host.mirror.synchronize(&layout).await.expect("synchronized");
    let files = ["plan.json".to_owned(), "records/000001.jsonl".to_owned(), "absent".to_owned()];
    std::fs::write(layout.plan(), "{}").expect("written");
    std::fs::create_dir_all(layout.records()).expect("made");
    std::fs::write(layout.record_file(1), "{}\n").expect("written");
    let catalog = Catalog::new(Arc::clone(&store));
    catalog.store_files(RUN, 2, &layout, &files, OtherFiles::Drop).await.expect("stored");
    std::fs::write(layout.plan(), "{\"new\": 1}").expect("written");
    catalog.store_files(RUN, 2, &layout, &files[..1], OtherFiles::Keep).await.expect("stored");
    let other = Host::new(store);
    catalog.download(RUN, &other.layout).await.expect("downloaded");
    assert_eq!(other.read().0, host.read().0);
    let text = |path| std::fs::read_to_string(path).expect("downloaded");
    assert_eq!(text(other.layout.plan()), "{\"new\": 1}");
    assert_eq!(text(other.layout.record_file(1)), "{}\n");
    assert_eq!(catalog.files(RUN).await.expect("read").len(), 2);
}

/// The store fails for good after each possible number of calls: the records that were committed
/// until then are in the catalog, in order, and nothing else but the one in flight.
#[tokio::test(flavor = "multi_thread")]
async fn committed_records_survive_a_death_at_every_call() {
    for calls in 3..40 {
        let store = Arc::new(FaultyStore::default());
        let host = Host::new(store.clone());
        let mut writer = host.begin(1, None).await.expect("begun");
        store.fail_after_calls(Some(calls));
        let mut durable = 0;
        for n in 0..10 {
            let one = commit(&mut writer, [n]);
            match tokio::time::timeout(Duration::from_millis(30), one).await {
                Ok(done) => done.expect("written"),
                Err(_) => break,
            }
            durable += 1;
        }
        supervise::blocking(move || drop(writer)).await;
        store.fail_after_calls(None);
        let other = Host::new(store.clone());
        Catalog::new(store.clone()).download(RUN, &other.layout).await.expect("downloaded");
        let found = committed(&other);
        assert!((durable..=durable + 1).contains(&found.len()), "{calls}: {durable}");
        assert_eq!(found, (0..10).map(record).take(found.len()).collect::<Vec<_>>());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn session_that_the_catalog_never_had_gives_way_to_that_of_another_host() {
    let store: Arc<dyn BlobStore> = Arc::new(MemoryStore::default());
    let (a, b) = (Host::new(Arc::clone(&store)), Host::new(Arc::clone(&store)));
    let mut writer = a.begin(1, None).await.expect("begun");
    commit(&mut writer, 0..3).await.expect("written");
    drop(writer);
    let catalog = Catalog::new(Arc::clone(&store));
    catalog.download(RUN, &b.layout).await.expect("downloaded");
    // Its process died after it had created the segment on its disk.
    let orphan =
        SessionStart { owner: "died early".to_owned(), ..testing::session_start(2, a.head()) };
    drop(JournalWriter::create(&a.layout, Timestamp::UNIX_EPOCH, orphan).expect("begun"));
    let mut owner = b.begin(2, b.head()).await.expect("begun");
    commit(&mut owner, 3..6).await.expect("written");
    drop(owner);
    a.mirror.synchronize(&a.layout).await.expect("synchronized");
    assert_eq!(a.read().0, b.read().0);
    // A download that was cut in the first record is completed.
    let segment = a.layout.segment(2);
    let whole = std::fs::read(&segment).expect("readable");
    std::fs::write(&segment, &whole[..30]).expect("writable");
    a.mirror.fetch(&a.layout).await.expect("fetched");
    assert_eq!(std::fs::read(&segment).expect("readable"), whole);
}

#[tokio::test(flavor = "multi_thread")]
async fn files_of_a_former_session_do_not_replace_those_of_a_later_one() {
    let store: Arc<dyn BlobStore> = Arc::new(MemoryStore::default());
    let (former, later) = (Host::new(Arc::clone(&store)), Host::new(Arc::clone(&store)));
    let catalog = Catalog::new(Arc::clone(&store));
    let paths = ["plan.json".to_owned()];
    for (host, text) in [(&former, "former"), (&later, "later")] {
        std::fs::write(host.layout.plan(), text).expect("written");
    }
    catalog.store_files(RUN, 1, &former.layout, &paths, OtherFiles::Keep).await.expect("stored");
    catalog.store_files(RUN, 2, &later.layout, &paths, OtherFiles::Keep).await.expect("stored");
    catalog.store_files(RUN, 1, &former.layout, &paths, OtherFiles::Drop).await.expect("stored");
    let reader = Host::new(store);
    catalog.download(RUN, &reader.layout).await.expect("downloaded");
    assert_eq!(std::fs::read_to_string(reader.layout.plan()).expect("there"), "later");
}

#[tokio::test(flavor = "multi_thread")]
async fn store_that_replaces_documents_is_refused_where_nothing_else_locks() {
    let store = Arc::new(FaultyStore::default());
    store.replace_documents();
    let host = Host::new(store.clone());
    let error = host.begin(1, None).await.expect_err("two processes could begin the session");
    assert!(matches!(error, JournalError::Mirror(MirrorError::NoConditionalWrites)), "{error:?}");
    assert!(!host.layout.segment(1).exists());

    let other = Host::new(store.clone());
    let options = MirrorOptions {
        job: "demo".to_owned(),
        is_only_lock: false,
        interruption: Interruption::never(),
    };
    let mirror = CatalogMirror::new(Catalog::new(store), other.layout.clone(), options);
    let locked = Host { mirror: Arc::new(mirror), ..other };
    let mut writer = locked.begin(1, None).await.expect("the server keeps others away");
    commit(&mut writer, 0..2).await.expect("written");
}

#[tokio::test(flavor = "multi_thread")]
async fn stop_request_ends_the_beginning_of_a_session_without_a_store() {
    let store = Arc::new(FaultyStore::default());
    store.set_down(true);
    let (stop, stops) = mpsc::channel(1);
    let (interruption, _stops, _observing) = Interruption::observe(stops);
    let host = Host::interrupted_by(store.clone(), interruption);
    let beginning = host.begin(1, None);
    tokio::pin!(beginning);
    supervise_until(async || {
        let polled = tokio::time::timeout(Duration::from_millis(1), beginning.as_mut()).await;
        assert!(polled.is_err(), "{polled:?}");
        store.count(StoreCall::PutDocument) > 1
    })
    .await;
    stop.send(StopLevel::Drain).await.expect("observed");
    let error = beginning.await.expect_err("stopped");
    assert!(matches!(error, JournalError::Mirror(MirrorError::Interrupted)), "{error:?}");
    assert!(!host.layout.segment(1).exists());
}
