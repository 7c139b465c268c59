//! Turns of work that goes on after its request, or its session, has gone.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::{Arc, mpsc as blocking_mpsc};
use std::time::Duration;

use futures_util::FutureExt as _;
use rollout_protocol::digest::Digest;
use rollout_store::fs::FsStore;
use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};
use tokio::sync::mpsc;

use super::{JOB, accepted, daemon, job, user};
use crate::daemon::driver::{PrepareFault, SessionEnd, in_turn, prepared_unless_ended};
use crate::daemon::submit::CONCURRENT_CHECKS;
use crate::daemon::{HostedRun, ItemQuery, Role};
use crate::results::export::ExportFormat;

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

/// Gives a run a directory whose manifest is a pipe.
async fn with_pipe(run: &HostedRun) -> PathBuf {
    fs::create_dir_all(run.directory()).expect("made");
    fs::write(run.directory().join("plan.json"), "{}").expect("written");
    let jobs = run.directory().parent().expect("a parent");
    FsStore::open(jobs.join(".rollout/blobs")).await.expect("a store");
    let pipe = run.directory().join("manifest.json");
    mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a pipe");
    pipe
}

/// The end for writing of a pipe that is being read; the reading lasts until it is closed.
fn being_read(pipe: &Path) -> Option<File> {
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).expect("small");
    OpenOptions::new().write(true).custom_flags(flags).open(pipe).ok()
}

#[tokio::test]
async fn reading_whose_request_has_gone_keeps_its_turn() {
    let directory = tempfile::tempdir().expect("a directory");
    let daemon = daemon(directory.path(), 9);
    let ada = user("ada", Role::Submit);
    let run = accepted(daemon.submit(&ada, job(None, JOB)).await);
    let pipe = with_pipe(&run).await;
    for asked in ["items", "item", "blob", "events", "export"] {
        let limit = if asked == "export" { &daemon.exports } else { &daemon.reads };
        let reading = {
            let mut request = pin!(async {
                match asked {
                    "items" => drop(daemon.items(&ada, &run, ItemQuery::default()).await),
                    "item" => drop(daemon.item(&ada, &run, "x").await),
                    "blob" => drop(daemon.blob(&ada, &run, &Digest::sha256(b"x")).await),
                    "events" => drop(daemon.events(&ada.limit_user(), &run, 0).await),
                    _ => drop(daemon.export(&ada, &run, ExportFormat::Jsonl, 1.0).await),
                }
            });
            let look = || {
                assert!(request.as_mut().now_or_never().is_none(), "{asked} has ended");
                being_read(&pipe)
            };
            eventually(look).await
        };
        assert_eq!(limit.counts().held, 1, "{asked}");
        drop(reading);
        eventually(|| (limit.counts().held == 0).then_some(())).await;
    }
}

#[tokio::test]
async fn submission_whose_request_goes_before_its_check_leaves_no_work() {
    let directory = tempfile::tempdir().expect("a directory");
    let daemon = daemon(directory.path(), 9);
    let root = user("root", Role::Admin).limit_user();
    let checks = daemon.checks.try_acquire(&root, CONCURRENT_CHECKS).expect("all of them");
    let ada = user("ada", Role::Submit);
    for _ in 0..9 {
        assert!(daemon.submit(&ada, job(None, JOB)).now_or_never().is_none());
    }
    assert_eq!(daemon.requests.lock().expect("no panic").len(), 0);
    drop(checks);
    assert_eq!(daemon.checks.counts().held, 0);
    let _run = accepted(daemon.submit(&ada, job(None, JOB)).await);
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
