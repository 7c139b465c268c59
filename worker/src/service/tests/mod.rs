mod claims;
mod disks;
mod harness;
mod outages;
mod shutdown;
mod slot_limits;
mod stage_permits;

use rollout_protocol::error::{ErrorClass, ErrorCode, ErrorType, RetryClass};
use rollout_protocol::id::TryId;
use rollout_protocol::phase::Phase;
use rollout_protocol::record::{ItemOutcome, LostReason, TrialRecord};
use rollout_protocol::trace_id::TraceId;
use rollout_protocol::wire::control::{ControlMessage, StopLevel};
use rollout_protocol::wire::marker::ResultMarker;
use rollout_protocol::wire::report::ReportBody;
use rollout_queue::embedded::model::BrokerModel;
use rollout_queue::traits::Dispatch;

use self::harness::{LEASE, LONG, ScriptedAct, ServiceFixture, ServiceSetup, result};
use super::*;
use crate::spool;
use crate::testing::RecordingExporter;

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn offer_is_run_reported_and_acknowledged_once() {
    let scene = ServiceFixture::with_setup(ServiceSetup { slots: 7, ..ServiceSetup::default() });
    scene.offer(1..=100).await;
    let reports = scene.reports(100).await;
    for (attempt, report) in (1..).zip(&reports) {
        assert_eq!(report.item, scene.sample.item(attempt));
        let body = result(report);
        assert_eq!((body.verdict.outcome, &body.record), (ItemOutcome::Completed, &None));
    }
    scene.until_acknowledged().await;
    assert_eq!(scene.begun(), (1..=100).collect::<Vec<_>>());
    assert_eq!(scene.store.reads(), 3, "documents are fetched once");
    assert_eq!(scene.read(1, Duration::ZERO).await, []);
    let dir = scene.shut_down(ShutdownLevel::Finish).await;
    let entries = |dir: &std::path::Path| std::fs::read_dir(dir).expect("listed").count();
    let written = (entries(dir.path()), entries(&dir.path().join("scratch")));
    assert_eq!(written, (1, 0), "nothing beside the empty scratch directory");
}

#[tokio::test(start_paused = true)]
async fn slots_bound_concurrent_executions() {
    let scene = ServiceFixture::with_setup(ServiceSetup { slots: 2, ..ServiceSetup::default() });
    (1..=5).for_each(|n| scene.script(n, ScriptedAct::Sleep(SECOND / 2)));
    scene.offer(1..=5).await;
    scene.reports(5).await;
    assert_eq!(scene.runner.max_running.load(std::sync::atomic::Ordering::Relaxed), 2);
    scene.until_acknowledged().await;
}

#[tokio::test(start_paused = true)]
async fn result_record_is_stored_before_report() {
    let scene = ServiceFixture::new();
    scene.script(1, ScriptedAct::Produce(SECOND / 2));
    scene.script(2, ScriptedAct::Produce(3 * SECOND));
    scene.offer([1, 2]).await;
    let brief = scene.report().await;
    let record = result(&brief).record.clone().expect("a record");
    let record: TrialRecord =
        serde_json::from_str(&scene.store.inner().text(&record)).expect("JSON");
    assert_eq!(record.exec, brief.exec);
    assert_eq!(scene.store.inner().text(&record.outputs[0].blob), "a captured line");
    assert_eq!(
        scene.store.inner().document_paths(),
        Vec::<String>::new(),
        "no marker for a brief one"
    );

    let started = scene.report().await;
    assert_eq!(started.body, ReportBody::Started);
    let long = scene.report().await;
    assert_eq!(long.exec, started.exec);
    let blob = result(&long).record.clone().expect("a record");
    let marker = ResultMarker::parse(&scene.store.inner().document_paths()[0]).expect("a marker");
    assert_eq!((marker.exec, marker.record), (long.exec, blob.digest));
    scene.until_acknowledged().await;
}

#[tokio::test(start_paused = true)]
async fn execution_long_keeps_lease_and_is_in_heartbeat() {
    let scene = ServiceFixture::new();
    scene.script(1, ScriptedAct::Sleep(10 * LEASE));
    scene.offer([1]).await;
    let started = scene.report().await;
    assert_eq!(started.body, ReportBody::Started);
    scene.until("it is shown", async || !scene.heartbeat_entries().await.is_empty()).await;
    let shown = scene.heartbeat_entries().await[0];
    assert_eq!((shown.exec, shown.phase), (started.exec, Phase::AgentExecution));
    let ended = scene.report().await;
    assert_eq!(result(&ended).verdict.outcome, ItemOutcome::Completed);
    assert!(result(&ended).record.is_some(), "long enough to be worth a record");
    assert_eq!(scene.begun(), [1]);
    scene.until_acknowledged().await;
    scene.until("it is gone", async || scene.heartbeat_entries().await.is_empty()).await;
}

