//! Turns of work that goes on after its request, or its session, has gone.

use std::pin::pin;
use std::sync::{Arc, mpsc as blocking_mpsc};
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::sync::mpsc;

use super::{JOB, accepted, daemon, job, user};
use crate::daemon::driver::{PrepareFault, SessionEnd, in_turn, prepared_unless_ended};
use crate::daemon::Role;

/// Looks until it finds something.
async fn eventually<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let looking = async {
        loop {
            if let Some(found) = look() {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), looking).await.expect("in time")
}

#[tokio::test]
async fn preparation_that_goes_on_keeps_its_turn_and_is_told_to_end() {
    let directory = tempfile::tempdir().expect("a directory");
    let daemon = daemon(directory.path(), 9);
    let ada = user("ada", Role::Submit).limit_user();
    let (release, released) = blocking_mpsc::channel::<()>();
    let (tell, told) = blocking_mpsc::channel();
    {
        let mut preparing = pin!(in_turn(&daemon, &ada, move |cancelled| {
            let _dropped = released.recv();
            tell.send(cancelled.has_changed().is_err()).expect("a test");
            Ok::<_, PrepareFault>(())
        }));
        assert!(preparing.as_mut().now_or_never().is_none());
    }
    assert_eq!(daemon.preparations.counts().held, 1);
    drop(release);
    eventually(|| (daemon.preparations.counts().held == 0).then_some(())).await;
    assert_eq!(told.recv(), Ok(true));
}

#[tokio::test]
async fn cancelled_run_that_has_not_begun_ends_its_preparation() {
    let directory = tempfile::tempdir().expect("a directory");
    let daemon = daemon(directory.path(), 9);
    let run = accepted(daemon.submit(&user("ada", Role::Submit), job(None, JOB)).await);
    let (_stop, mut stops) = mpsc::channel(1);
    let mut preparing = pin!(async {
        let hanging = std::future::pending::<Result<(), PrepareFault>>();
        prepared_unless_ended(&run, &mut stops, hanging).await
    });
    assert!(preparing.as_mut().now_or_never().is_none());
    daemon.cancel(&run).await.expect("cancelled");
    let ended = tokio::time::timeout(Duration::from_secs(60), preparing).await.expect("in time");
    assert!(matches!(ended, Err(SessionEnd::NeverStarted)));
}

#[tokio::test(start_paused = true)]
async fn stop_waits_for_preparations_that_end_and_not_for_one_that_hangs() {
    let root = user("root", Role::Admin).limit_user();
    for hangs in [false, true] {
        let directory = tempfile::tempdir().expect("a directory");
        let daemon = daemon(directory.path(), 9);
        let place = daemon.preparations.try_acquire(&root, 1).expect("a place");
        // The owner of the stops has gone.
        let (_, stops) = mpsc::channel(1);
        let mut running = pin!(Arc::clone(&daemon).run(stops));
        for _ in 0..9 {
            assert!(running.as_mut().now_or_never().is_none());
            tokio::task::yield_now().await;
        }
        let _hanging = hangs.then_some(place);
        tokio::time::timeout(Duration::from_secs(60), running).await.expect("in time");
    }
}
