//! Collections and verifications of a store in memory, with run directories made by hand.

use std::collections::BTreeSet;
use std::fs;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use rollout_base::supervise;
use rollout_engine::Interruption;
use rollout_engine::catalog::{Catalog, CatalogMirror, MirrorOptions};
use rollout_engine::core::{AnnouncedChunk, HexDigest, JournalRecord, SessionStart};
use rollout_engine::journal::{JournalWriter, RunLayout};
use rollout_engine::testing::session_start;
use rollout_protocol::Timestamp;
use rollout_protocol::blob::{BlobRef, MediaType};
use rollout_protocol::digest::Digest;
use rollout_protocol::id::{ExecId, ItemId, TryId};
use rollout_protocol::limits::BLOB_GRACE;
use rollout_protocol::record::{LostReason, Verdict};
use rollout_protocol::wire::position::{Incarnation, ReportPosition};
use rollout_protocol::wire::report::{Report, ReportBody, ReportKind};
use rollout_store::testing::{FaultyStore, StoreCall, StoreFault};
use rollout_store::{BlobStore, MemoryStore, StoreUrl};
use serde_json::json;
use tempfile::TempDir;

use super::*;
use crate::results::files::store::write_reference;
use crate::results::testing;

const RUN: RunId = RunId::from_bytes([1; 16]);
const OTHER: RunId = RunId::from_bytes([2; 16]);

/// A store and a directory for runs.
struct Fixture {
    store: MemoryStore,
    jobs: TempDir,
}

impl Fixture {
    fn new() -> Self {
        Self { store: MemoryStore::default(), jobs: tempfile::tempdir().expect("a directory") }
    }

    /// Stores content that is old enough to be removed.
    async fn put(&self, text: &str) -> BlobRef {
        let bytes = Bytes::copy_from_slice(text.as_bytes());
        let blob = self.store.put_bytes(bytes, MediaType::Json).await.expect("stored");
        self.store.set_modified(&blob.digest, SystemTime::now() - 2 * BLOB_GRACE);
        blob
    }

    /// A registered run whose records name these blobs.
    async fn run(&self, run: RunId, name: &str, named: &[&BlobRef]) -> PathBuf {
        let directory = self.jobs.path().canonicalize().expect("there").join(name);
        for part in ["journal", "records"] {
            fs::create_dir_all(directory.join(part)).expect("made");
        }
        let lines: Vec<_> = named.iter().map(|blob| json!({"record": blob}).to_string()).collect();
        fs::write(directory.join("records/000001.jsonl"), lines.join("\n")).expect("written");
        let store: Arc<dyn BlobStore> = Arc::new(self.store.clone());
        let registered = write_reference(&directory, run, &store, &StoreUrl::Memory).await;
        registered.expect("registered");
        directory
    }

    fn request(&self) -> CollectionRequest {
        CollectionRequest {
            store: Arc::new(self.store.clone()),
            url: StoreUrl::Memory,
            grace: BLOB_GRACE,
            force: false,
            forget: Vec::new(),
            remove_store: true,
            dry_run: false,
        }
    }

    async fn digests(&self) -> BTreeSet<Digest> {
        let mut all = BTreeSet::new();
        for byte in 0..=u8::MAX {
            let listed = self.store.list_blobs(byte).await.expect("listed");
            all.extend(listed.into_iter().map(|blob| blob.digest));
        }
        all
    }
}

fn set<const N: usize>(blobs: [&BlobRef; N]) -> BTreeSet<Digest> {
    blobs.map(|blob| blob.digest).into()
}

#[tokio::test]
async fn collection_removes_what_no_run_names_directly_or_through_a_document() {
    let fixture = Fixture::new();
    let output = fixture.put("output").await;
    let record = fixture.put(&json!({"output": &output}).to_string()).await;
    let (unneeded, young) = (fixture.put("unneeded").await, fixture.put("young").await);
    fixture.store.set_modified(&young.digest, SystemTime::now());
    fixture.run(RUN, "run", &[&record]).await;

    let dry = CollectionRequest { dry_run: true, ..fixture.request() };
    let expected = collect(&dry).await.expect("collected");
    assert_eq!(fixture.digests().await.len(), 4, "nothing was removed");
    let report = collect(&fixture.request()).await.expect("collected");
    assert_eq!(report, expected);
    assert_eq!(fixture.digests().await, set([&output, &record, &young]));
    assert_eq!((report.kept_runs, report.needed.blobs, report.young.blobs), (1, 2, 1));
    let removed = BlobCount { blobs: 1, bytes: unneeded.size_bytes };
    assert_eq!((report.removed, report.store_removed), (removed, false));
}

