//! Tests of claims for suspicious deliveries.

use bytes::Bytes;
use rollout_protocol::digest::Digest;
use rollout_protocol::id::{ExecId, TryId};
use rollout_protocol::limits;
use rollout_protocol::wire::claim::ClaimAnswer;
use rollout_protocol::wire::delivery::FreeCapacity;
use rollout_protocol::wire::marker::ResultMarker;
use rollout_protocol::wire::report::ReportBody;
use rollout_queue::traits::WorkSource;

use super::harness::{FIRST, LEASE, ServiceFixture, ServiceSetup, result};
use super::*;

const LATER: TryId = FIRST.next(1);

#[tokio::test(start_paused = true)]
async fn claim_of_later_try_answered_run_is_executed() {
    let scene = ServiceFixture::new();
    scene.offer_as([1], LATER).await;
    let claim = scene.answer_claim(ClaimAnswer::Run).await;
    let reports = scene.reports(2).await;
    assert_eq!((reports[0].exec, &reports[0].body), (claim.exec, &ReportBody::Started));
    assert_eq!(reports[1].exec, claim.exec);
    assert_eq!(result(&reports[1]).verdict.reward, Some(1.0));
    scene.until_acknowledged().await;
}

#[tokio::test(start_paused = true)]
async fn claim_answered_drop_is_acknowledged_without_run() {
    let scene = ServiceFixture::new();
    scene.offer_as([1], LATER).await;
    scene.answer_claim(ClaimAnswer::Drop).await;
    scene.until_acknowledged().await;
    assert_eq!(scene.begun(), Vec::<u32>::new());
}

#[tokio::test(start_paused = true)]
async fn claim_answered_hold_is_redelivered_after_lease() {
    let scene = ServiceFixture::with_setup(ServiceSetup { slots: 1, ..ServiceSetup::default() });
    scene.offer_as([1], LATER).await;
    let first = scene.answer_claim(ClaimAnswer::Hold).await;
    scene.offer([2]).await;
    assert_eq!(scene.report().await.item, scene.sample.item(2), "the slot is free");
    let held = tokio::time::Instant::now();
    let second = scene.answer_claim(ClaimAnswer::Run).await;
    assert!(held.elapsed() > LEASE - SECOND, "{:?}", held.elapsed());
    assert_ne!(first.exec, second.exec);
    scene.reports(2).await;
    scene.until_acknowledged().await;
}

#[tokio::test(start_paused = true)]
async fn redelivery_is_claimed_before_run() {
    let scene = ServiceFixture::new();
    scene.queue.inject_fault(|model| {
        model.offer(&[scene.sample.offer(1, FIRST)]);
        let to_a_dead_worker = model.pull(Duration::ZERO, 1);
        assert_eq!(to_a_dead_worker.len(), 1);
    });
    let claim = scene.answer_claim(ClaimAnswer::Drop).await;
    assert_eq!(claim.item, scene.sample.item(1));
    scene.until_acknowledged().await;
    assert_eq!(scene.begun(), Vec::<u32>::new());
}

#[tokio::test(start_paused = true)]
async fn claim_unanswered_frees_slot_and_runs_after_lease() {
    let scene = ServiceFixture::with_setup(ServiceSetup { slots: 1, ..ServiceSetup::default() });
    let asked = tokio::time::Instant::now();
    scene.offer_as([1], LATER).await;
    scene.until("it is claimed", async || !scene.heartbeat_entries().await.is_empty()).await;
    scene.offer([2]).await;
    assert_eq!(scene.report().await.item, scene.sample.item(2));
    let waited = asked.elapsed();
    assert!(
        waited >= limits::CLAIM_SLOT_TIMEOUT && waited < limits::CLAIM_SLOT_TIMEOUT + 3 * SECOND
    );
    let reports = scene.reports(2).await;
    assert!(asked.elapsed() >= LEASE, "{:?}", asked.elapsed());
    assert_eq!(reports[0].body, ReportBody::Started);
    assert_eq!(result(&reports[1]).verdict.reward, Some(1.0));
    scene.until_acknowledged().await;
}

#[tokio::test(start_paused = true)]
async fn claim_unanswered_with_result_marker_is_not_run() {
    let scene = ServiceFixture::new();
    let marker = ResultMarker {
        run: scene.sample.run,
        item: scene.sample.item(1),
        try_id: LATER,
        exec: ExecId::from_bytes([5; 16]),
        record: Digest::sha256(b"record"),
    };
    scene.store.put_document(&marker.to_string(), Bytes::new()).await.expect("stored");
    scene.offer_as([1], LATER).await;
    assert_eq!(scene.read(1, 3 * LEASE).await, []);
    assert_eq!(scene.begun(), Vec::<u32>::new());
    assert_eq!(scene.queued().await, 1);
}

