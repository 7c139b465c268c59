//! Repairs of runs whose trials were run again, whichever records are lost.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::sync::Arc;

use bytes::Bytes;
use rollout_engine::core::{
    Core, CoreEffect, CoreSettings, JournalRecord, OfferedTry, RemoteTimeouts,
};
use rollout_engine::journal::{JournalWriter, SegmentIndex, replay};
use rollout_engine::testing::session_start;
use rollout_engine::{JournalExtent, RunState};
use rollout_protocol::blob::MediaType;
use rollout_protocol::digest::Digest;
use rollout_protocol::error::{ErrorClass, ErrorCode, ErrorType, RetryClass, TrialError};
use rollout_protocol::id::{ExecId, TryId};
use rollout_protocol::record::{ExecutionRecord, TrialRecord, Verdict};
use rollout_protocol::retry::RetryPolicy;
use rollout_protocol::spec::trial::TrialName;
use rollout_protocol::wire::marker::ResultMarker;
use rollout_protocol::wire::position::{Incarnation, ReportPosition};
use rollout_store::MemoryStore;
use rollout_worker::testing;

use super::*;

const RUN: RunId = RunId::from_bytes([1; 16]);
const FIRST: TryId = TryId::first(1);
const SECOND: TryId = TryId { epoch: 2, n: 2 };
const RETRY_WHILE_LIVE: TryId = TryId { epoch: 1, n: 2 };

fn trial(task: &str) -> TrialName {
    TrialName { agent: "a".into(), dataset: "d".into(), task: task.into(), attempt: 1 }
}

fn exec(n: u8) -> ExecId {
    ExecId::from_bytes([n; 16])
}

fn failed() -> Verdict {
    let (kind, class) = (ErrorType::AgentExecutionFailed, ErrorClass::Task);
    Verdict::failed(TrialError::new(
        kind,
        ErrorCode::NON_ZERO_EXIT,
        class,
        RetryClass::Permanent,
        "no",
    ))
}

fn record(task: &str, try_id: TryId, n: u8, verdict: Verdict) -> ExecutionRecord {
    let name = trial(task);
    let made = testing::trial_record(name.clone(), verdict, Timestamp::UNIX_EPOCH);
    let (item, exec) = (name.item(), exec(n));
    let spec = Digest::sha256(task.as_bytes());
    ExecutionRecord::Trial(Box::new(TrialRecord { run: RUN, item, try_id, exec, spec, ..made }))
}

fn opened(
    epoch: u32,
    former: Option<rollout_engine::core::PredecessorSegment>,
    reopened: Vec<ItemId>,
) -> SessionStart {
    SessionStart { run: RUN, reopened, ..session_start(epoch, former) }
}

/// A run directory, its store, and the position of every journal record.
struct RepairFixture {
    _directory: tempfile::TempDir,
    layout: RunLayout,
    store: Arc<MemoryStore>,
    /// Epoch, start and end offset of each record.
    places: Vec<(u32, usize, usize)>,
    segments: Vec<(PathBuf, Vec<u8>)>,
}