#[tokio::test]
async fn removed_run_has_to_be_confirmed_and_takes_its_documents_along() {
    let fixture = Fixture::new();
    let (shared, own) = (fixture.put("shared").await, fixture.put("own").await);
    let directory = fixture.run(RUN, "run", &[&shared, &own]).await;
    fixture.run(OTHER, "other", &[&shared]).await;
    for run in [RUN, OTHER] {
        let path = format!("bases/{run}/a");
        assert!(fixture.store.put_document(&path, "sha256:1".into()).await.expect("stored"));
    }
    fs::remove_dir_all(&directory).expect("removed");
    let refused = collect(&fixture.request()).await.expect_err("a directory is missing");
    let BlobsError::Missing(missing) = refused else { panic!("{refused}") };
    assert_eq!((missing[0].run, missing[0].registered[0].directory.clone()), (RUN, directory));
    assert_eq!(fixture.digests().await, set([&shared, &own]));

    let forced = CollectionRequest { force: true, ..fixture.request() };
    let report = collect(&forced).await.expect("collected");
    assert_eq!(report.removed_runs, [RUN]);
    assert_eq!(fixture.digests().await, set([&shared]));
    let documents = fixture.store.document_paths();
    assert!(documents.iter().all(|path| path.contains(&OTHER.to_string())), "{documents:?}");
    assert_eq!(documents.len(), 2);
    assert_eq!(collect(&fixture.request()).await.expect("collected").removed_runs, []);
}

#[tokio::test]
async fn run_that_is_forgotten_with_its_directory_needs_no_confirmation() {
    let fixture = Fixture::new();
    let (own, kept) = (fixture.put("own").await, fixture.put("kept").await);
    let directory = fixture.run(RUN, "run", &[&own]).await;
    fixture.run(OTHER, "other", &[&kept]).await;
    let path = format!("results/{RUN}/marker");
    assert!(fixture.store.put_document(&path, "{}".into()).await.expect("stored"));
    forget_run(&fixture.store, RUN, &directory).await.expect("forgotten");
    fs::remove_dir_all(&directory).expect("removed");
    let report = collect(&fixture.request()).await.expect("no directory is missing");
    assert_eq!((report.kept_runs, report.removed.blobs), (1, 1));
    assert_eq!(fixture.digests().await, set([&kept]));
}

#[tokio::test]
async fn run_with_another_directory_keeps_its_documents_when_one_is_forgotten() {
    let fixture = Fixture::new();
    let blob = fixture.put("result").await;
    let former = fixture.run(RUN, "former", &[&blob]).await;
    fixture.run(RUN, "present", &[&blob]).await;
    let path = format!("results/{RUN}/marker");
    assert!(fixture.store.put_document(&path, "{}".into()).await.expect("stored"));
    forget_run(&fixture.store, RUN, &former).await.expect("forgotten");
    let documents = fixture.store.document_paths();
    assert!(documents.contains(&path) && documents.len() == 2, "{documents:?}");
    fs::remove_dir_all(former).expect("removed");
    assert_eq!(collect(&fixture.request()).await.expect("collected").kept_runs, 1);
    assert_eq!(fixture.digests().await, set([&blob]));
}

#[tokio::test]
async fn store_without_runs_is_removed_only_if_asked_for() {
    let fixture = Fixture::new();
    fixture.put("unneeded").await;
    let request = CollectionRequest { remove_store: false, ..fixture.request() };
    let report = collect(&request).await.expect("collected");
    assert_eq!((report.removed.blobs, report.store_removed), (1, false));
    assert!(fixture.store.put_document("a/b", "".into()).await.expect("the store is there"));
}

