//! State directories that take no writes.

use std::fs;
use std::path::{Path, PathBuf};

use rollout_worker::shared_limit::LimitShares;

use super::{JOB, accepted, daemon, job, user};
use crate::daemon::{HostedRunState, Role, driver};

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
    assert!(run.view().record.failure.is_some() && run.is_over(), "its user sees the cause");
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
    let daemon = daemon(directory.path(), 9);
    let run = accepted(daemon.submit(&user("ada", Role::Submit), job(None, JOB)).await);
    fs::create_dir_all(run.directory()).expect("made");
    let (session, stops) = driver::session(&run);
    let document = directory.path().join("runs").join(format!("{}.yaml", run.id()));
    fs::remove_file(document).expect("removed");
    driver::drive(&daemon, &run, session, stops).await;
    daemon.try_writes().await.expect("writes are possible");
    assert_eq!(run.state(), HostedRunState::Failed);
    assert_eq!(daemon.check_ready(), Ok(()));
}

#[tokio::test]
async fn session_is_shown_as_failed_while_its_directory_takes_no_writes() {
    let directory = tempfile::tempdir().expect("a directory");
    let daemon = daemon(directory.path(), 9);
    let run = accepted(daemon.submit(&user("ada", Role::Submit), job(None, JOB)).await);
    let (session, _stops) = driver::session(&run);
    run.set_session(Some(session));
    assert_eq!(run.state(), HostedRunState::Starting);
    let jobs = ReplacedDirectory::replace(&directory.path().join("jobs"));
    assert!(daemon.try_writes().await.is_err());
    assert_eq!(run.state(), HostedRunState::Starting, "one check may fail");
    assert!(daemon.try_writes().await.is_err());
    let view = run.view();
    assert_eq!((view.state, view.is_live), (HostedRunState::Failed, true));
    let failure = view.record.failure.expect("the cause");
    let expected = "cannot write to the state directory: Not a directory";
    assert!(failure.message.starts_with(expected), "{failure:?}");
    assert!(!run.is_over(), "more events may come");
    jobs.restore();
    daemon.try_writes().await.expect("writes are possible");
    assert_eq!((run.state(), run.view().record.failure), (HostedRunState::Starting, None));
}

#[tokio::test]
async fn session_that_failed_with_its_disk_begins_again_although_its_end_was_noted() {
    let directory = tempfile::tempdir().expect("a directory");
    let daemon = daemon(directory.path(), 9);
    let run = accepted(daemon.submit(&user("ada", Role::Submit), job(None, JOB)).await);
    fs::create_dir_all(run.directory()).expect("made");
    let document = directory.path().join("runs").join(format!("{}.yaml", run.id()));
    fs::remove_file(document).expect("removed");
    let checks = FailedChecks::of(&directory.path().join("jobs"));
    let (session, stops) = driver::session(&run);
    driver::drive(&daemon, &run, session, stops).await;
    let record = directory.path().join("runs").join(format!("{}.json", run.id()));
    let is_noted = || fs::read_to_string(&record).expect("a record").contains("\"failure\":");
    assert!(is_noted() && run.state() == HostedRunState::Failed);
    assert!(daemon.check_ready().is_err() && daemon.try_writes().await.is_err());
    assert_eq!(run.state(), HostedRunState::Failed, "it would fail again");
    checks.end();
    daemon.try_writes().await.expect("writes are possible");
    assert!(!is_noted() && run.state() == HostedRunState::Queued);
}
