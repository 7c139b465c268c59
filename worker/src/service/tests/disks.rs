//! Tests of workers whose disk fails.

use std::path::PathBuf;

use rollout_protocol::phase::Phase;
use rollout_protocol::record::{ItemOutcome, LostReason};
use rollout_protocol::wire::report::ReportBody;
use tokio::time::Instant;

use super::harness::{LEASE, LONG, ScriptedAct, ServiceFixture, ServiceSetup, result};
use super::*;

fn checked_worker() -> ServiceFixture {
    ServiceFixture::with_setup(ServiceSetup { checks_writes: true, ..ServiceSetup::default() })
}

/// Moves the directory of a worker away, and back when it is dropped.
struct MovedDirectory {
    path: PathBuf,
    aside: PathBuf,
}

impl MovedDirectory {
    fn of(scene: &ServiceFixture) -> Self {
        let path = scene.dir.path().to_owned();
        let aside = path.with_extension("aside");
        std::fs::rename(&path, &aside).expect("moved");
        Self { path, aside }
    }
}

impl Drop for MovedDirectory {
    fn drop(&mut self) {
        std::fs::rename(&self.aside, &self.path).expect("moved back");
    }
}

#[tokio::test(start_paused = true)]
async fn worker_whose_directory_is_gone_takes_no_work_and_says_so() {
    let scene = checked_worker();
    assert_eq!(scene.last_heartbeat().await.disk_fault, None);
    let moved = MovedDirectory::of(&scene);
    scene.until("it is seen", async || scene.last_heartbeat().await.disk_fault.is_some()).await;
    // The last pull may still wait.
    tokio::time::sleep(5 * SECOND).await;
    scene.offer([1, 2]).await;
    tokio::time::sleep(LEASE).await;
    assert_eq!(scene.begun(), Vec::<u32>::new());
    let heartbeat = scene.last_heartbeat().await;
    let fault = heartbeat.disk_fault.expect("a fault");
    assert!(fault.contains("No such file or directory"), "{fault}");
    assert_eq!((heartbeat.free, heartbeat.low_disk), (0, true), "as earlier coordinators know it");
    drop(moved);
    scene.reports(2).await;
    scene.until("it is well", async || scene.last_heartbeat().await.disk_fault.is_none()).await;
}

#[tokio::test(start_paused = true)]
async fn work_that_arrives_on_a_disk_that_has_failed_is_given_back() {
    let scene = checked_worker();
    scene.until("it is checked", async || scene.runner.disks.was_well_lately()).await;
    scene.until("the last check is old", async || !scene.runner.disks.was_well_lately()).await;
    let moved = MovedDirectory::of(&scene);
    scene.offer([1]).await;
    tokio::time::sleep(SECOND / 2).await;
    assert!(scene.runner.disks.last_failed().is_some(), "it was checked for this work");
    assert_eq!((scene.begun(), scene.queued().await), (Vec::new(), 1));
    scene.until("it is seen", async || scene.last_heartbeat().await.disk_fault.is_some()).await;
    drop(moved);
}

#[tokio::test(start_paused = true)]
async fn execution_on_failed_disk_is_given_back_after_a_while() {
    let scene = checked_worker();
    scene.script(1, ScriptedAct::UntilStopped);
    scene.offer([1]).await;
    assert_eq!(scene.report().await.body, ReportBody::Started);
    let began = Instant::now();
    let moved = MovedDirectory::of(&scene);
    let given_back = scene.report().await;
    let ReportBody::Lost { reason, phase, .. } = given_back.body else {
        panic!("not given back: {given_back:?}")
    };
    assert_eq!((reason, phase), (LostReason::Stopped, Some(Phase::AgentExecution)));
    assert!(began.elapsed() >= 30 * SECOND && began.elapsed() < LEASE, "{:?}", began.elapsed());
    drop(moved);
}

#[tokio::test(start_paused = true)]
async fn execution_that_a_silent_disk_keeps_from_ending_is_given_back_and_keeps_no_worker() {
    let scene = ServiceFixture::new();
    // It does not end when it is stopped.
    scene.script(1, ScriptedAct::Sleep(LONG));
    scene.offer([1]).await;
    assert_eq!(scene.report().await.body, ReportBody::Started);
    let began = Instant::now();
    scene.runner.disks.record_silence();
    let given_back = scene.report().await;
    let ReportBody::Lost { reason, .. } = given_back.body else {
        panic!("not given back: {given_back:?}")
    };
    assert_eq!(reason, LostReason::Stopped);
    let minutes = began.elapsed().as_secs() / 60;
    assert!((5..8).contains(&minutes), "{minutes}");
    scene.until("it is not held", async || scene.heartbeat_entries().await.is_empty()).await;
    assert_eq!(scene.begun(), [1]);
    scene.stop.send_replace(ShutdownLevel::Finish);
    let ended = tokio::time::timeout(60 * SECOND, scene.ended()).await;
    assert_eq!(ended.expect("the worker ends").0.unreported, 0);
}

#[tokio::test(start_paused = true)]
async fn execution_on_a_full_disk_is_given_back_once_another_disk_is_silent_for_minutes() {
    let scene = ServiceFixture::new();
    scene.script(1, ScriptedAct::UntilStopped);
    scene.offer([1]).await;
    assert_eq!(scene.report().await.body, ReportBody::Started);
    scene.runner.disks.record_shortage();
    tokio::time::sleep(600 * SECOND).await;
    assert_eq!(scene.heartbeat_entries().await.len(), 1, "a full disk ends nothing");
    let began = Instant::now();
    scene.runner.disks.record_silence_of("/silent".into());
    let given_back = scene.report().await;
    let ReportBody::Lost { reason, .. } = given_back.body else {
        panic!("not given back: {given_back:?}")
    };
    assert_eq!(reason, LostReason::Stopped);
    let minutes = began.elapsed().as_secs() / 60;
    assert_eq!(minutes, 5);
}

#[tokio::test(start_paused = true)]
async fn result_that_cannot_be_spooled_is_stored_from_where_it_is() {
    let scene = ServiceFixture::new();
    scene.script(1, ScriptedAct::Produce(2 * SECOND));
    scene.offer([1]).await;
    assert_eq!(scene.report().await.body, ReportBody::Started);
    std::fs::write(scene.dir.path().join("spool"), "no directory").expect("written");
    let began = Instant::now();
    let report = scene.report().await;
    let body = result(&report);
    assert_eq!(body.verdict.outcome, ItemOutcome::Completed);
    let record = body.record.as_ref().expect("a record");
    assert!(scene.store.inner().text(record).contains("out.txt"));
    assert!(began.elapsed() >= 30 * SECOND && began.elapsed() < LEASE, "{:?}", began.elapsed());
    scene.until("nothing is left", async || scene.files().is_empty()).await;
}

#[tokio::test(start_paused = true)]
async fn result_whose_files_are_gone_is_an_infrastructure_failure() {
    let scene = ServiceFixture::new();
    scene.script(1, ScriptedAct::Produce(2 * SECOND));
    scene.offer([1]).await;
    assert_eq!(scene.report().await.body, ReportBody::Started);
    let moved = MovedDirectory::of(&scene);
    let report = scene.report().await;
    let error = result(&report).verdict.error.as_ref().expect("an error");
    assert_eq!((&error.code, error.is_retryable()), (&ErrorCode::DISK_FAILED, true));
    assert!(error.message.contains("No such file or directory"), "{error}");
    drop(moved);
}