#[tokio::test]
async fn run_of_other_host_refuses_collection_until_it_is_forgotten() {
    let fixture = Fixture::new();
    let (remote, kept) = (fixture.put("remote").await, fixture.put("kept").await);
    fixture.run(OTHER, "other", &[&kept]).await;
    let document = json!({"host": "far/1a", "path": "/jobs/run"}).to_string();
    let path = format!("runs/{RUN}/0123");
    assert!(fixture.store.put_document(&path, document.into()).await.expect("stored"));
    let forced = CollectionRequest { force: true, ..fixture.request() };
    let refused = collect(&forced).await.expect_err("its needs are unknown");
    let BlobsError::OnOtherHosts(runs) = refused else { panic!("{refused}") };
    assert_eq!(runs[0].registered[0].to_string(), format!("/jobs/run (run {RUN} on far)"));
    assert_eq!(fixture.digests().await, set([&remote, &kept]));

    let unknown = RunId::from_bytes([3; 16]);
    let wrong = CollectionRequest { forget: vec![unknown], ..fixture.request() };
    assert!(matches!(collect(&wrong).await, Err(BlobsError::NotAbsent { .. })));
    let forgotten = CollectionRequest { forget: vec![RUN], ..fixture.request() };
    assert_eq!(collect(&forgotten).await.expect("collected").removed_runs, [RUN]);
    assert_eq!(fixture.digests().await, set([&kept]));
}

#[tokio::test]
async fn documents_without_registered_run_refuse_collection() {
    let fixture = Fixture::new();
    let blob = fixture.put("result").await;
    let path = format!("results/{RUN}/marker");
    assert!(fixture.store.put_document(&path, "{}".into()).await.expect("stored"));
    // Its directory may be on another host.
    for force in [false, true] {
        let refused = collect(&CollectionRequest { force, ..fixture.request() }).await;
        assert!(matches!(refused, Err(BlobsError::OnOtherHosts(_))), "{refused:?}");
        assert_eq!(fixture.digests().await, set([&blob]));
    }
    let forgotten = CollectionRequest { forget: vec![RUN], ..fixture.request() };
    assert!(collect(&forgotten).await.expect("collected").store_removed);
    assert!(fixture.store.document_paths().is_empty());
}

#[tokio::test]
async fn damaged_document_refuses_collection() {
    let fixture = Fixture::new();
    let log = fixture.put("log").await;
    let record = fixture.put(&json!({ "log": log }).to_string()).await;
    fixture.run(RUN, "run", &[&record]).await;
    fixture.store.damage(&record.digest, "{}".into());
    let refused = collect(&fixture.request()).await;
    assert!(matches!(refused, Err(BlobsError::Store(_))), "{refused:?}");
    assert!(fixture.digests().await.contains(&log.digest), "it may be named by the damaged record");
}

#[tokio::test]
async fn moved_run_that_registered_again_is_kept() {
    let fixture = Fixture::new();
    let blob = fixture.put("result").await;
    let former = fixture.run(RUN, "former", &[&blob]).await;
    fixture.run(RUN, "present", &[&blob]).await;
    fs::remove_dir_all(former).expect("removed");
    let forced = CollectionRequest { force: true, ..fixture.request() };
    let report = collect(&forced).await.expect("collected");
    assert_eq!((report.kept_runs, report.removed_runs), (1, Vec::new()));
    assert_eq!(fixture.digests().await, set([&blob]));
}

#[tokio::test]
async fn run_that_cannot_be_read_stops_collection() {
    let fixture = Fixture::new();
    fixture.put("result").await;
    let directory = fixture.run(RUN, "run", &[]).await;
    fs::write(directory.join("plan.json"), "{").expect("written");
    let refused = collect(&fixture.request()).await;
    assert!(matches!(refused, Err(BlobsError::Plan(_))), "{refused:?}");
    assert_eq!(fixture.digests().await.len(), 1);
}

