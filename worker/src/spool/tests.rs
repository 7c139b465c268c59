//! Worker deaths at every step between the end of an execution and the acknowledgement of its
//! report.

use std::sync::Mutex;
use std::time::Duration;

use rollout_environment::{EnvironmentLabels, Owner};
use rollout_queue::traits::{ConnectionStatus, QueueError, WorkSource};
use rollout_store::get_json;
use rollout_store::testing::FaultyStore;

use async_trait::async_trait;
use futures_util::FutureExt as _;
use rollout_protocol::blob::MediaType;
use rollout_protocol::id::{RunId, TryId, WorkerId};
use rollout_protocol::record::{LostReason, TrialRecord};
use rollout_protocol::spec::agent::AgentSpec;
use rollout_protocol::spec::settings::TrialSettings;
use rollout_protocol::spec::task::TaskSpec;
use rollout_protocol::spec::trial::TrialRef;
use rollout_protocol::wire::claim::{Claim, ClaimAnswer};
use rollout_protocol::wire::control::ControlMessage;
use rollout_protocol::wire::delivery::{Delivery, FreeCapacity, MessageToken, PublishError};
use rollout_protocol::wire::heartbeat::Heartbeat;
use rollout_protocol::wire::offer::OfferedWork;
use rollout_protocol::wire::report::{Report, ReportBody};
use std::sync::Arc;
use tempfile::TempDir;
use tokio::sync::{broadcast, watch};

use super::persist::persist_plan;
use super::*;
use crate::executor::{
    ArchiveCounts, DedicatedSlot, ExecutionContext, FileRole, NoEventLog, PhaseSink, RecordFile,
    ScratchWork,
};
use crate::testing::{SampleRun, passed_trial};
use crate::work::trial::TrialContext;

const REASON: LostReason = LostReason::WorkerDied;

/// A queue that only takes reports.
#[derive(Debug, Default)]
struct RecordingSource {
    reports: Mutex<Vec<Report>>,
    full: Mutex<usize>,
}

impl RecordingSource {
    fn recorded_reports(&self) -> Vec<Report> {
        self.reports.lock().expect("not poisoned").clone()
    }
}

#[async_trait]
impl WorkSource for RecordingSource {
    async fn pull(&self, _: FreeCapacity, _: Duration) -> Result<Vec<Delivery>, QueueError> {
        unreachable!("recovery pulls no work")
    }
    async fn progress(&self, _: &[MessageToken]) -> Result<(), QueueError> {
        unreachable!("recovery runs nothing")
    }
    async fn ack(&self, _: &[MessageToken]) -> Result<(), QueueError> {
        unreachable!("recovery holds no delivery")
    }
    async fn nak(&self, _: &[MessageToken]) -> Result<(), QueueError> {
        unreachable!("recovery holds no delivery")
    }
    async fn claim(&self, _: Claim) -> Result<ClaimAnswer, QueueError> {
        unreachable!("recovery runs nothing")
    }
    async fn is_contested(&self, _: &Claim) -> Result<bool, QueueError> {
        unreachable!("recovery runs nothing")
    }
    async fn report(
        &self,
        reports: Vec<Report>,
    ) -> Result<Vec<Result<(), PublishError>>, QueueError> {
        let mut full = self.full.lock().expect("not poisoned");
        let answers = reports.into_iter().map(|report| {
            if *full > 0 {
                *full -= 1;
                return Err(PublishError::Full);
            }
            self.reports.lock().expect("not poisoned").push(report);
            Ok(())
        });
        Ok(answers.collect())
    }
    async fn heartbeat(&self, _: Heartbeat) -> Result<(), QueueError> {
        unreachable!("recovery sends no heartbeats")
    }
    fn connection_status(&self) -> watch::Receiver<ConnectionStatus> {
        unreachable!("recovery does not watch the connection")
    }

    fn controls(&self) -> broadcast::Receiver<ControlMessage> {
        unreachable!("recovery receives no controls")
    }
}

#[derive(Debug)]
struct NoopPhaseSink;

impl PhaseSink for NoopPhaseSink {
    fn entered(&self, _: rollout_protocol::phase::Phase) {}
}

struct SpoolFixture {
    dir: TempDir,
    store: Arc<FaultyStore>,
    queue: Arc<RecordingSource>,
    context: TrialContext,
}

