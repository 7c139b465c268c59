//! State directories that take no writes.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use rollout_base::shared_limit::LimitShares;
use rollout_base::supervise;
use tokio::time;

use super::{JOB, accepted, daemon, job, user};
use crate::daemon::{
    Daemon, DaemonError, HostedKind, HostedOutcome, HostedRun, HostedRunState, JobSubmission, Role,
    driver,
};

/// Makes checks of a directory by a write fail while everything else in it works: a directory is in the
/// place of their file.
pub(in crate::daemon) struct FailedChecks(PathBuf);

impl FailedChecks {
    pub(in crate::daemon) fn of(directory: &Path) -> Self {
        let path = directory.join(".write-check");
        fs::create_dir(&path).expect("made");
        Self(path)
    }

    pub(in crate::daemon) fn end(self) {
        fs::remove_dir(self.0).expect("removed");
    }
}

/// A directory with a file in its place: no file can be made or read below it.
pub(in crate::daemon) struct ReplacedDirectory {
    path: PathBuf,
    aside: PathBuf,
}

impl ReplacedDirectory {
    pub(in crate::daemon) fn replace(path: &Path) -> Self {
        let (path, aside) = (path.to_owned(), path.with_extension("aside"));
        fs::rename(&path, &aside).expect("moved");
        fs::write(&path, "no directory").expect("written");
        Self { path, aside }
    }

    pub(in crate::daemon) fn restore(self) {
        fs::remove_file(&self.path).expect("removed");
        fs::rename(&self.aside, &self.path).expect("moved back");
    }
}

/// A daemon with a run that has begun, and cannot begin again: its document is gone.
async fn begun(directory: &Path, kind: HostedKind) -> (Arc<Daemon>, Arc<HostedRun>) {
    let daemon = daemon(directory, 9);
    let submission = JobSubmission { kind, ..job(None, JOB) };
    let run = accepted(daemon.submit(&user("ada", Role::Submit), submission).await);
    fs::create_dir_all(run.directory()).expect("made");
    let document = directory.join("runs").join(format!("{}.yaml", run.id()));
    fs::remove_file(document).expect("removed");
    (daemon, run)
}

/// Runs a session of a run to its end.
async fn drive(daemon: &Daemon, run: &Arc<HostedRun>) {
    let (session, stops) = driver::session(run);
    driver::drive(daemon, run, session, stops).await;
}

#[tokio::test]
async fn failed_session_whose_end_cannot_be_noted_begins_again_when_writes_are_possible() {
    let directory = tempfile::tempdir().expect("a directory");
    let daemon = daemon(directory.path(), 9);
    let run = accepted(daemon.submit(&user("ada", Role::Submit), job(None, JOB)).await);
    // It has begun: its document was valid.
    fs::create_dir_all(run.directory()).expect("made");
    assert_eq!(daemon.check_ready(), Ok(()));
    let next = || daemon.table().next_to_start(LimitShares::new(1));
    let (session, stops) = driver::session(&run);
    run.set_session(Some(session.clone()));
    let records = ReplacedDirectory::replace(&directory.path().join("runs"));
    driver::drive(&daemon, &run, session, stops).await;
    run.set_session(None);
    assert_eq!(run.state(), HostedRunState::Failed);
    let failure = run.view().record.failure.expect("its user sees the cause");
    assert!(failure.is_temporary && !run.is_over(), "clients wait: {failure:?}");
    assert!(next().is_none(), "it would fail again at once");
    let fault = daemon.check_ready().expect_err("not ready");
    assert!(fault.starts_with("cannot write to the state directory: "), "{fault}");
    assert!(daemon.try_writes().await.is_err());
    assert_eq!(run.state(), HostedRunState::Failed);
    records.restore();
    daemon.try_writes().await.expect("writes are possible");
    assert_eq!((run.state(), run.is_unwritten()), (HostedRunState::Queued, false));
    assert_eq!(next().map(|next| next.id().clone()).as_ref(), Some(run.id()));
}

