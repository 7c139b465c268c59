//! Paused runs and the limits of runs.

use std::sync::Arc;

use rollout_base::shared_limit::LimitShares;

use super::{JOB, accepted, daemon, job, user};
use crate::daemon::record::WantedState;
use crate::daemon::{
    Daemon, DaemonError, HostedRun, HostedRunId, HostedRunState, Role, RunFailure, driver,
};

/// Gives a run a session, as its start does.
fn begin(run: &HostedRun) {
    let (session, _stops) = driver::session(run);
    run.set_session(Some(session));
}

/// The run that starts or continues next.
fn next(daemon: &Daemon, max_running: u64) -> Option<Arc<HostedRun>> {
    daemon.table().next_to_start(LimitShares::new(max_running))
}

fn next_id(daemon: &Daemon) -> Option<HostedRunId> {
    next(daemon, 1).map(|run| run.id().clone())
}

#[tokio::test]
async fn runs_that_a_user_pauses_leave_room_for_those_of_others() {
    let directory = tempfile::tempdir().expect("a directory");
    let daemon = daemon(directory.path(), 8);
    let ada = user("ada", Role::Submit);
    let mut accepted_runs = 0;
    let refused = loop {
        match daemon.submit(&ada, job(None, JOB)).await {
            Err(refused) => break refused,
            submitted => daemon.pause(&accepted(submitted)).await.expect("paused"),
        }
        accepted_runs += 1;
        assert!(accepted_runs < 8, "a user who pauses takes all");
    };
    assert!(matches!(refused, DaemonError::Busy { .. }), "{refused}");
    for other in [user("bob", Role::Submit), user("root", Role::Admin)] {
        accepted(daemon.submit(&other, job(None, JOB)).await);
    }
}

#[tokio::test]
async fn run_whose_session_failed_takes_room_until_it_is_deleted() {
    let directory = tempfile::tempdir().expect("a directory");
    let daemon = daemon(directory.path(), 1);
    let ada = user("ada", Role::Submit);
    let run = accepted(daemon.submit(&ada, job(None, JOB)).await);
    let failed = run.update(&daemon.dir, |record| {
        let (message, details, hints) = ("no disk".to_owned(), Vec::new(), Vec::new());
        let is_temporary = false;
        let failure = RunFailure { code: 1, message, details, hints, is_temporary };
        record.failure = Some(failure);
        Ok::<_, DaemonError>(())
    });
    failed.await.expect("written");
    let refused = daemon.submit(&ada, job(None, JOB)).await;
    assert!(matches!(refused, Err(DaemonError::Busy { .. })));
    daemon.delete(&run).await.expect("deleted");
    accepted(daemon.submit(&ada, job(None, JOB)).await);
}

#[tokio::test]
async fn paused_run_continues_when_it_has_a_place_among_those_that_run() {
    let directory = tempfile::tempdir().expect("a directory");
    let daemon = daemon(directory.path(), 9);
    let ada = user("ada", Role::Submit);
    let first = accepted(daemon.submit(&ada, job(None, JOB)).await);
    assert_eq!(next_id(&daemon).as_ref(), Some(first.id()));
    begin(&first);
    daemon.pause(&first).await.expect("paused");
    let second = accepted(daemon.submit(&ada, job(None, JOB)).await);
    assert_eq!(next_id(&daemon).as_ref(), Some(second.id()));
    begin(&second);
    daemon.resume(&first).await.expect("accepted");
    let told = |run: &HostedRun| *run.wanted().borrow();
    assert_eq!(next_id(&daemon), None, "another one runs");
    assert_eq!((first.state(), told(&first)), (HostedRunState::Queued, WantedState::Paused));
    daemon.pause(&second).await.expect("paused");
    assert_eq!(next_id(&daemon), None, "the first one continues, and none starts");
    assert_eq!((first.state(), told(&first)), (HostedRunState::Starting, WantedState::Running));
    assert_eq!(daemon.table().running().count(), 1);
    daemon.cancel(&second).await.expect("cancelled");
    assert_eq!((next_id(&daemon), told(&second)), (None, WantedState::Cancelled));
    daemon.pause(&first).await.expect("paused");
    daemon.table().continue_now(&first, LimitShares::new(1));
    assert!(!first.has_place(), "no `continue` came");
    daemon.resume(&first).await.expect("accepted");
    daemon.table().continue_now(&first, LimitShares::new(1));
    assert!(first.has_place(), "there is one at once");
    first.set_session(None);
    assert_eq!((first.state(), told(&first)), (HostedRunState::Queued, WantedState::Running));
}

#[tokio::test]
async fn paused_sessions_of_a_user_are_few_and_leave_starts_for_others() {
    let directory = tempfile::tempdir().expect("a directory");
    let daemon = daemon(directory.path(), 64);
    let [ada, bob] = ["ada", "bob"].map(|name| user(name, Role::Submit));
    for _ in 0..32 {
        accepted(daemon.submit(&ada, job(None, JOB)).await);
    }
    let mut sessions = 0;
    while let Some(run) = next(&daemon, 4) {
        begin(&run);
        daemon.pause(&run).await.expect("paused");
        sessions += 1;
    }
    assert!((4..=10).contains(&sessions), "{sessions}");
    for other in [&bob, &user("root", Role::Admin)] {
        let run = accepted(daemon.submit(other, job(None, JOB)).await);
        assert_eq!(next(&daemon, 4).map(|run| run.id().clone()).as_ref(), Some(run.id()));
        begin(&run);
    }
}