impl SpoolFixture {
    /// An execution with a scratch directory, two captured files and some litter.
    async fn new() -> Self {
        let dir = TempDir::new().expect("a directory");
        std::fs::create_dir(dir.path().join("scratch")).expect("created");
        let store = Arc::new(FaultyStore::default());
        let offer = SampleRun::store(store.inner()).offer(3, TryId::first(1));
        let exec = ExecId::from_bytes([7; 16]);
        let worker: WorkerId = "dead".parse().expect("a token");
        let OfferedWork::Trial(trial) = offer.work else { unreachable!("samples are trials") };
        let TrialRef { settings, agent, task, attempt } = trial;
        let owner = Owner::current(dir.path().to_owned());
        let (run, item, try_id) = (offer.run, offer.item, offer.try_id);
        let execution = ExecutionContext {
            labels: EnvironmentLabels { run, item, try_id, exec, worker, owner },
            spec: offer.spec,
            scratch: Spool::new(dir.path().to_owned()).scratch(exec),
            scratch_work: ScratchWork::default(),
            stop: watch::channel(None).1,
            phases: Arc::new(NoopPhaseSink),
            slot: Arc::new(DedicatedSlot),
            max_park: Duration::ZERO,
            has_model_leases: false,
            controls: Arc::default(),
            event_log: Arc::new(NoEventLog),
        };
        let context = TrialContext {
            execution,
            settings: Arc::new(
                get_json::<TrialSettings>(&*store, &settings).await.expect("stored"),
            ),
            agent: Arc::new(get_json::<AgentSpec>(&*store, &agent).await.expect("stored")),
            task: Arc::new(get_json::<TaskSpec>(&*store, &task).await.expect("stored")),
            attempt,
            rate_limiter: None,
        };
        context.execution.create_scratch().await.expect("created");
        for name in ["a.txt", "logs.tar", "litter"] {
            std::fs::write(context.execution.scratch.join(name), format!("content of {name}"))
                .expect("written");
        }
        Self { dir, store, queue: Arc::default(), context }
    }

    fn finished(&self) -> Finished {
        let scratch = &self.context.execution.scratch;
        let mut finished = passed_trial(&self.context);
        let role = FileRole::Output { path: "a.txt".into(), total_bytes: 16, truncated: false };
        let output = RecordFile {
            file: scratch.join("a.txt"),
            media_type: MediaType::Text,
            role,
            digest: None,
        };
        let role = FileRole::Logs(ArchiveCounts { entries: 1, skipped: 2, truncated: false });
        let logs = RecordFile {
            file: scratch.join("logs.tar"),
            media_type: MediaType::Tar,
            role,
            digest: None,
        };
        finished.files = vec![output, logs];
        finished.into_any_kind()
    }

    async fn recover(&self) -> RecoverySummary {
        let (store, queue) = (self.store.clone(), self.queue.clone());
        recover(self.dir.path(), None, REASON, store, queue).await.expect("recovered")
    }

    fn is_clean(&self) -> bool {
        ["spool", "scratch"].iter().all(|name| {
            fs::read_dir(self.dir.path().join(name)).map_or(0, |entries| entries.count()) == 0
        })
    }

    /// Asserts that the report holds the whole result.
    async fn assert_published(&self, report: &Report) {
        let ReportBody::Result(body) = &report.body else { panic!("{report:?}") };
        assert_eq!(
            (report.exec, &report.worker),
            (self.context.execution.labels.exec, &self.context.execution.labels.worker)
        );
        assert_eq!(body.verdict.reward, Some(1.0));
        let blob = body.record.clone().expect("a record");
        let record: TrialRecord = get_json(&*self.store, &blob.digest).await.expect("stored");
        assert_eq!(self.store.inner().text(&record.outputs[0].blob), "content of a.txt");
        let logs = record.logs.expect("logs");
        assert_eq!(
            (self.store.inner().text(&logs.archive), logs.skipped),
            ("content of logs.tar".into(), 2)
        );
        assert_eq!(record.secondary_errors, []);
        assert_eq!(self.store.inner().document_paths().len(), 1, "a marker");
    }

    /// Asserts that the report holds the result without the output, which disappeared.
    async fn assert_published_without_output(&self, report: &Report) {
        let ReportBody::Result(body) = &report.body else { panic!("{report:?}") };
        assert_eq!(body.verdict.reward, Some(1.0));
        let blob = body.record.clone().expect("a record");
        let record: TrialRecord = get_json(&*self.store, &blob.digest).await.expect("stored");
        assert_eq!((record.outputs.len(), record.secondary_errors.len()), (0, 1));
        let logs = record.logs.expect("logs");
        assert_eq!(self.store.inner().text(&logs.archive), "content of logs.tar");
    }
}