#[tokio::test]
async fn noted_failure_stays_after_a_check_of_the_directory() {
    let directory = tempfile::tempdir().expect("a directory");
    let (daemon, run) = begun(directory.path(), HostedKind::Job).await;
    drive(&daemon, &run).await;
    assert_eq!(daemon.try_writes().await, Ok(false));
    assert_eq!(run.state(), HostedRunState::Failed);
    assert_eq!(daemon.check_ready(), Ok(()));
}

#[tokio::test]
async fn session_is_shown_as_failed_when_its_directory_takes_no_writes_for_a_minute() {
    let directory = tempfile::tempdir().expect("a directory");
    let daemon = daemon(directory.path(), 9);
    let run = accepted(daemon.submit(&user("ada", Role::Submit), job(None, JOB)).await);
    let (session, _stops) = driver::session(&run);
    run.set_session(Some(session));
    assert_eq!(run.state(), HostedRunState::Starting);
    let jobs = ReplacedDirectory::replace(&directory.path().join("jobs"));
    time::pause();
    for seconds in [0, 1, 2, 4, 8, 10, 10] {
        time::advance(Duration::from_secs(seconds)).await;
        assert!(daemon.try_writes().await.is_err());
        assert_eq!(run.state(), HostedRunState::Starting, "the disk may take writes soon");
    }
    time::advance(Duration::from_secs(25)).await;
    assert!(daemon.try_writes().await.is_err());
    let view = run.view();
    assert_eq!((view.state, view.is_live), (HostedRunState::Failed, true));
    let failure = view.record.failure.expect("the cause");
    let expected = "cannot write to the state directory: Not a directory";
    assert!(failure.message.starts_with(expected) && failure.is_temporary, "{failure:?}");
    assert!(!run.is_over(), "more events may come");
    jobs.restore();
    daemon.try_writes().await.expect("writes are possible");
    assert_eq!((run.state(), run.view().record.failure), (HostedRunState::Starting, None));
}

#[tokio::test]
async fn session_that_failed_with_its_disk_begins_again_although_its_end_was_noted() {
    let directory = tempfile::tempdir().expect("a directory");
    let (daemon, run) = begun(directory.path(), HostedKind::Job).await;
    let checks = FailedChecks::of(&directory.path().join("jobs"));
    drive(&daemon, &run).await;
    let record = directory.path().join("runs").join(format!("{}.json", run.id()));
    let is_noted = || fs::read_to_string(&record).expect("a record").contains("\"failure\":");
    assert!(is_noted() && run.state() == HostedRunState::Failed);
    let failure = run.view().record.failure.expect("the cause");
    assert_eq!(
        failure.message,
        "cannot write to the state directory: Is a directory (os error 21)"
    );
    assert!(failure.is_temporary && !run.is_over(), "clients wait: {failure:?}");
    assert!(daemon.check_ready().is_err() && daemon.try_writes().await.is_err());
    assert_eq!(run.state(), HostedRunState::Failed, "it would fail again");
    checks.end();
    assert_eq!(daemon.try_writes().await, Ok(true));
    assert!(!is_noted() && run.state() == HostedRunState::Queued);
}

#[tokio::test(start_paused = true)]
async fn session_whose_failure_is_noted_after_the_end_of_the_fault_begins_again() {
    let directory = tempfile::tempdir().expect("a directory");
    let (daemon, run) = begun(directory.path(), HostedKind::Job).await;
    let checks = FailedChecks::of(&directory.path().join("jobs"));
    drive(&daemon, &run).await;
    checks.end();
    // As if a check had passed before the failure was noted.
    assert!(daemon.writes.recovered(daemon.writes.failures()));
    let _before = daemon.wake.notified().now_or_never();
    let _watching = supervise::spawn("watch", Arc::clone(&daemon).watch_writes());
    time::timeout(Duration::from_secs(60), daemon.wake.notified()).await.expect("in time");
    assert_eq!(run.state(), HostedRunState::Queued);
}

#[tokio::test]
async fn session_that_fails_soon_after_the_end_of_a_fault_begins_again() {
    let directory = tempfile::tempdir().expect("a directory");
    let (daemon, run) = begun(directory.path(), HostedKind::Job).await;
    let checks = FailedChecks::of(&directory.path().join("jobs"));
    assert!(daemon.try_writes().await.is_err());
    checks.end();
    drive(&daemon, &run).await;
    assert!(run.view().record.failure.is_some_and(|failure| failure.is_temporary));
    assert_eq!(daemon.try_writes().await, Ok(true));
    assert_eq!(run.state(), HostedRunState::Queued);
}