#[tokio::test]
async fn document_that_cannot_be_read_stops_collection() {
    let fixture = Fixture::new();
    let output = fixture.put("output").await;
    let record = fixture.put(&json!({"output": &output}).to_string()).await;
    fixture.run(RUN, "run", &[&record]).await;
    let faulty = FaultyStore::new(Arc::new(fixture.store.clone()));
    faulty.inject(StoreCall::GetBytes, 1, StoreFault::Fail);
    let request = CollectionRequest { store: Arc::new(faulty), ..fixture.request() };
    let refused = collect(&request).await;
    assert!(matches!(refused, Err(BlobsError::Store(_))), "{refused:?}");
    assert_eq!(fixture.digests().await, set([&output, &record]));
    assert_eq!(collect(&request).await.expect("collected").needed.blobs, 2);
}

/// Its results may wait on a server, named by reports that no coordinator has read.
#[tokio::test]
async fn open_run_with_remote_workers_keeps_what_was_stored_since_its_session() {
    let day = Duration::from_secs(24 * 60 * 60);
    let fixture = Fixture::new();
    let (before, since) = (fixture.put("before").await, fixture.put("since").await);
    let started = SystemTime::now() - 10 * day;
    fixture.store.set_modified(&before.digest, started - day);
    fixture.store.set_modified(&since.digest, started + day);
    let directory = fixture.run(RUN, "run", &[]).await;
    let layout = RunLayout::new(&directory);
    let at = Timestamp::try_from(started).expect("a time");
    for (epoch, pool) in [(1, Some("pool")), (2, None)] {
        drop(JournalWriter::create(&layout, at, session(epoch, pool)).expect("a segment"));
        let report = collect(&fixture.request()).await.expect("collected");
        let expected = if pool.is_some() { set([&since]) } else { set([]) };
        assert_eq!(fixture.digests().await, expected, "{report:?}");
        fs::remove_file(layout.segment(epoch)).expect("removable");
    }
}

/// A chunk of events that an execution announced.
fn announced(exec: u8, blob: &BlobRef) -> JournalRecord {
    let chunk = AnnouncedChunk {
        item: ItemId::from_bytes([1; 16]),
        try_id: TryId::first(1),
        exec: ExecId::from_bytes([exec; 16]),
        worker: "w".parse().expect("a token"),
        log: 1,
        step: 0,
        offset: 0,
        size_bytes: blob.size_bytes,
        chunk_hex: HexDigest(blob.digest),
        last_seq: None,
        total: 0,
        violations: 0,
    };
    let position = ReportPosition {
        incarnation: Incarnation(1),
        sequence: 1,
        anchor: chunk.exec,
        said: ReportKind::Events,
        number: 1,
    };
    JournalRecord::EventChunk { position, chunk: Box::new(chunk) }
}

/// The report of an execution with a record.
fn ended(exec: u8, record: &BlobRef) -> JournalRecord {
    let record = Some(record.clone());
    let body = ReportBody::Lost {
        reason: LostReason::Stopped,
        phase: None,
        record,
        cost: 0.0,
        model_use: Default::default(),
    };
    let report = Report {
        run: RUN,
        item: ItemId::from_bytes([1; 16]),
        try_id: TryId::first(1),
        exec: ExecId::from_bytes([exec; 16]),
        spec: Digest::sha256(b"spec"),
        worker: "w".parse().expect("a token"),
        body,
    };
    let position = ReportPosition::for_report(Incarnation(1), 2, &report);
    JournalRecord::Reported { position, report: Box::new(report) }
}

#[tokio::test]
async fn chunks_of_events_are_kept_until_a_record_has_their_log() {
    let fixture = Fixture::new();
    let [of_dead, of_ended, shared, log] = [
        fixture.put("dead").await,
        fixture.put("ended").await,
        fixture.put("both").await,
        fixture.put("log").await,
    ];
    let events = json!({ "log": log, "total": 0 });
    let harness = json!({
        "integration_level": "cli_events", "outcome": "success", "output_source": "file",
        "events": events,
    });
    let settlement =
        testing::settlement(testing::trial("agent", "a", 1), 1, Verdict::completed(1.0));
    let mut record = testing::record(&settlement);
    record.harness = Some(serde_json::from_value(harness).expect("a result of a harness"));
    let with_log = fixture.put(&serde_json::to_string(&record).expect("JSON")).await;
    record.harness = None;
    let without_log = fixture.put(&serde_json::to_string(&record).expect("JSON")).await;

    let directory = fixture.run(RUN, "run", &[]).await;
    let layout = RunLayout::new(&directory);
    let at = Timestamp::try_from(SystemTime::now()).expect("a time");
    let mut writer = JournalWriter::create(&layout, at, session(1, None)).expect("a segment");
    for record in [
        announced(1, &of_ended),
        announced(1, &shared),
        announced(2, &of_dead),
        announced(2, &shared),
        ended(1, &without_log),
        ended(1, &with_log),
    ] {
        writer.record(at, &record);
    }
    assert!(writer.submit());
    let _durable = writer.durable().await.expect("synced");
    let report = collect(&fixture.request()).await.expect("collected");
    let kept = set([&of_dead, &shared, &log, &with_log, &without_log]);
    assert_eq!(fixture.digests().await, kept, "{report:?}");
    let marks = marks_of_run(&fixture.store, &directory).await.expect("read");
    assert!(!marks.contains(&of_ended.digest), "it is not missing");
}