#[tokio::test(start_paused = true)]
async fn execution_on_idle_worker_is_in_heartbeat_a_moment_later() {
    let scene = ServiceFixture::new();
    scene.script(1, ScriptedAct::UntilStopped);
    // Idle workers send heartbeats each second.
    tokio::time::sleep(SECOND * 11 / 2).await;
    scene.offer([1]).await;
    scene.until_running(1).await;
    tokio::time::sleep(SECOND * 3 / 10).await;
    assert_eq!(scene.heartbeat_entries().await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn execution_panic_is_internal_error_and_frees_slot() {
    let scene = ServiceFixture::with_setup(ServiceSetup { slots: 1, ..ServiceSetup::default() });
    scene.script(1, ScriptedAct::Panic);
    scene.offer([1, 2]).await;
    let reports = scene.reports(2).await;
    let error = result(&reports[0]).verdict.error.clone().expect("an error");
    assert_eq!((error.kind, error.code.clone()), (ErrorType::InternalError, ErrorCode::BUG));
    assert_eq!((error.class, error.retry), (ErrorClass::Infrastructure, RetryClass::Permanent));
    assert_eq!(error.phase, Phase::AgentExecution);
    assert!(error.message.contains("as scripted"), "{error}");
    assert_eq!(result(&reports[1]).verdict.outcome, ItemOutcome::Completed, "the slot is free");
}

#[tokio::test(start_paused = true)]
async fn stop_ends_only_named_execution_or_run() {
    let scene = ServiceFixture::new();
    (1..=3).for_each(|n| scene.script(n, ScriptedAct::UntilStopped));
    scene.offer(1..=3).await;
    let started = scene.reports(3).await;
    let run = scene.sample.run;
    let level = StopLevel::Drain;
    let one = ControlMessage::StopExecution { run, exec: started[1].exec, level };
    scene.queue.control(one).await.expect("sent");
    let stopped = scene.report().await;
    let lost = ReportBody::Lost {
        reason: LostReason::Stopped,
        phase: Some(Phase::AgentExecution),
        record: None,
        cost: 0.0,
        model_use: Default::default(),
    };
    assert_eq!((stopped.exec, &stopped.body), (started[1].exec, &lost));
    scene
        .queue
        .control(ControlMessage::StopRun { run, level: StopLevel::Kill })
        .await
        .expect("sent");
    let rest = scene.reports(2).await;
    assert!(rest.iter().all(|report| report.body == lost), "{rest:?}");
    scene.until_acknowledged().await;
}

#[tokio::test(start_paused = true)]
async fn store_outage_frees_slot_and_keeps_result() {
    let scene = ServiceFixture::with_setup(ServiceSetup { slots: 1, ..ServiceSetup::default() });
    scene.script(1, ScriptedAct::Produce(SECOND / 2));
    scene.offer([1]).await;
    scene.until("it runs", async || scene.begun() == [1]).await;
    scene.store.set_down(true);
    scene.until("it is spooled", async || scene.is_only_spooled()).await;
    scene.offer([2]).await;
    assert_eq!(scene.report().await.item, scene.sample.item(2));
    assert_eq!(scene.read(1, 5 * LEASE).await, []);
    assert_eq!(scene.heartbeat_entries().await.len(), 1, "it is not acknowledged yet");
    assert_eq!(scene.queued().await, 1, "and keeps its lease");
    scene.store.set_down(false);
    let report = scene.report().await;
    assert!(result(&report).record.is_some());
    scene.until_acknowledged().await;
    assert_eq!(scene.begun(), [1, 2]);
}

#[tokio::test(start_paused = true)]
async fn spec_missing_in_store_is_retryable_store_error() {
    let scene = ServiceFixture::new();
    let mut offer = scene.sample.offer(1, TryId::first(1));
    let rollout_protocol::wire::offer::OfferedWork::Trial(trial) = &mut offer.work else {
        unreachable!("samples are trials")
    };
    trial.task = rollout_protocol::digest::Digest::sha256(b"nowhere");
    scene.queue.offer(&[offer]).await.expect("offered");
    let report = scene.report().await;
    let error = result(&report).verdict.error.clone().expect("an error");
    assert_eq!((error.code.clone(), error.is_retryable()), (ErrorCode::STORE_FAILED, true));
    assert_eq!(scene.begun(), Vec::<u32>::new());
}

#[tokio::test(start_paused = true)]
async fn report_queue_full_retries_until_all_reported() {
    let scene =
        ServiceFixture::with_setup(ServiceSetup { reports_per_run: 3, ..ServiceSetup::default() });
    scene.offer(1..=20).await;
    tokio::time::sleep(LEASE).await;
    let reports = scene.reports(20).await;
    let mut items: Vec<_> = reports.iter().map(|report| report.item).collect();
    items.sort_unstable();
    items.dedup();
    assert_eq!(items.len(), 20);
    scene.until_acknowledged().await;
    assert_eq!(scene.begun().len(), 20);
}

#[tokio::test(start_paused = true)]
async fn redelivery_of_running_execution_is_not_run_again() {
    let scene = ServiceFixture::new();
    scene.script(1, ScriptedAct::Sleep(2 * LEASE));
    scene.offer([1]).await;
    scene.report().await;
    tokio::time::sleep(SECOND).await;
    scene.queue.inject_fault(BrokerModel::restart);
    let ended = scene.report().await;
    assert_eq!(result(&ended).verdict.outcome, ItemOutcome::Completed);
    scene.until_acknowledged().await;
    assert_eq!(scene.begun(), [1]);
}

#[tokio::test(start_paused = true)]
async fn report_not_journalled_is_sent_again_to_wiped_queue() {
    let scene = ServiceFixture::new();
    scene.offer([1]).await;
    let read = scene.queue.reports(scene.sample.run, None, 1, LONG).await.expect("read").reports;
    scene.queue.inject_fault(|model| model.wipe(rollout_protocol::wire::position::Incarnation(7)));
    let again = scene.queue.reports(scene.sample.run, None, 1, LONG).await.expect("read").reports;
    assert_eq!(read[0].report, again[0].report);
}

#[tokio::test(start_paused = true)]
async fn shutdown_drain_stops_running_and_reports_lost() {
    let scene = ServiceFixture::with_setup(ServiceSetup { slots: 1, ..ServiceSetup::default() });
    scene.script(1, ScriptedAct::UntilStopped);
    scene.offer([1, 2]).await;
    scene.report().await;
    scene.stop.send_replace(ShutdownLevel::Drain);
    let stopped = scene.report().await;
    assert!(matches!(stopped.body, ReportBody::Lost { reason: LostReason::Stopped, .. }));
    let (queue, run, other) = (scene.queue.clone(), scene.sample.run, scene.sample.item(2));
    scene.shut_down(ShutdownLevel::Drain).await;
    let left: Vec<_> = queue.list(run).await.expect("listed").iter().map(|l| l.item).collect();
    assert_eq!(left, [other], "not taken any more");
}

#[tokio::test(start_paused = true)]
async fn spool_of_killed_worker_is_recovered() {
    let scene = ServiceFixture::new();
    scene.script(1, ScriptedAct::Produce(SECOND));
    scene.offer([1]).await;
    scene.until("it runs", async || scene.begun() == [1]).await;
    scene.store.set_down(true);
    scene.until("it is spooled", async || scene.is_only_spooled()).await;
    let (queue, store, run) = (scene.queue.clone(), scene.store.clone(), scene.sample.run);
    let dir = scene.shut_down(ShutdownLevel::Kill).await;

    store.set_down(false);
    let reason = LostReason::ProcessDied;
    let recovering = spool::recover(dir.path(), Some(run), reason, store.clone(), queue.clone());
    let coordinator = async {
        let read = queue.reports(run, None, 5, LONG).await.expect("read").reports;
        queue.mark_journaled(run, read.last().expect("a report").position).await.expect("marked");
        read
    };
    let (recovered, read) = tokio::join!(recovering, coordinator);
    let expected = spool::RecoverySummary { published: 1, lost: 0, skipped: 0 };
    assert_eq!(recovered.expect("recovered"), expected);
    assert!(result(&read[0].report).record.is_some());
    assert_eq!(std::fs::read_dir(dir.path().join("spool")).expect("listed").count(), 0);
}

#[tokio::test]
async fn execution_exports_its_trace_before_the_worker_ends() {
    let (tracer, spans) = RecordingExporter::tracer();
    let scene = ServiceFixture::with_setup(ServiceSetup { tracer, ..ServiceSetup::default() });
    scene.script(2, ScriptedAct::Produce(Duration::from_millis(1)));
    scene.offer([1, 2]).await;
    let reports = scene.reports(2).await;
    scene.until_acknowledged().await;
    let _dir = scene.shut_down(ShutdownLevel::Finish).await;
    let spans = spans.taken();
    for report in reports {
        let of_item = TraceId::for_item(report.run, report.item);
        let names: Vec<_> =
            spans.iter().filter(|span| span.trace == of_item).map(|span| span.name).collect();
        // One ends at once and needs no spool; its report is part of a batch.
        let spooled = ["queued", "agent_execution", "upload", "report", "execution"];
        let is_spooled = result(&report).record.is_some();
        assert_eq!(names, if is_spooled { &spooled[..] } else { &["queued", "execution"] });
    }
}