#[tokio::test]
async fn session_that_fails_for_another_cause_soon_after_a_fault_says_so_and_stays_failed() {
    let directory = tempfile::tempdir().expect("a directory");
    let (daemon, run) = begun(directory.path(), HostedKind::Job).await;
    let document = directory.path().join("runs").join(format!("{}.yaml", run.id()));
    fs::write(document, "unknown_key: 1\n").expect("written");
    let checks = FailedChecks::of(&directory.path().join("jobs"));
    assert!(daemon.try_writes().await.is_err());
    checks.end();
    drive(&daemon, &run).await;
    let failure = run.view().record.failure.expect("the cause");
    assert!(!failure.is_temporary && !failure.message.contains("state directory"), "{failure:?}");
    let noted = failure.details.last().is_some_and(|last| last.contains("state directory"));
    assert!(noted, "{failure:?}");
    assert_eq!(daemon.try_writes().await, Ok(false));
    assert_eq!(run.state(), HostedRunState::Failed);
}

#[tokio::test]
async fn run_that_fails_with_its_disk_again_and_again_stays_failed_until_its_user_continues_it() {
    let directory = tempfile::tempdir().expect("a directory");
    let (daemon, run) = begun(directory.path(), HostedKind::Job).await;
    let fail = async || {
        let checks = FailedChecks::of(&directory.path().join("jobs"));
        drive(&daemon, &run).await;
        checks.end();
        daemon.try_writes().await.expect("writes are possible");
        run.state()
    };
    for _retry in 0..3 {
        assert_eq!(fail().await, HostedRunState::Queued);
    }
    assert_eq!(fail().await, HostedRunState::Failed);
    let failure = run.view().record.failure.expect("the cause");
    assert!(!failure.is_temporary && run.is_over(), "{failure:?}");
    assert!(failure.message.starts_with("cannot write to the state directory: "), "{failure:?}");
    assert!(failure.hints[0].starts_with("3 retries gave no result"), "{failure:?}");
    daemon.resume(&run).await.expect("accepted");
    assert_eq!(fail().await, HostedRunState::Queued);
}

#[tokio::test]
async fn document_that_was_read_from_a_failing_disk_is_not_invalid() {
    let directory = tempfile::tempdir().expect("a directory");
    let (daemon, run) = begun(directory.path(), HostedKind::Job).await;
    // No session of it has begun.
    fs::remove_dir(run.directory()).expect("removed");
    let checks = FailedChecks::of(&directory.path().join("jobs"));
    drive(&daemon, &run).await;
    let record = run.view().record;
    assert_eq!((run.state(), record.end), (HostedRunState::Failed, None));
    checks.end();
    daemon.try_writes().await.expect("writes are possible");
    assert_eq!(run.state(), HostedRunState::Queued);
    drive(&daemon, &run).await;
    let end = run.view().record.end.expect("the disk is good, and the document is not");
    assert_eq!(end.outcome, HostedOutcome::Failed);
}

#[tokio::test]
async fn cancelled_run_whose_directory_cannot_be_looked_at_has_not_ended() {
    let directory = tempfile::tempdir().expect("a directory");
    let (daemon, run) = begun(directory.path(), HostedKind::Job).await;
    // A file is in the place of the parent.
    let jobs = ReplacedDirectory::replace(&directory.path().join("jobs"));
    daemon.cancel(&run).await.expect("accepted");
    jobs.restore();
    assert_eq!((run.state(), run.view().record.end), (HostedRunState::Cancelling, None));
}

#[tokio::test]
async fn executor_whose_session_failed_with_the_disk_waits_for_its_start() {
    let directory = tempfile::tempdir().expect("a directory");
    let (daemon, run) = begun(directory.path(), HostedKind::Executor).await;
    let _checks = FailedChecks::of(&directory.path().join("jobs"));
    drive(&daemon, &run).await;
    assert_eq!(run.state(), HostedRunState::Failed);
    assert!(matches!(daemon.executor(&run), Err(DaemonError::NotOpen)));
}
