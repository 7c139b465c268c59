//! Tests of the shutdown of workers.

use rollout_protocol::phase::Phase;
use rollout_protocol::record::LostReason;
use rollout_protocol::wire::claim::ClaimAnswer;
use rollout_protocol::wire::delivery::FreeCapacity;
use rollout_protocol::wire::report::ReportBody;
use rollout_queue::traits::WorkSource;

use super::harness::{FIRST, LEASE, ScriptedAct, ServiceFixture, ServiceSetup, result};
use super::*;

#[tokio::test(start_paused = true)]
async fn shutdown_finish_completes_running_and_pulls_nothing() {
    let scene = ServiceFixture::with_setup(ServiceSetup { slots: 1, ..ServiceSetup::default() });
    scene.script(1, ScriptedAct::Sleep(5 * LEASE));
    scene.offer([1, 2]).await;
    assert_eq!(scene.report().await.body, ReportBody::Started);
    scene.stop.send_replace(ShutdownLevel::Finish);
    scene.until("the heartbeat shows it", async || scene.last_heartbeat().await.draining).await;
    assert!(result(&scene.report().await).verdict.reward.is_some());
    let (queue, run, other) = (scene.queue.clone(), scene.sample.run, scene.sample.item(2));
    let (ended, _dir) = scene.ended().await;
    assert_eq!(ended, WorkerExit { reason: WorkerExitReason::Asked, unreported: 0 });
    let left: Vec<_> = queue.list(run).await.expect("listed").iter().map(|l| l.item).collect();
    assert_eq!(left, [other], "not taken any more");
}

#[tokio::test(start_paused = true)]
async fn shutdown_finish_gives_back_unstarted_delivery() {
    let scene = ServiceFixture::with_setup(ServiceSetup { slots: 1, ..ServiceSetup::default() });
    scene.until("it pulls", async || !scene.source.take_calls().is_empty()).await;
    scene.stop.send_replace(ShutdownLevel::Finish);
    scene.offer([1]).await;
    let queue = scene.queue.clone();
    let (ended, _dir) = scene.ended().await;
    assert_eq!(ended, WorkerExit { reason: WorkerExitReason::Asked, unreported: 0 });
    let again = queue.pull(FreeCapacity::with_slots(1), SECOND).await.expect("pulled");
    assert_eq!(again.len(), 1, "redelivered to another worker");
}

#[tokio::test(start_paused = true)]
async fn shutdown_drain_reports_claimed_try_without_slot_as_lost() {
    let scene = ServiceFixture::with_setup(ServiceSetup { slots: 1, ..ServiceSetup::default() });
    let claimed = FIRST.next(1);
    scene.offer_as([1], claimed).await;
    scene.until("it is claimed", async || !scene.heartbeat_entries().await.is_empty()).await;
    scene.script(2, ScriptedAct::UntilStopped);
    scene.offer([2]).await;
    scene.until("it released its slot", async || scene.begun() == [2]).await;
    assert_eq!(scene.report().await.body, ReportBody::Started);
    scene.answer_claim(ClaimAnswer::Run).await;
    tokio::time::sleep(SECOND).await;
    scene.stop.send_replace(ShutdownLevel::Drain);
    let mut gone = scene.reports(2).await;
    gone.sort_by_key(|report| report.try_id == claimed);
    let lost = |phase| {
        let reason = LostReason::Stopped;
        ReportBody::Lost {
            reason,
            phase: Some(phase),
            record: None,
            cost: 0.0,
            model_use: Default::default(),
        }
    };
    assert_eq!((&gone[1].try_id, &gone[1].body), (&claimed, &lost(Phase::Queued)));
    assert_eq!(gone[0].body, lost(Phase::AgentExecution));
    assert_eq!(scene.begun(), [2]);
}

#[tokio::test(start_paused = true)]
async fn shutdown_during_outage_leaves_result_in_spool() {
    let scene = ServiceFixture::new();
    scene.script(1, ScriptedAct::Produce(SECOND));
    scene.offer([1]).await;
    scene.until_running(1).await;
    scene.source.disconnect();
    scene.until("it is spooled", async || scene.is_only_spooled()).await;
    let told = tokio::time::Instant::now();
    scene.stop.send_replace(ShutdownLevel::Finish);
    let (ended, dir) = scene.ended().await;
    assert!(told.elapsed() < LEASE, "{:?}", told.elapsed());
    assert_eq!(ended, WorkerExit { reason: WorkerExitReason::Asked, unreported: 1 });
    assert_eq!(std::fs::read_dir(dir.path().join("spool")).expect("listed").count(), 1);
}

#[tokio::test(start_paused = true)]
async fn shutdown_discard_waits_for_no_report() {
    for (level, waits) in [(ShutdownLevel::Kill, true), (ShutdownLevel::Discard, false)] {
        let scene = ServiceFixture::new();
        scene.script(1, ScriptedAct::UntilStopped);
        scene.offer([1]).await;
        scene.until_running(1).await;
        scene.source.disconnect();
        let told = tokio::time::Instant::now();
        scene.stop.send_replace(level);
        let (ended, _dir) = scene.ended().await;
        assert_eq!(ended, WorkerExit { reason: WorkerExitReason::Killed, unreported: 1 });
        assert_eq!(told.elapsed() >= 5 * SECOND, waits, "{level:?}: {:?}", told.elapsed());
    }
}