impl RepairFixture {
    /// `again` failed, was reopened in the second session and succeeded; `once` succeeded at once.
    /// A third session did nothing.
    async fn new() -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let layout = RunLayout::new(directory.path());
        let store = Arc::new(MemoryStore::default());
        let (places, segments) = (Vec::new(), Vec::new());
        let mut rig = Self { _directory: directory, layout, store, places, segments };
        let once = rig.records_of_try("once", FIRST, 1, Verdict::completed(1.0)).await;
        let first = rig.records_of_try("again", FIRST, 2, failed()).await;
        let again = rig.records_of_try("again", SECOND, 3, Verdict::completed(1.0)).await;
        rig.segment(1, Vec::new(), [once, first].concat()).await;
        rig.segment(2, vec![trial("again").item()], again).await;
        rig.segment(3, Vec::new(), Vec::new()).await;
        rig
    }

    /// The same, but `again` was reopened within the first session. The others did nothing.
    async fn retried_while_live() -> Self {
        let mut rig = Self::new().await;
        let once = rig.records_of_try("once", FIRST, 1, Verdict::completed(1.0)).await;
        let first = rig.records_of_try("again", FIRST, 2, failed()).await;
        let reopened = JournalRecord::Reopened { epoch: 1, items: vec![trial("again").item()] };
        let again = rig.records_of_try("again", RETRY_WHILE_LIVE, 3, Verdict::completed(1.0));
        let again = again.await;
        fs::remove_dir_all(rig.layout.journal()).expect("removable");
        (rig.places, rig.segments) = (Vec::new(), Vec::new());
        rig.segment(1, Vec::new(), [once, first, vec![reopened], again].concat()).await;
        rig.segment(2, Vec::new(), Vec::new()).await;
        rig.segment(3, Vec::new(), Vec::new()).await;
        rig
    }

    /// The offer and the report of a try whose record is in the store.
    async fn records_of_try(
        &self,
        task: &str,
        try_id: TryId,
        n: u8,
        verdict: Verdict,
    ) -> Vec<JournalRecord> {
        let record = record(task, try_id, n, verdict);
        let bytes = Bytes::from(serde_json::to_vec(&record).expect("text keys"));
        let blob = self.store.put_bytes(bytes, MediaType::Json).await.expect("stored");
        let report = record.result_report(blob.clone());
        let (run, item, exec) = (RUN, report.item, report.exec);
        let marker = ResultMarker { run, item, try_id, exec, record: blob.digest };
        let path = marker.to_string();
        self.store.put_document(&path, Bytes::from_static(b"{}")).await.expect("stored");
        let offered = OfferedTry { item, try_id, spec: report.spec };
        let position = ReportPosition::for_report(Incarnation(1), u64::from(n), &report);
        let report = Box::new(report);
        vec![
            JournalRecord::Offered { tries: vec![offered] },
            JournalRecord::Reported { position, report },
        ]
    }

    async fn segment(&mut self, epoch: u32, reopened: Vec<ItemId>, records: Vec<JournalRecord>) {
        let at = Timestamp::UNIX_EPOCH;
        let former = replay(&self.layout, &[], |_, _| {}).expect("whole").map(|read| read.head);
        let mut writer = JournalWriter::create(&self.layout, at, opened(epoch, former, reopened))
            .expect("a segment");
        let mut end = usize::try_from(writer.durable_prefix().bytes).expect("small");
        self.places.push((epoch, "rollout-journal 1\n".len(), end));
        for record in records {
            writer.record(at, &record);
            assert!(writer.submit());
            let start = end;
            end = usize::try_from(writer.durable().await.expect("written").prefix.bytes)
                .expect("small");
            self.places.push((epoch, start, end));
        }
        let path = self.layout.segment(epoch);
        drop(writer);
        let bytes = fs::read(&path).expect("readable");
        self.segments.push((path, bytes));
    }

    /// Restores everything except the records at the given positions.
    fn lose(&self, lost: &[usize]) {
        fs::remove_dir_all(self.layout.journal()).expect("removable");
        fs::create_dir_all(self.layout.journal()).expect("creatable");
        for (n, (path, whole)) in (1..).zip(&self.segments) {
            let mut bytes = whole.clone();
            for (_, from, to) in lost.iter().map(|at| self.places[*at]).filter(|p| p.0 == n) {
                bytes[from..to].fill(b'x');
            }
            fs::write(path, bytes).expect("writable");
        }
    }

    /// Writes a manifest of the last session; `reopened` is absent in those of earlier versions.
    fn manifest(&self, reopened: Option<Vec<u32>>) {
        let (epoch, durable_bytes) = (3, self.segments[2].1.len() as u64);
        let manifest = RunManifest {
            format: RUN_FORMAT,
            run: RUN,
            job: "job".to_owned(),
            created_at: Timestamp::UNIX_EPOCH,
            updated_at: Timestamp::UNIX_EPOCH,
            plan: Digest::sha256(b"plan"),
            epoch,
            state: RunState::Running,
            total: 2,
            settled: 2,
            in_flight: 0,
            journal: JournalExtent { epoch, durable_bytes },
            sealed: Vec::new(),
            unsealed: None,
            reopened,
            digest: None,
        };
        manifest.write(&self.layout).expect("writable");
    }

    async fn repair(&self, with_store: bool) -> RepairReport {
        let store: Arc<dyn BlobStore> = self.store.clone();
        let store = with_store.then_some(store);
        let layout = self.layout.clone();
        repair(RepairRequest { layout, store, dry_run: false }).await.expect("repairable")
    }

    /// The executions that settled the items with a result, and those that they superseded.
    fn settlements(&self) -> BTreeMap<&'static str, (ExecId, Vec<ExecId>)> {
        let settings = CoreSettings {
            run: RUN,
            epoch: 0,
            permits: 1,
            retry: RetryPolicy::default(),
            timeouts: RemoteTimeouts::default(),
        };
        let (mut core, mut settled) = (Core::new(settings), HashMap::new());
        let mut times: HashMap<ItemId, u32> = HashMap::new();
        let read = replay(&self.layout, &[], |at, record| {
            let reopened = match &record {
                JournalRecord::Opened(opened) => opened.reopened.clone(),
                JournalRecord::Reopened { items, .. } => items.clone(),
                _ => Vec::new(),
            };
            let mut effects = Vec::new();
            core.apply(at, record, &mut effects);
            for item in reopened {
                *times.entry(item).or_default() += 1;
                let former = settled.remove(&item).map(
                    |settled: Box<rollout_engine::core::ItemSettlement>| {
                        settled.superseded.into_iter().chain(settled.by).collect()
                    },
                );
                core.restore_executions(item, at, former.unwrap_or_default());
            }
            for effect in effects {
                if let CoreEffect::Settled(it) = effect {
                    assert!(settled.insert(it.item, it).is_none(), "item settled twice");
                }
            }
        });
        read.expect("a whole journal");
        let survey = SegmentIndex::read(&self.layout).expect("a whole journal");
        assert_eq!(
            survey.reopenings().expect("readable").times,
            times,
            "openings count the reopenings of items"
        );
        let named = ["once", "again"].into_iter().filter_map(|task| {
            let settled = settled.remove(&trial(task).item())?;
            let superseded = settled.superseded.iter().map(|execution| execution.exec).collect();
            Some((task, (settled.by.expect("by an execution").exec, superseded)))
        });
        named.collect()
    }
}