#[tokio::test]
async fn spool_write_killed_at_any_step_loses_no_finished_record() {
    let steps = {
        let scene = SpoolFixture::new().await;
        persist_plan(scene.dir.path(), scene.finished(), true).expect("planned").1.len()
    };
    let (mut published, mut lost) = (0, 0);
    for done in 0..=steps {
        let scene = SpoolFixture::new().await;
        let (_, planned) = persist_plan(scene.dir.path(), scene.finished(), true).expect("planned");
        planned.iter().take(done).for_each(|step| step.perform().expect("performed"));
        let recovered = scene.recover().await;
        let heard = scene.queue.recorded_reports();
        assert_eq!((heard.len(), recovered.skipped), (1, 0), "after {done} steps");
        if recovered.published == 1 {
            scene.assert_published(&heard[0]).await;
            published += 1;
        } else {
            assert_eq!(published, 0, "what was finished once stays finished");
            assert_eq!(
                heard[0].body,
                ReportBody::Lost {
                    reason: REASON,
                    phase: None,
                    record: None,
                    cost: 0.0,
                    model_use: Default::default()
                }
            );
            lost += 1;
        }
        assert!(scene.is_clean(), "after {done} steps");
        assert_eq!(scene.recover().await, RecoverySummary::default());
    }
    assert!(lost > 0 && published >= 3, "{lost} lost, {published} published");
}

#[tokio::test]
async fn spool_write_failed_at_any_step_is_repeated() {
    let scene = SpoolFixture::new().await;
    let steps = persist_plan(scene.dir.path(), scene.finished(), true).expect("planned").1.len();
    for failed_after in 0..steps {
        let scene = SpoolFixture::new().await;
        let (_, planned) = persist_plan(scene.dir.path(), scene.finished(), true).expect("planned");
        planned.iter().take(failed_after).for_each(|step| step.perform().expect("performed"));
        let spool = Spool::new(scene.dir.path().to_owned());
        let kept = spool.persist(&scene.finished(), true).await.expect("persisted");
        assert!(spool.bytes() > 30, "{}", spool.bytes());
        let outage = rollout_base::backoff::OutageLog::new("store");
        scene.assert_published(&publish(&*scene.store, &outage, &kept).await).await;
        spool.remove(kept).await;
        assert_eq!(spool.bytes(), 0);
        assert!(scene.is_clean());
    }
}

#[tokio::test]
async fn spool_write_given_up_at_any_step_loses_no_result() {
    let scene = SpoolFixture::new().await;
    let steps = persist_plan(scene.dir.path(), scene.finished(), true).expect("planned").1.len();
    // The last step removes the scratch directory of a complete entry.
    for failed_after in 0..steps {
        let scene = SpoolFixture::new().await;
        let (_, planned) = persist_plan(scene.dir.path(), scene.finished(), true).expect("planned");
        planned.iter().take(failed_after).for_each(|step| step.perform().expect("performed"));
        let spool = Spool::new(scene.dir.path().to_owned());
        let located = spool.locate_files(&scene.finished()).await;
        let outage = rollout_base::backoff::OutageLog::new("store");
        let report = publish_unspooled(&*scene.store, &outage, &located, true).await;
        scene.assert_published(&report).await;
        spool.clear_unspooled(scene.context.execution.labels.exec).await;
        assert!(scene.is_clean(), "after {failed_after} steps");
    }
}

#[tokio::test(start_paused = true)]
async fn spool_recovery_killed_at_any_store_call_is_repeated() {
    for calls in 0..6 {
        let scene = SpoolFixture::new().await;
        Spool::new(scene.dir.path().to_owned())
            .persist(&scene.finished(), true)
            .await
            .expect("persisted");
        scene.store.fail_after_calls(Some(calls));
        let dies = tokio::time::timeout(Duration::from_secs(60), scene.recover()).await;
        scene.store.fail_after_calls(None);
        assert_eq!(dies.is_err(), calls < 4, "two files, a record and a marker");
        scene.recover().await;
        let heard = scene.queue.recorded_reports();
        assert_eq!(heard.len(), 1);
        scene.assert_published(&heard[0]).await;
        assert!(scene.is_clean());
    }
}

