//! Tests of workers without a connection to the queue.

use rollout_protocol::id::TryId;
use rollout_protocol::phase::Phase;
use rollout_protocol::wire::claim::ClaimAnswer;
use rollout_protocol::wire::report::ReportBody;

use super::harness::{FIRST, LEASE, ScriptedAct, ServiceFixture, ServiceSetup, result};
use super::*;
use crate::testing::SourceCall;

const LATER: TryId = FIRST.next(1);

#[tokio::test(start_paused = true)]
async fn execution_during_queue_outage_is_reported_after() {
    let scene = ServiceFixture::new();
    scene.script(1, ScriptedAct::Produce(2 * LEASE));
    scene.script(2, ScriptedAct::Sleep(6 * LEASE));
    scene.offer([1, 2]).await;
    scene.reports(2).await;
    scene.source.disconnect();
    scene.source.take_calls();
    scene
        .until("one is spooled", async || {
            scene.files().iter().any(|file| file.starts_with("spool"))
        })
        .await;
    assert_eq!(scene.source.take_calls(), [], "nothing is sent while disconnected");
    tokio::time::sleep(2 * LEASE).await;
    scene.source.reconnect();
    let ended = scene.reports(2).await;
    assert!(ended.iter().all(|report| result(report).verdict.reward == Some(1.0)));
    assert_eq!(scene.begun().len(), 2, "neither ran again");
    scene.until_acknowledged().await;
}

#[tokio::test(start_paused = true)]
async fn reconnect_sends_heartbeat_then_claims_then_pulls() {
    let scene = ServiceFixture::with_setup(ServiceSetup {
        slots: 2,
        window: Some(LEASE),
        ..ServiceSetup::default()
    });
    scene.script(1, ScriptedAct::Sleep(9 * LEASE));
    scene.offer([1]).await;
    scene.answer_claim(ClaimAnswer::Run).await;
    scene.report().await;
    scene.offer_as([2], LATER).await;
    scene.until("it is claimed", async || scene.heartbeat_entries().await.len() == 2).await;
    scene.source.disconnect();
    tokio::time::sleep(2 * LEASE).await;
    scene.source.take_calls();
    scene.source.reconnect();
    scene.answer_claim(ClaimAnswer::Drop).await;
    scene
        .until("it pulls", async || {
            scene.source.has_call(|call| matches!(call, SourceCall::Pull(_)))
        })
        .await;
    let said = scene.source.take_calls();
    let SourceCall::Heartbeat(hello) = &said[0] else {
        panic!("the first call is a heartbeat: {said:?}")
    };
    assert_eq!(hello.executions.len(), 2, "with everything it holds");
    let claims = |said: &SourceCall| matches!(said, SourceCall::Claim(_));
    let pulls = |said: &SourceCall| matches!(said, SourceCall::Pull(_));
    assert!(said.iter().position(claims) < said.iter().position(pulls), "{said:?}");
}

#[tokio::test(start_paused = true)]
async fn delivery_within_lease_of_reconnect_is_claimed() {
    let scene =
        ServiceFixture::with_setup(ServiceSetup { window: Some(LEASE), ..ServiceSetup::default() });
    tokio::time::sleep(LEASE).await;
    scene.offer([1]).await;
    result(&scene.report().await);
    // Too short to be noticed as an outage.
    scene.source.reconnect();
    scene.offer([2]).await;
    assert_eq!(scene.answer_claim(ClaimAnswer::Drop).await.item, scene.sample.item(2));
    tokio::time::sleep(LEASE).await;
    scene.offer([3]).await;
    result(&scene.report().await);
}

#[tokio::test(start_paused = true)]
async fn delivery_long_after_connect_runs_without_claim() {
    let scene =
        ServiceFixture::with_setup(ServiceSetup { window: Some(LEASE), ..ServiceSetup::default() });
    tokio::time::sleep(2 * LEASE).await;
    scene.offer([1]).await;
    result(&scene.report().await);
}

#[tokio::test(start_paused = true)]
async fn claim_timeout_during_outage_starts_again() {
    let scene = ServiceFixture::new();
    scene.offer_as([1], LATER).await;
    scene.until("it is claimed", async || !scene.heartbeat_entries().await.is_empty()).await;
    tokio::time::sleep(LEASE / 2).await;
    scene.source.disconnect();
    tokio::time::sleep(3 * LEASE).await;
    assert_eq!(scene.begun(), Vec::<u32>::new());
    let mended = tokio::time::Instant::now();
    scene.source.reconnect();
    scene.until("it runs without an answer", async || scene.begun() == [1]).await;
    assert!(mended.elapsed() >= LEASE * 9 / 10, "{:?}", mended.elapsed());
}

#[tokio::test(start_paused = true)]
async fn offline_beyond_limit_stops_worker_and_keeps_spool() {
    let limit = 5 * LEASE;
    let scene = ServiceFixture::with_setup(ServiceSetup {
        max_offline: Some(limit),
        ..ServiceSetup::default()
    });
    scene.script(1, ScriptedAct::UntilStopped);
    scene.script(2, ScriptedAct::Produce(SECOND));
    scene.offer([1, 2]).await;
    scene.until_running(2).await;
    assert_eq!(scene.last_heartbeat().await.max_offline_sec, Some(limit.as_secs()));
    let cut = tokio::time::Instant::now();
    scene.source.disconnect();
    scene
        .until("one is spooled", async || {
            scene.files().iter().any(|file| file.starts_with("spool"))
        })
        .await;
    let runner = scene.runner.clone();
    let (ended, dir) = scene.ended().await;
    assert!(cut.elapsed() >= limit && cut.elapsed() < limit + LEASE, "{:?}", cut.elapsed());
    assert_eq!(ended, WorkerExit { reason: WorkerExitReason::Offline, unreported: 2 });
    assert_eq!(runner.running.load(Ordering::Relaxed), 0, "nothing keeps running");
    assert_eq!(std::fs::read_dir(dir.path().join("spool")).expect("listed").count(), 1);
}

#[tokio::test(start_paused = true)]
async fn offline_limit_after_short_outage_restarts() {
    let limit = Some(2 * LEASE);
    let scene =
        ServiceFixture::with_setup(ServiceSetup { max_offline: limit, ..ServiceSetup::default() });
    scene.script(1, ScriptedAct::Sleep(9 * LEASE));
    scene.offer([1]).await;
    assert_eq!(scene.report().await.body, ReportBody::Started);
    for _ in 0..4 {
        scene.source.disconnect();
        tokio::time::sleep(LEASE).await;
        scene.source.reconnect();
        tokio::time::sleep(LEASE).await;
    }
    result(&scene.report().await);
}

#[tokio::test(start_paused = true)]
async fn heartbeat_shows_adopted_execution_until_reported() {
    let scene = ServiceFixture::new();
    let exec = ExecId::from_bytes([8; 16]);
    scene.adopted.insert([ActiveExecution {
        run: scene.sample.run,
        item: scene.sample.item(9),
        try_id: FIRST,
        exec,
        phase: Phase::Teardown,
        claiming: false,
        stage: None,
        parked: None,
    }]);
    scene.until("it is shown", async || scene.heartbeat_entries().await.len() == 1).await;
    scene.adopted.remove(exec);
    scene.until("it is not", async || scene.heartbeat_entries().await.is_empty()).await;
}