#[tokio::test]
async fn repair_after_any_record_loss_keeps_newest_result_or_reruns() {
    let rig = RepairFixture::new().await;
    let count = rig.places.len();
    assert_eq!(count, 9);
    for with_store in [true, false] {
        for reopened in [None, Some(vec![2])] {
            for (a, b) in (0..count).flat_map(|a| (a..count).map(move |b| (a, b))) {
                rig.lose(&[a, b]);
                rig.manifest(reopened.clone());
                rig.repair(with_store).await;
                let standing = rig.settlements();
                let case = format!("{a} {b} {with_store} {reopened:?}: {standing:?}");
                let by = |task| standing.get(task).map(|(exec, _)| *exec);
                assert!([None, Some(exec(1))].contains(&by("once")), "{case}");
                assert!([None, Some(exec(3))].contains(&by("again")), "{case}");
                if with_store && reopened.is_some() {
                    // Only the loss of the second opening leaves a doubt.
                    let doubt = [a, b].contains(&5);
                    assert_eq!(by("once").is_none(), doubt, "{case}");
                    assert_eq!(by("again"), Some(exec(3)), "{case}");
                }
            }
        }
    }
}

#[tokio::test]
async fn repair_after_any_record_loss_keeps_result_of_live_retry() {
    let rig = RepairFixture::retried_while_live().await;
    let count = rig.places.len();
    assert_eq!(count, 10);
    for with_store in [true, false] {
        for (a, b) in (0..count).flat_map(|a| (a..count).map(move |b| (a, b))) {
            rig.lose(&[a, b]);
            rig.manifest(Some(vec![1]));
            rig.repair(with_store).await;
            let standing = rig.settlements();
            let case = format!("{a} {b} {with_store}: {standing:?}");
            let by = |task| standing.get(task).map(|(exec, _)| *exec);
            assert!([None, Some(exec(1))].contains(&by("once")), "{case}");
            // Without the reopening and the offer after it, nothing shows that there was one.
            if (a, b) != (5, 6) {
                assert!([None, Some(exec(3))].contains(&by("again")), "{case}");
                assert!(!with_store || by("again").is_some(), "{case}");
            }
        }
    }
}

#[tokio::test]
async fn repair_of_lost_reopening_keeps_old_result_as_superseded() {
    let rig = RepairFixture::new().await;
    // The second opening and the offer after it.
    rig.lose(&[5, 6]);
    rig.manifest(Some(vec![2]));
    let repaired = rig.repair(true).await;
    assert_eq!(rig.settlements()["again"], (exec(3), vec![exec(2)]));
    assert_eq!(repaired.doubtful, [trial("once").item().to_string()]);
    assert_eq!((repaired.settled, repaired.pending.len()), (1, 0));
}

