//! Tests of two processes with one directory.

use std::time::{Duration, Instant};

use rollout_protocol::Timestamp;
use rollout_protocol::event::TakeoverReason;

use super::super::directory::{Contender, DirectoryLock, LockAttempt, UNWRITABLE_LIMIT, is_held};
use super::super::lock_file::LockFile;
use super::super::{LockError, LockLostError, LockOwner, LockWaitPolicy};
use super::{dead_owner, remote_owner};
use crate::core::Takeover;
use crate::journal::RunLayout;

/// Long enough for two polls, short enough for a test.
const STALE: Duration = Duration::from_millis(50);

const WAIT: LockWaitPolicy = LockWaitPolicy { stale: STALE, force: false, wait: true, hung: true };

fn layout() -> (tempfile::TempDir, RunLayout) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let layout = RunLayout::new(directory.path());
    (directory, layout)
}

fn contender(layout: &RunLayout, local: bool) -> Contender {
    let mut contender = Contender::new(layout).expect("a lock file");
    contender.set_local(local);
    contender
}

/// Tries until the attempt is decided.
fn acquire_when_decided(
    mut contender: Contender,
    wait_policy: LockWaitPolicy,
) -> Result<(DirectoryLock, Option<Takeover>), LockError> {
    let deadline = Instant::now() + Duration::from_secs(120);
    loop {
        match contender.attempt(&wait_policy)? {
            LockAttempt::Taken(takeover) => return Ok((contender.into_lock()?, takeover)),
            LockAttempt::Wait => assert!(Instant::now() < deadline, "not decided"),
        }
        std::thread::yield_now();
    }
}

