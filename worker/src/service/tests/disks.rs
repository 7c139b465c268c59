//! Tests of workers whose disk fails.

use std::path::PathBuf;
use std::sync::mpsc;
use std::thread::JoinHandle;

use rollout_protocol::phase::Phase;
use rollout_protocol::record::{ItemOutcome, LostReason};
use rollout_protocol::wire::report::ReportBody;
use rustix::fs::{CWD, FileType, Mode, mknodat};
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

/// A coordinator stops all executions at once.
async fn kill_all(scene: &ServiceFixture) {
    let begun = scene.runner.begun.lock().expect("not poisoned").clone();
    for (_, exec) in begun {
        let (run, level) = (scene.sample.run, StopLevel::Kill);
        let stop = ControlMessage::StopExecution { run, exec, level };
        scene.queue.control(stop).await.expect("sent");
    }
}

/// Why and in which phase the next report says that an execution was lost.
async fn next_loss(scene: &ServiceFixture) -> (LostReason, Option<Phase>) {
    let report = scene.report().await;
    match report.body {
        ReportBody::Lost { reason, phase, .. } => (reason, phase),
        _ => panic!("not given back: {report:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn execution_waits_for_a_silent_disk_as_long_as_it_ran_before_others_may_have_it() {
    let scene = ServiceFixture::new();
    for (attempt, running) in [(1, 1), (2, 2)] {
        scene.script(attempt, ScriptedAct::Sleep(LONG));
        scene.offer([attempt]).await;
        scene.until_running(running).await;
        tokio::time::sleep(60 * SECOND * (2 - attempt)).await;
    }
    let begun = scene.runner.begun.lock().expect("not poisoned").clone();
    let (old, young) = (begun[0].1, begun[1].1);
    assert_eq!(scene.last_heartbeat().await.returnable, []);
    scene.runner.disks.record_silence();
    for (seconds, mut expected) in [(8, vec![]), (5, vec![young]), (60, vec![old, young])] {
        tokio::time::sleep(seconds * SECOND).await;
        let mut returnable = scene.last_heartbeat().await.returnable;
        returnable.sort_unstable();
        expected.sort_unstable();
        assert_eq!(returnable, expected, "after {seconds} s");
    }
}

#[tokio::test(start_paused = true)]
async fn execution_that_cannot_end_at_once_on_a_silent_disk_is_given_back() {
    let scene = ServiceFixture::new();
    // It does not end when it is stopped.
    scene.script(1, ScriptedAct::Sleep(LONG));
    scene.offer([1]).await;
    assert_eq!(scene.report().await.body, ReportBody::Started);
    scene.runner.disks.record_silence();
    let began = Instant::now();
    kill_all(&scene).await;
    assert_eq!(next_loss(&scene).await, (LostReason::Stopped, Some(Phase::AgentExecution)));
    assert!(began.elapsed() >= 5 * SECOND && began.elapsed() < 8 * SECOND, "{began:?}");
    scene.until("it is not held", async || scene.heartbeat_entries().await.is_empty()).await;
    assert_eq!(scene.read(1, LEASE).await, [], "nothing more is said of it");
}

/// The disk of a worker, which gives no answer to a check until this is dropped.
struct HungDisk {
    answer: Option<mpsc::Sender<()>>,
    answering: Option<JoinHandle<()>>,
}

impl HungDisk {
    async fn of(scene: &ServiceFixture) -> Self {
        let pipe = scene.dir.path().join(".write-check");
        let deadline = std::time::Instant::now() + 10 * SECOND;
        // Opening it waits for a reader. A check that runs has a file there for a moment.
        while mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).is_err() {
            assert!(std::time::Instant::now() < deadline, "there is a file");
            tokio::task::yield_now().await;
        }
        let (answer, may_answer) = mpsc::channel::<()>();
        let answering = supervise::thread("disk", move || {
            may_answer.recv().ok();
            std::fs::read(pipe).ok();
        });
        Self { answer: Some(answer), answering: Some(answering.expect("a thread")) }
    }
}

impl Drop for HungDisk {
    fn drop(&mut self) {
        drop(self.answer.take());
        let answered = self.answering.take().map(JoinHandle::join);
        assert!(std::thread::panicking() || answered.is_some_and(|ended| ended.is_ok()));
    }
}

/// Lets time pass while a blocking thread keeps it from passing by itself.
async fn pass(time: Duration) {
    let step = Duration::from_millis(250);
    for _ in 0..time.as_millis() / step.as_millis() {
        tokio::time::advance(step).await;
        for _ in 0..50 {
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn heartbeats_of_a_worker_on_a_hung_disk_go_on_and_offer_what_it_holds() {
    let scene = checked_worker();
    scene.script(1, ScriptedAct::Sleep(LONG));
    scene.offer([1]).await;
    assert_eq!(scene.report().await.body, ReportBody::Started);
    let exec = scene.runner.begun.lock().expect("not poisoned")[0].1;
    let hung = HungDisk::of(&scene).await;
    pass(30 * SECOND).await;
    let seen = scene.queue.heartbeats().await.expect("listed").remove(0);
    assert!(seen.age < 2 * SECOND, "{:?}", seen.age);
    let heartbeat = seen.heartbeat;
    assert!(heartbeat.disk_fault.is_some_and(|fault| fault.contains("no answer")));
    assert_eq!((heartbeat.free, heartbeat.returnable), (0, vec![exec]));
    kill_all(&scene).await;
    pass(8 * SECOND).await;
    assert_eq!(next_loss(&scene).await, (LostReason::Stopped, Some(Phase::AgentExecution)));
    pass(SECOND).await;
    assert_eq!(scene.last_heartbeat().await.returnable, [], "it is given back");
    drop(hung);
}

#[tokio::test(start_paused = true)]
async fn result_that_waits_for_its_report_alone_is_not_offered_to_others() {
    let scene = ServiceFixture::new();
    scene.script(1, ScriptedAct::Produce(2 * SECOND));
    scene.offer([1]).await;
    assert_eq!(scene.report().await.body, ReportBody::Started);
    // Its report is not read, so it is not acknowledged.
    tokio::time::sleep(30 * SECOND).await;
    scene.runner.disks.record_silence();
    tokio::time::sleep(60 * SECOND).await;
    let heartbeat = scene.last_heartbeat().await;
    assert_eq!((heartbeat.executions.len(), heartbeat.returnable), (1, vec![]));
}

#[tokio::test(start_paused = true)]
async fn result_that_a_silent_disk_keeps_from_being_stored_is_given_back() {
    let scene = ServiceFixture::new();
    scene.script(1, ScriptedAct::Produce(2 * SECOND));
    scene.offer([1]).await;
    assert_eq!(scene.report().await.body, ReportBody::Started);
    scene.store.set_down(true);
    scene.until("it is spooled", async || scene.is_only_spooled()).await;
    scene.runner.disks.record_silence();
    kill_all(&scene).await;
    let (reason, _) = next_loss(&scene).await;
    assert_eq!(reason, LostReason::Stopped);
    scene.until("nothing is left", async || scene.files().is_empty()).await;
    scene.store.set_down(false);
    assert_eq!(scene.read(1, LEASE).await, [], "nothing more is said of it");
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