#[tokio::test(start_paused = true)]
async fn delivery_after_new_incarnation_is_claimed() {
    let scene =
        ServiceFixture::with_setup(ServiceSetup { window: Some(LEASE), ..ServiceSetup::default() });
    scene.offer([1]).await;
    scene.answer_claim(ClaimAnswer::Run).await;
    assert_eq!(scene.report().await.body, ReportBody::Started);
    scene.report().await;
    // Paused time: it passes at once.
    tokio::time::sleep(LEASE).await;
    scene.offer([2]).await;
    result(&scene.report().await);
    scene.queue.inject_fault(|model| model.wipe(rollout_protocol::wire::position::Incarnation(3)));
    scene.offer([3]).await;
    let claim = scene.answer_claim(ClaimAnswer::Drop).await;
    assert_eq!(claim.item, scene.sample.item(3), "a new incarnation makes it suspicious");
}

#[tokio::test(start_paused = true)]
async fn claim_pending_at_shutdown_is_given_back() {
    let scene = ServiceFixture::new();
    scene.offer_as([1], LATER).await;
    scene.until("it is claimed", async || !scene.heartbeat_entries().await.is_empty()).await;
    let queue = scene.queue.clone();
    let began = tokio::time::Instant::now();
    scene.shut_down(ShutdownLevel::Finish).await;
    assert!(began.elapsed() < SECOND);
    let again = queue.pull(FreeCapacity::with_slots(1), Duration::ZERO).await.expect("pulled");
    assert_eq!(again[0].delivered, 2);
}

#[tokio::test(start_paused = true)]
async fn claim_unanswered_in_peer_heartbeat_is_not_run() {
    let scene = ServiceFixture::new();
    let mut other = scene.last_heartbeat().await;
    other.worker = "w-0".parse().expect("a token");
    other.executions = vec![ActiveExecution {
        run: scene.sample.run,
        item: scene.sample.item(1),
        try_id: LATER,
        exec: ExecId::from_bytes([0xff; 16]),
        phase: Phase::AgentExecution,
        claiming: false,
        stage: None,
        parked: None,
    }];
    scene.offer_as([1], LATER).await;
    let asked = tokio::time::Instant::now();
    while asked.elapsed() < 3 * LEASE {
        scene.queue.heartbeat(other.clone()).await.expect("sent");
        // Paused time: it passes at once.
        tokio::time::sleep(SECOND).await;
    }
    assert_eq!(scene.begun(), Vec::<u32>::new());
    assert_eq!(scene.queued().await, 1);
    scene.until("the other worker is forgotten, and it runs", async || scene.begun() == [1]).await;
}

#[tokio::test(start_paused = true)]
async fn claim_stopped_is_forgotten_without_run() {
    let scene = ServiceFixture::new();
    scene.offer_as([1], LATER).await;
    scene.until("it is claimed", async || !scene.heartbeat_entries().await.is_empty()).await;
    let (run, exec) = (scene.sample.run, scene.heartbeat_entries().await[0].exec);
    let stop = ControlMessage::StopExecution { run, exec, level: StopLevel::Drain };
    scene.queue.control(stop).await.expect("sent");
    scene.until("it is forgotten", async || scene.heartbeat_entries().await.is_empty()).await;
    assert_eq!((scene.queued().await, scene.begun()), (1, vec![]));
}

#[tokio::test(start_paused = true)]
async fn claim_answered_run_and_stopped_at_once_is_reported() {
    let scene = ServiceFixture::new();
    for n in 1..=20 {
        scene.offer_as([n], LATER).await;
        let pending = scene.queue.next_claim(scene.sample.run).await.expect("a claim");
        let exec = pending.claim.exec;
        let level = StopLevel::Kill;
        let stop = ControlMessage::StopExecution { run: scene.sample.run, exec, level };
        // The task of the claim sees both at once: that of the controls is woken before it.
        scene.queue.control(stop).await.expect("sent");
        pending.reply.send(ClaimAnswer::Run).expect("the worker waits");
        // The execution may have ended before it was stopped.
        let reports = scene.reports(2).await;
        assert_eq!((reports[0].exec, &reports[0].body), (exec, &ReportBody::Started));
        assert_eq!(reports[1].exec, exec);
    }
}

#[tokio::test(start_paused = true)]
async fn claim_reply_lost_is_repeated_with_same_exec() {
    let scene = ServiceFixture::new();
    scene.offer_as([1], LATER).await;
    let first = scene.queue.next_claim(scene.sample.run).await.expect("a claim");
    let exec = first.claim.exec;
    drop(first.reply);
    tokio::time::sleep(LEASE / 2).await;
    assert!(scene.heartbeat_entries().await[0].claiming);
    assert_eq!(scene.answer_claim(ClaimAnswer::Run).await.exec, exec);
    assert_eq!(scene.reports(2).await[1].exec, exec);
    scene.until_acknowledged().await;
}