fn session(epoch: u32, pool: Option<&str>) -> SessionStart {
    SessionStart { run: RUN, pool: pool.map(str::to_owned), ..session_start(epoch, None) }
}

#[tokio::test]
async fn verification_names_damaged_and_missing_blobs() {
    let fixture = Fixture::new();
    let (good, damaged) = (fixture.put("good").await, fixture.put("damaged").await);
    let absent = BlobRef::for_bytes(b"absent", MediaType::Text);
    let store: Arc<dyn BlobStore> = Arc::new(fixture.store.clone());
    let directory = fixture.run(RUN, "run", &[&good, &damaged, &absent]).await;
    let marks = marks_of_run(&*store, &directory).await.expect("read").into_sorted();
    assert_eq!(marks.len(), 3);
    fixture.store.damage(&damaged.digest, "dam".into());
    let all = verify_all(&store).await.expect("verified");
    let problem = BlobProblem::Damaged {
        digest: damaged.digest,
        found: Digest::sha256(b"dam"),
        size_bytes: Some(3),
    };
    assert_eq!((all.blobs, all.bytes, all.problems), (2, 7, vec![problem]));
    let of_run = verify_digests(&store, marks).await.expect("verified");
    let missing: BTreeSet<_> = of_run.problems.iter().map(|each| *each.digest()).collect();
    assert_eq!(missing, set([&damaged, &absent]), "the store in memory dropped the damaged one");
    assert_eq!((of_run.blobs, of_run.bytes), (1, 4));
}

#[tokio::test(flavor = "multi_thread")]
async fn session_that_never_began_is_no_obstacle_for_long() {
    let fixture = Fixture::new();
    let store: Arc<dyn BlobStore> = Arc::new(fixture.store.clone());
    let now = Timestamp::now();
    let long_ago = now.checked_sub(2 * BLOB_GRACE).expect("in range");
    for (run, at) in [(RUN, long_ago), (OTHER, now)] {
        let directory = fixture.jobs.path().join(run.to_string());
        fs::create_dir(&directory).expect("created");
        let layout = RunLayout::new(&directory);
        let options = MirrorOptions {
            job: "demo".to_owned(),
            is_only_lock: false,
            interruption: Interruption::never(),
        };
        let mirror = CatalogMirror::new(Catalog::new(Arc::clone(&store)), layout.clone(), options);
        let start = SessionStart { run, ..session_start(1, None) };
        let began = supervise::blocking(move || {
            JournalWriter::create_mirrored(&layout, at, start, Some(Arc::new(mirror))).map(drop)
        });
        began.await.expect("begun");
        fs::remove_dir_all(directory).expect("removed");
    }
    let request = CollectionRequest { force: true, ..fixture.request() };
    let refused = collect(&request).await.expect_err("the new one may go on");
    let BlobsError::OnOtherHosts(others) = refused else { panic!("{refused}") };
    assert_eq!(others.iter().map(|absent| absent.run).collect::<Vec<_>>(), [OTHER]);
    let request = CollectionRequest { forget: vec![OTHER], ..request };
    let report = collect(&request).await.expect("collected");
    assert_eq!(report.removed_runs.iter().collect::<BTreeSet<_>>(), [RUN, OTHER].iter().collect());
    assert_eq!(store.list_documents("catalog/").await.expect("listed"), [""; 0]);
}