#[tokio::test]
async fn spool_file_corrupted_fails_try_as_retryable() {
    for file in ["0", "1"] {
        let scene = SpoolFixture::new().await;
        Spool::new(scene.dir.path().to_owned())
            .persist(&scene.finished(), true)
            .await
            .expect("persisted");
        let exec = scene.context.execution.labels.exec.to_string();
        let path = scene.dir.path().join("spool").join(exec).join(file);
        let mut bytes = fs::read(&path).expect("readable");
        bytes[3] ^= 1;
        fs::write(&path, bytes).expect("written");
        assert_eq!(scene.recover().await.published, 1);
        let heard = scene.queue.recorded_reports();
        let ReportBody::Result(body) = &heard[0].body else { panic!("{heard:?}") };
        let error = body.verdict.error.as_ref().expect("an error");
        assert!(error.is_retryable() && error.message.contains("changed on disk"), "{error:?}");
        assert_eq!((body.verdict.reward, &body.record), (None, &None));
        assert_eq!(scene.store.inner().document_paths(), Vec::<String>::new());
        assert!(scene.is_clean());
    }
}

#[tokio::test(start_paused = true)]
async fn spool_file_missing_fails_try_as_retryable() {
    for file in ["0", "1"] {
        let scene = SpoolFixture::new().await;
        let spool = Spool::new(scene.dir.path().to_owned());
        let kept = spool.persist(&scene.finished(), true).await.expect("persisted");
        fs::remove_file(kept.dir.join(file)).expect("removed");
        let recovered = tokio::time::timeout(Duration::from_secs(60), scene.recover()).await;
        assert_eq!(recovered.expect("no outage").published, 1);
        let heard = scene.queue.recorded_reports();
        let ReportBody::Result(body) = &heard[0].body else { panic!("{heard:?}") };
        let error = body.verdict.error.as_ref().expect("an error");
        assert!(error.is_retryable() && error.message.ends_with("is missing"), "{error:?}");
        assert_eq!(scene.store.inner().document_paths(), Vec::<String>::new());
        assert!(scene.is_clean());
    }
}

#[tokio::test(start_paused = true)]
async fn spool_directory_out_of_reach_is_waited_for() {
    let scene = SpoolFixture::new().await;
    let spool = Spool::new(scene.dir.path().to_owned());
    let kept = spool.persist(&scene.finished(), true).await.expect("persisted");
    let away = scene.dir.path().join("away");
    fs::rename(&kept.dir, &away).expect("moved");
    let outage = rollout_base::backoff::OutageLog::new("store");
    let mut publishing = std::pin::pin!(publish(&*scene.store, &outage, &kept));
    let waited = tokio::time::timeout(Duration::from_secs(60), &mut publishing).await;
    waited.expect_err("it waits for the disk");
    fs::rename(&away, &kept.dir).expect("moved back");
    scene.assert_published(&publishing.await).await;
}

#[tokio::test]
async fn spool_takes_writes_only_if_its_own_directory_does() {
    let dir = TempDir::new().expect("a directory");
    let spool = Spool::new(dir.path().to_owned());
    assert!(spool.takes_writes().await);
    let place = dir.path().join(SPOOL_DIR);
    assert_eq!(fs::read_dir(&place).expect("made").count(), 0);
    fs::remove_dir(&place).expect("removed");
    fs::write(&place, "no directory").expect("written");
    assert!(!spool.takes_writes().await, "the directory above it takes writes");
}

#[tokio::test]
async fn removal_killed_after_its_first_step_leaves_nothing_to_report() {
    let scene = SpoolFixture::new().await;
    let spool = Spool::new(scene.dir.path().to_owned());
    let kept = spool.persist(&scene.finished(), true).await.expect("persisted");
    scene.context.execution.create_scratch().await.expect("created");
    for dir in [&kept.dir, &scene.context.execution.scratch] {
        assert!(fs::read_dir(dir).expect("listed").count() > 0);
        unmark(dir);
    }
    assert_eq!(scene.recover().await, RecoverySummary::default());
    assert_eq!(scene.queue.recorded_reports(), Vec::new());
    assert!(scene.is_clean());
}

#[tokio::test]
async fn creation_of_scratch_directory_goes_on_when_its_caller_is_dropped() {
    let scene = SpoolFixture::new().await;
    let execution = &scene.context.execution;
    fs::remove_dir_all(&execution.scratch).expect("removed");
    let _dropped = execution.create_scratch().now_or_never();
    execution.scratch_work.ended().await;
    assert!(ScratchMark::read(&execution.scratch).is_some());
}

#[tokio::test]
async fn spool_entry_corrupted_is_not_published() {
    let scene = SpoolFixture::new().await;
    Spool::new(scene.dir.path().to_owned())
        .persist(&scene.finished(), true)
        .await
        .expect("persisted");
    let exec = scene.context.execution.labels.exec.to_string();
    let path = scene.dir.path().join("spool").join(exec).join("entry.json");
    let whole = fs::read(&path).expect("readable");
    for at in (0..whole.len() - 1).step_by(11) {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        fs::write(&path, bytes).expect("written");
        let recovered = scene.recover().await;
        assert_eq!((recovered.published, recovered.skipped), (0, 1), "changed at {at}");
    }
    fs::write(&path, &whole).expect("written");
    assert_eq!(scene.recover().await.published, 1);
    scene.assert_published(&scene.queue.recorded_reports()[0]).await;
}