/// Takes a free lock. A released lock may live on for a moment in a child that another test starts.
fn take_from(
    layout: &RunLayout,
    local: bool,
    wait_policy: LockWaitPolicy,
) -> (DirectoryLock, Option<TakeoverReason>) {
    let deadline = Instant::now() + Duration::from_secs(120);
    loop {
        match acquire_when_decided(contender(layout, local), wait_policy) {
            Ok((lock, takeover)) => return (lock, takeover.map(|takeover| takeover.reason)),
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
    }
}

fn take(
    layout: &RunLayout,
    wait_policy: LockWaitPolicy,
) -> (DirectoryLock, Option<TakeoverReason>) {
    take_from(layout, true, wait_policy)
}

fn read_lock_file(layout: &RunLayout) -> Option<LockFile> {
    let text = super::super::lock_file::read(&layout.lock_info()).expect("readable")?;
    Some(LockFile::parse(&text).expect("lock info"))
}

fn write_lock_file(layout: &RunLayout, owner: LockOwner) {
    LockFile::new(owner, 7).write(&layout.lock_info()).expect("writable");
}

#[test]
fn lock_held_by_live_process_is_refused_and_released_on_drop() {
    let (_directory, layout) = layout();
    let (first, takeover) = take(&layout, LockWaitPolicy::default());
    assert_eq!(takeover, None);
    let found = read_lock_file(&layout).expect("the lock info exists");
    assert_eq!((found.pid, found.epoch), (std::process::id(), 1));
    assert_eq!(found.owner, first.ownership().owner());
    let refused = acquire_when_decided(contender(&layout, true), LockWaitPolicy::default());
    let refused = refused.expect_err("it is owned").to_string();
    assert!(refused.contains(&format!("process {} on", std::process::id())), "{refused}");
    drop(first);
    assert_eq!(read_lock_file(&layout), None);
    assert!(layout.lock().exists());
    assert_eq!(take(&layout, LockWaitPolicy::default()).1, None);
}

#[test]
fn lock_info_is_described_in_whole_seconds() {
    let created_at = Timestamp::from_millisecond(1_750_000_000_987).expect("in range");
    let info = LockFile { created_at, ..LockFile::new(remote_owner(1), 2) };
    let (process, time) = (format!("process {} on host-1", info.pid), "2025-06-15T15:06:40Z");
    assert_eq!(info.describe(), format!("{process} since {time}"));
    assert_eq!(info.describe_successor(), format!("{process} at {time}"));
}

#[test]
fn lock_of_dead_owner_is_taken_over_at_once() {
    let (_directory, layout) = layout();
    drop(take(&layout, LockWaitPolicy::default()));
    for local in [true, false] {
        write_lock_file(&layout, dead_owner());
        let impatient = LockWaitPolicy { wait: false, ..WAIT };
        let (_lock, takeover) = take_from(&layout, local, impatient);
        assert_eq!(takeover, Some(TakeoverReason::Dead));
    }
    std::fs::write(layout.lock_info(), "torn").expect("writable");
    take(&layout, LockWaitPolicy::default());
}

#[test]
fn lock_of_hung_owner_is_taken_over_and_owner_detects_it() {
    let (_directory, layout) = layout();
    let (hung, _) = take(&layout, WAIT);
    let (heir, takeover) = take(&layout, WAIT);
    assert_eq!(takeover, Some(TakeoverReason::Silent));
    assert_eq!(heir.ownership().owner().file, None, "the other one still has it");
    // It wakes up, and wrote its lock info a moment before it checked.
    let old = LockFile {
        owner: hung.ownership().owner(),
        ..read_lock_file(&layout).expect("the heir's")
    };
    LockFile { epoch: 1, ..old }.write(&layout.lock_info()).expect("writable");
    heir.ownership().check().expect("an older lock info is no successor");
    heir.ownership().refresh().expect("written");
    let lost = hung.ownership().check().expect_err("it has a successor");
    assert!(lost.to_string().contains(&std::process::id().to_string()), "{lost}");
    drop(hung);
    assert_eq!(
        read_lock_file(&layout).expect("it does not remove the heir's").owner,
        heir.ownership().owner()
    );
    heir.ownership().refresh().expect("written");
    assert!(heir.ownership().owner().file.is_some(), "the lock of the file is free");
    assert_eq!(read_lock_file(&layout).expect("alive").owner, heir.ownership().owner());
}

#[test]
fn lock_of_live_owner_is_taken_over_by_force() {
    let (_directory, layout) = layout();
    let (first, _) = take(&layout, WAIT);
    let force = LockWaitPolicy { force: true, ..LockWaitPolicy::default() };
    let (second, takeover) = take(&layout, force);
    assert_eq!(takeover, Some(TakeoverReason::Forced));
    assert!(first.ownership().check().is_err() && second.ownership().check().is_ok());
    drop(first);
    // The current owner has not locked the file yet, and is alive.
    let refused =
        acquire_when_decided(contender(&layout, true), LockWaitPolicy { wait: false, ..WAIT });
    assert!(matches!(refused, Err(LockError::Held { .. })), "{refused:?}");
}

#[test]
fn lock_in_shared_directory_is_decided_by_lock_file() {
    let (_directory, layout) = layout();
    drop(take(&layout, WAIT));
    write_lock_file(&layout, remote_owner(1));
    let shared = |wait_policy| acquire_when_decided(contender(&layout, false), wait_policy);
    let impatient = shared(LockWaitPolicy { wait: false, ..WAIT });
    assert!(matches!(impatient, Err(LockError::Held { .. })), "{impatient:?}");

    // Its heartbeat continues while it is watched.
    let mut watching = contender(&layout, false);
    let patient = LockWaitPolicy { stale: Duration::from_secs(60), ..WAIT };
    assert!(matches!(watching.attempt(&patient), Ok(LockAttempt::Wait)));
    write_lock_file(&layout, remote_owner(1));
    assert!(matches!(watching.attempt(&patient), Err(LockError::Held { .. })));

    let (lock, takeover) = shared(WAIT).expect("it is silent");
    let takeover = takeover.expect("from another owner");
    assert_eq!(takeover.reason, TakeoverReason::Silent);
    assert!(takeover.former.ends_with(" on host-1"), "{takeover:?}");
    drop(lock);
    write_lock_file(&layout, remote_owner(1));
    let forced = take_from(&layout, false, LockWaitPolicy { force: true, ..WAIT }).1;
    assert_eq!(forced, Some(TakeoverReason::Forced));

    // On a local file system it is a copy of another directory's lock info.
    write_lock_file(&layout, remote_owner(1));
    assert_eq!(take(&layout, LockWaitPolicy { wait: false, ..WAIT }).1, None);
}

#[test]
fn directory_with_owner_is_held_and_with_dead_one_is_not() {
    let (_directory, layout) = layout();
    assert!(!is_held(&layout).expect("answered"), "no process has ever owned it");
    let (lock, _) = take_from(&layout, true, WAIT);
    assert!(is_held(&layout).expect("answered"));
    let info = std::fs::read(layout.lock_info()).expect("an owner");
    drop(lock);
    assert!(!is_held(&layout).expect("answered"), "it was released");
    // A killed owner leaves its lock info. Its lock may live on in a child of another test.
    std::fs::write(layout.lock_info(), info).expect("written");
    let deadline = Instant::now() + Duration::from_secs(120);
    while is_held(&layout).expect("answered") {
        assert!(Instant::now() < deadline, "still held");
        std::thread::yield_now();
    }
}

#[test]
fn owner_detects_that_its_directory_was_moved_removed_or_replaced() {
    let (parent, _) = layout();
    let (root, aside) = (parent.path().join("run"), parent.path().join("aside"));
    let layout = RunLayout::new(&root);
    for is_replaced in [false, true] {
        std::fs::create_dir(&root).expect("made");
        let (lock, _) = take(&layout, LockWaitPolicy::default());
        assert_eq!(lock.ownership().check(), Ok(()));
        std::fs::rename(&root, &aside).expect("moved");
        if is_replaced {
            std::fs::create_dir(&root).expect("made");
            std::fs::write(layout.lock(), "").expect("written");
        }
        let gone = LockLostError::DirectoryGone { root: root.clone() };
        assert_eq!(lock.ownership().check(), Err(gone.clone()));
        std::fs::remove_dir_all(&aside).expect("removed");
        assert_eq!(lock.ownership().check(), Err(gone), "it stays lost");
        drop(lock);
        assert!(read_lock_file(&layout).is_none(), "nothing was written to another directory");
        let _missing = std::fs::remove_dir_all(&root);
    }
}

#[test]
fn directory_that_takes_no_heartbeats_is_reported_after_a_while() {
    let (_directory, layout) = layout();
    let (lock, _) = take(&layout, WAIT);
    let ownership = lock.ownership();
    let (began, mut failing_since) = (Instant::now(), None);
    let late = began + UNWRITABLE_LIMIT;
    ownership.write_heartbeat(&mut failing_since, began);
    assert_eq!((failing_since, ownership.unwritable().borrow().clone()), (None, None));
    // A directory in its place: the lock info cannot be replaced.
    std::fs::remove_file(layout.lock_info()).expect("removed");
    std::fs::create_dir(layout.lock_info()).expect("made");
    ownership.write_heartbeat(&mut failing_since, began);
    ownership.write_heartbeat(&mut failing_since, late - Duration::from_secs(1));
    assert_eq!((failing_since, ownership.unwritable().borrow().clone()), (Some(began), None));
    std::fs::remove_dir(layout.lock_info()).expect("removed");
    ownership.write_heartbeat(&mut failing_since, late);
    assert_eq!((failing_since, ownership.unwritable().borrow().clone()), (None, None));
    std::fs::remove_file(layout.lock_info()).expect("removed");
    std::fs::create_dir(layout.lock_info()).expect("made");
    for now in [began, late] {
        ownership.write_heartbeat(&mut failing_since, now);
    }
    let reason = ownership.unwritable().borrow().clone().expect("a reason");
    assert!(reason.starts_with("Is a directory"), "{reason}");
    assert_eq!(ownership.check(), Ok(()), "the run is still its own");
}
