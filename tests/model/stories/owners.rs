//! More than one process thinks that it owns the run, or more than one copy of its journal.

use crate::names::Ending;
use crate::step::Step;
use crate::story::Story;

/// The host of the coordinator is gone; another one goes on with a copy of its directory.
#[test]
fn run_dir_fresh_copy_resumes() {
    let mut story = Story::running(2, &[1, 1]);
    story.finishes(0).pass_seconds(15);
    story.does(&[Step::CopyDirectory, Step::KillCoordinator(0, 0)]);
    assert!(!story.step(Step::StartCoordinator(1, 1)), "it may not be dead");
    story.pass_seconds(31).does(&[Step::StartCoordinator(1, 1)]);
    story.pass_seconds(100).ends();
    assert_eq!([0, 1].map(|n| story.runs(n)), [1, 1]);
}

/// A copy from before the last renewal of the lock is not gone on with.
#[test]
fn run_dir_stale_copy_is_refused() {
    let mut story = Story::running(2, &[1, 1]);
    story.does(&[Step::CopyDirectory]).finishes(0).pass_seconds(15);
    story.does(&[Step::KillCoordinator(0, 0)]).pass_seconds(31);
    assert!(!story.step(Step::StartCoordinator(1, 1)), "it lacks a settlement");
    story.does(&[Step::StartCoordinator(0, 0)]).pass_seconds(60).ends();
    assert_eq!([0, 1].map(|n| story.runs(n)), [1, 1]);
}

/// A stopped owner is succeeded, wakes up and acts until it looks at the lock.
#[test]
fn owner_resumed_after_takeover_changes_nothing() {
    let mut story = Story::running(2, &[1, 1]);
    story.does(&[Step::StopCoordinator(0)]).pass_seconds(31);
    story.does(&[Step::StartCoordinator(1, 0)]).pass_seconds(5);
    story.does(&[
        Step::Finish(0, 0, Ending::Reward, false),
        Step::Mark(0, 0),
        Step::Publish(0, 0, true),
        Step::ContinueCoordinator(0),
        Step::Read(0),
        Step::Sync(0),
        Step::Perform(0),
        Step::Pass(100_000),
    ]);
    assert_eq!(story.coordinators.len(), 1, "it found out");
    story.ends();
    assert_eq!([0, 1].map(|n| story.runs(n)), [1, 1]);
}

/// What a woken owner purges was purgeable when it last had the lock.
#[test]
fn owner_resumed_after_takeover_purges_nothing_needed() {
    let mut story = Story::running(3, &[1, 1, 1]);
    story.pass_seconds(15);
    story.does(&[
        Step::Finish(0, 0, Ending::Reward, false),
        Step::Mark(0, 0),
        Step::Publish(0, 0, true),
        Step::CopyDirectory,
        Step::Read(0),
        Step::Sync(0),
        Step::StopCoordinator(0),
    ]);
    story.pass_seconds(31).does(&[Step::StartCoordinator(1, 1), Step::ContinueCoordinator(0)]);
    story.step(Step::Purge(0));
    story.ends();
    assert_eq!([0, 1, 2].map(|n| story.runs(n)), [1, 1, 1]);
}

/// The server forgets the lock: its owner writes it again.
#[test]
fn lock_lost_by_server_is_written_again_by_owner() {
    let mut story = Story::running(1, &[1]);
    let all = crate::broker::Loss { all: true, ..Default::default() };
    story.does(&[Step::CopyDirectory, Step::ServerDies, Step::ServerReturns(all)]);
    assert!(!story.step(Step::StartCoordinator(1, 1)));
    story.pass_seconds(15);
    assert_eq!(story.broker.lock.as_ref().map(|(_, lock)| lock.owner), Some(1));
    story.ends();
    assert_eq!(story.runs(0), 1);
}

/// The answer to a renewal is lost: the owner recognizes its own word.
#[test]
fn lock_renewal_with_lost_answer_keeps_owner() {
    let mut story = Story::running(1, &[1]);
    story.does(&[Step::Renew(0, false)]).pass_seconds(60);
    assert_eq!(story.coordinators.len(), 1);
    assert_eq!(story.ends().runs(0), 1);
}