#[tokio::test]
async fn journal_is_repaired_although_the_rest_of_a_search_cannot_be_read() {
    let mut rig = RepairFixture::new().await;
    let root = rig.layout.root().to_owned();
    rig.layout = RunLayout::for_search(&root);
    fs::create_dir(root.join("node_ideas")).expect("made");
    // Its manifest cannot be read.
    fs::create_dir(root.join("manifest.json")).expect("made");
    rig.lose(&[7]);
    let repaired = rig.repair(true).await;
    assert!(matches!(repaired.search_failure, Some(RepairError::Search(_))), "{repaired:?}");
    assert!(!repaired.is_clean() && repaired.copies.is_some());
    assert!(rig.settlements().contains_key("once"));
}

#[tokio::test]
async fn repair_restores_result_before_reopening_as_superseded() {
    let rig = RepairFixture::new().await;
    // Both results of the trial.
    rig.lose(&[4, 7]);
    rig.manifest(Some(vec![2]));
    let repaired = rig.repair(true).await;
    assert_eq!(rig.settlements()["again"], (exec(3), vec![exec(2)]));
    assert_eq!(repaired.restored, [(trial("again").item().to_string(), "the blob store")]);
    // Without the store the trial is pending, and its former result is not restored.
    rig.lose(&[7]);
    rig.manifest(Some(vec![2]));
    let repaired = rig.repair(false).await;
    assert_eq!(rig.settlements().get("again"), None);
    assert_eq!(repaired.pending, [trial("again").item().to_string()]);
}

#[tokio::test]
async fn repair_of_lost_opening_without_reopening_keeps_results() {
    let rig = RepairFixture::new().await;
    for (reopened, doubtful) in [(Some(vec![2]), 0), (None, 2)] {
        // The opening of the third session, which reopened nothing.
        rig.lose(&[8]);
        rig.manifest(reopened);
        let repaired = rig.repair(true).await;
        assert_eq!(repaired.doubtful.len(), doubtful);
        assert_eq!(repaired.settled, 2 - doubtful);
        assert_eq!(rig.settlements().len(), 2 - doubtful);
    }
}

#[tokio::test]
async fn repair_of_repaired_journal_damaged_again_succeeds() {
    let rig = RepairFixture::new().await;
    rig.lose(&[1]);
    rig.manifest(Some(vec![2]));
    rig.repair(true).await;
    assert_eq!(rig.settlements()["again"], (exec(3), vec![exec(2)]));
    let manifest = RunManifest::read(&rig.layout).expect("whole").expect("a manifest");
    let path = rig.layout.segment(manifest.epoch);
    let whole = fs::read(&path).expect("readable");
    for at in ("rollout-journal 1\n".len()..whole.len() - 30).step_by(67) {
        let mut bytes = whole.clone();
        bytes[at..at + 30].iter_mut().for_each(|byte| *byte ^= 0x55);
        fs::remove_dir_all(rig.layout.journal()).expect("removable");
        fs::create_dir_all(rig.layout.journal()).expect("creatable");
        fs::write(&path, bytes).expect("writable");
        manifest.write(&rig.layout).expect("writable");
        rig.repair(true).await;
        let standing = rig.settlements();
        let by = |task| standing.get(task).map(|(exec, _)| *exec);
        assert!([None, Some(exec(1))].contains(&by("once")), "changed at {at}");
        assert!([None, Some(exec(3))].contains(&by("again")), "changed at {at}");
    }
}

#[tokio::test]
async fn directory_without_journal_is_refused_with_reason() {
    let temp = tempfile::tempdir().expect("a directory");
    let refusal = async |path: PathBuf| {
        let layout = RunLayout::new(path);
        let request = RepairRequest { layout, store: None, dry_run: true };
        repair(request).await.expect_err("no run").to_string()
    };
    for path in [temp.path().to_owned(), temp.path().join("none")] {
        let refused = refusal(path).await;
        assert!(
            refused.ends_with(" is not a run directory: manifest.json is missing"),
            "{refused}"
        );
    }
    std::fs::write(temp.path().join("manifest.json"), "{}").expect("writable");
    let refused = refusal(temp.path().to_owned()).await;
    assert!(refused.ends_with(" is not a run directory: journal is missing"), "{refused}");
}
