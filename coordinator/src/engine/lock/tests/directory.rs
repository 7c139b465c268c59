//! One directory, two processes.

use std::time::{Duration, Instant};

use rollout_protocol::event::TakeoverReason;

use super::super::directory::{Attempt, Contender, DirectoryLock};
use super::super::note::Note;
use super::super::{LockError, LockOwner, Patience};
use super::{dead, elsewhere};
use crate::engine::core::Takeover;
use crate::engine::journal::Layout;

/// Long enough for two looks, short enough for a test.
const STALE: Duration = Duration::from_millis(50);

const WATCH: Patience = Patience { stale: STALE, force: false, wait: true, hung: true };

fn layout() -> (tempfile::TempDir, Layout) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let layout = Layout::new(directory.path());
    (directory, layout)
}

fn contender(layout: &Layout, local: bool) -> Contender {
    let mut contender = Contender::new(layout).expect("a lock file");
    contender.pretend_local(local);
    contender
}

/// Tries until it is decided.
fn contend(
    mut contender: Contender,
    patience: Patience,
) -> Result<(DirectoryLock, Option<Takeover>), LockError> {
    let deadline = Instant::now() + Duration::from_secs(120);
    loop {
        match contender.attempt(&patience)? {
            Attempt::Taken(takeover) => return Ok((contender.hold()?, takeover)),
            Attempt::Wait => assert!(Instant::now() < deadline, "not decided"),
        }
        std::thread::yield_now();
    }
}

/// Takes what is free. A lock that was given up may live on for a moment in a child that another
/// test starts.
fn take_from(
    layout: &Layout,
    local: bool,
    patience: Patience,
) -> (DirectoryLock, Option<TakeoverReason>) {
    let deadline = Instant::now() + Duration::from_secs(120);
    loop {
        match contend(contender(layout, local), patience) {
            Ok((lock, takeover)) => return (lock, takeover.map(|takeover| takeover.reason)),
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
    }
}

fn take(layout: &Layout, patience: Patience) -> (DirectoryLock, Option<TakeoverReason>) {
    take_from(layout, true, patience)
}

fn note(layout: &Layout) -> Option<Note> {
    let text = super::super::note::read(&layout.lock_info()).expect("readable")?;
    Some(Note::parse(&text).expect("a note"))
}

fn leave(layout: &Layout, owner: LockOwner) {
    Note::new(owner, 7).write(&layout.lock_info()).expect("writable");
}

#[test]
fn a_directory_has_one_owner_that_leaves_nothing_but_the_file() {
    let (_directory, layout) = layout();
    let (first, takeover) = take(&layout, Patience::default());
    assert_eq!(takeover, None);
    let found = note(&layout).expect("it says who it is");
    assert_eq!((found.pid, found.epoch), (std::process::id(), 1));
    assert_eq!(found.owner, first.held().owner());
    let refused = contend(contender(&layout, true), Patience::default());
    let refused = refused.expect_err("it is owned").to_string();
    assert!(refused.contains(&format!("process {} on", std::process::id())), "{refused}");
    drop(first);
    assert_eq!(note(&layout), None);
    assert!(layout.lock().exists());
    assert_eq!(take(&layout, Patience::default()).1, None);
}

#[test]
fn what_a_dead_owner_left_is_taken_over_at_once() {
    let (_directory, layout) = layout();
    drop(take(&layout, Patience::default()));
    for local in [true, false] {
        leave(&layout, dead());
        let impatient = Patience { wait: false, ..WATCH };
        let (_lock, takeover) = take_from(&layout, local, impatient);
        assert_eq!(takeover, Some(TakeoverReason::Dead));
    }
    std::fs::write(layout.lock_info(), "torn").expect("writable");
    take(&layout, Patience::default());
}

#[test]
fn a_process_that_hangs_is_taken_over_and_finds_out() {
    let (_directory, layout) = layout();
    let (hung, _) = take(&layout, WATCH);
    let (heir, takeover) = take(&layout, WATCH);
    assert_eq!(takeover, Some(TakeoverReason::Silent));
    assert_eq!(heir.held().owner().file, None, "the other one still has it");
    // It wakes up, and wrote a moment before it looked.
    let old = Note { owner: hung.held().owner(), ..note(&layout).expect("the heir's") };
    Note { epoch: 1, ..old }.write(&layout.lock_info()).expect("writable");
    heir.held().check().expect("an older note is no successor");
    heir.held().refresh();
    let lost = hung.held().check().expect_err("it has a successor");
    assert!(lost.to_string().contains(&std::process::id().to_string()), "{lost}");
    drop(hung);
    assert_eq!(note(&layout).expect("not the one to remove it").owner, heir.held().owner());
    heir.held().refresh();
    assert!(heir.held().owner().file.is_some(), "the lock of the file is free");
    assert_eq!(note(&layout).expect("it beats").owner, heir.held().owner());
}

#[test]
fn force_takes_a_run_from_the_living() {
    let (_directory, layout) = layout();
    let (first, _) = take(&layout, WATCH);
    let force = Patience { force: true, ..Patience::default() };
    let (second, takeover) = take(&layout, force);
    assert_eq!(takeover, Some(TakeoverReason::Forced));
    assert!(first.held().check().is_err() && second.held().check().is_ok());
    drop(first);
    // The one who has it now does not have the file locked yet, and is alive.
    let refused = contend(contender(&layout, true), Patience { wait: false, ..WATCH });
    assert!(matches!(refused, Err(LockError::Held { .. })), "{refused:?}");
}

#[test]
fn where_other_hosts_may_share_the_directory_the_note_decides() {
    let (_directory, layout) = layout();
    drop(take(&layout, WATCH));
    leave(&layout, elsewhere(1));
    let shared = |patience| contend(contender(&layout, false), patience);
    let impatient = shared(Patience { wait: false, ..WATCH });
    assert!(matches!(impatient, Err(LockError::Held { .. })), "{impatient:?}");

    // It beats while it is watched.
    let mut watching = contender(&layout, false);
    let patient = Patience { stale: Duration::from_secs(60), ..WATCH };
    assert!(matches!(watching.attempt(&patient), Ok(Attempt::Wait)));
    leave(&layout, elsewhere(1));
    assert!(matches!(watching.attempt(&patient), Err(LockError::Held { .. })));

    let (lock, takeover) = shared(WATCH).expect("it is silent");
    let takeover = takeover.expect("from another owner");
    assert_eq!(takeover.reason, TakeoverReason::Silent);
    assert!(takeover.former.contains("on host-1 since "), "{takeover:?}");
    drop(lock);
    leave(&layout, elsewhere(1));
    let forced = take_from(&layout, false, Patience { force: true, ..WATCH }).1;
    assert_eq!(forced, Some(TakeoverReason::Forced));

    // On a file system of this kernel it is a copy of another directory's.
    leave(&layout, elsewhere(1));
    assert_eq!(take(&layout, Patience { wait: false, ..WATCH }).1, None);
}