#[tokio::test(start_paused = true)]
async fn spool_recovery_with_full_queue_retries_report() {
    let scene = SpoolFixture::new().await;
    *scene.queue.full.lock().expect("not poisoned") = 3;
    let recovered = scene.recover().await;
    assert_eq!(recovered, RecoverySummary { published: 0, lost: 1, skipped: 0 });
    assert_eq!(scene.queue.recorded_reports().len(), 1);
    assert!(scene.is_clean());
}

#[tokio::test]
async fn spool_entry_of_other_run_or_newer_format_is_left() {
    let scene = SpoolFixture::new().await;
    let kept = Spool::new(scene.dir.path().to_owned())
        .persist(&scene.finished(), true)
        .await
        .expect("persisted");
    let other = Some(RunId::from_bytes([99; 16]));
    let (store, queue) = (scene.store.clone(), scene.queue.clone());
    let recovered =
        recover(scene.dir.path(), other, REASON, store, queue).await.expect("recovered");
    assert_eq!(recovered, RecoverySummary { published: 0, lost: 0, skipped: 1 });

    let file = kept.dir.join("entry.json");
    let text = fs::read_to_string(&file).expect("readable");
    fs::write(&file, text.replacen("\"format\":1", "\"format\":1000", 1)).expect("written");
    assert_eq!(scene.recover().await, RecoverySummary { published: 0, lost: 0, skipped: 1 });
    fs::write(&file, text).expect("written");
    assert_eq!(scene.recover().await, RecoverySummary { published: 1, lost: 0, skipped: 0 });
    scene.assert_published(&scene.queue.recorded_reports()[0]).await;
}

#[tokio::test]
async fn spool_with_missing_output_file_keeps_verdict() {
    let scene = SpoolFixture::new().await;
    fs::remove_file(scene.context.execution.scratch.join("a.txt")).expect("removed");
    Spool::new(scene.dir.path().to_owned())
        .persist(&scene.finished(), true)
        .await
        .expect("persisted");
    scene.recover().await;
    scene.assert_published_without_output(&scene.queue.recorded_reports()[0]).await;
}

#[tokio::test]
async fn spool_write_repeated_without_a_missing_file_keeps_the_others_in_their_places() {
    let without_output = || async {
        let scene = SpoolFixture::new().await;
        fs::remove_file(scene.context.execution.scratch.join("a.txt")).expect("removed");
        let plan = persist_plan(scene.dir.path(), scene.finished(), true).expect("planned");
        (scene, plan.1)
    };
    let steps = without_output().await.1.len();
    for failed_after in 0..steps {
        let (scene, planned) = without_output().await;
        planned.iter().take(failed_after).for_each(|step| step.perform().expect("performed"));
        let spool = Spool::new(scene.dir.path().to_owned());
        let located = spool.locate_files(&scene.finished()).await;
        assert!(!located.files[0].file.exists(), "after {failed_after} steps");
        let logs = fs::read_to_string(&located.files[1].file).expect("readable");
        assert_eq!(logs, "content of logs.tar", "after {failed_after} steps");
        let kept = spool.persist(&scene.finished(), true).await.expect("persisted");
        let outage = rollout_base::backoff::OutageLog::new("store");
        let report = publish(&*scene.store, &outage, &kept).await;
        scene.assert_published_without_output(&report).await;
        spool.remove(kept).await;
        assert!(scene.is_clean(), "after {failed_after} steps");
    }
}

#[test]
fn spool_file_json_round_trips_unchanged() {
    for text in [
        r#"{"media_type":"text/plain","of":"trial","role":"output","path":"a.txt","total_bytes":16,"truncated":false}"#,
        r#"{"media_type":"application/x-tar","of":"trial","role":"artifact","index":2}"#,
        r#"{"media_type":"application/x-tar","number":1,"of":"trial","role":"artifact","index":2}"#,
        r#"{"media_type":"application/x-tar","of":"eval","role":"logs","entries":1,"skipped":2,"truncated":true}"#,
        r#"{"media_type":"application/octet-stream","of":"eval","role":"candidate","commit":"a","parent":"b"}"#,
    ] {
        let file: super::entry::SpoolFile = serde_json::from_str(text).expect("JSON");
        assert_eq!(serde_json::to_string(&file).expect("serializable"), text);
    }
}
