//! Several processes that claim to own the run, or several copies of its journal.

use crate::names::ExecutionEnding;
use crate::scenario::Scenario;
use crate::step::ScheduleStep;

/// The coordinator's host is lost; another one resumes with a copy of its directory.
#[test]
fn run_dir_fresh_copy_resumes() {
    let mut story = Scenario::running(2, &[1, 1]);
    story.finish_first(0).advance_seconds(15);
    story.apply(&[ScheduleStep::CopyDirectory, ScheduleStep::KillCoordinator(0, 0)]);
    assert!(!story.apply_step(ScheduleStep::StartCoordinator(1, 1)), "the owner may be alive");
    story.advance_seconds(31).apply(&[ScheduleStep::StartCoordinator(1, 1)]);
    story.advance_seconds(100).run_to_end();
    assert_eq!([0, 1].map(|n| story.execution_count(n)), [1, 1]);
}

/// A copy from before the last lock renewal cannot be resumed.
#[test]
fn run_dir_stale_copy_is_refused() {
    let mut story = Scenario::running(2, &[1, 1]);
    story.apply(&[ScheduleStep::CopyDirectory]).finish_first(0).advance_seconds(15);
    story.apply(&[ScheduleStep::KillCoordinator(0, 0)]).advance_seconds(31);
    assert!(!story.apply_step(ScheduleStep::StartCoordinator(1, 1)), "the copy lacks a settlement");
    story.apply(&[ScheduleStep::StartCoordinator(0, 0)]).advance_seconds(60).run_to_end();
    assert_eq!([0, 1].map(|n| story.execution_count(n)), [1, 1]);
}

/// A paused owner is succeeded, resumes and acts until it checks the lock.
#[test]
fn owner_resumed_after_takeover_changes_nothing() {
    let mut story = Scenario::running(2, &[1, 1]);
    story.apply(&[ScheduleStep::PauseCoordinator(0)]).advance_seconds(31);
    story.apply(&[ScheduleStep::StartCoordinator(1, 0)]).advance_seconds(5);
    story.apply(&[
        ScheduleStep::Finish(0, 0, ExecutionEnding::Reward, false),
        ScheduleStep::Mark(0, 0),
        ScheduleStep::Publish(0, 0, true),
        ScheduleStep::ResumeCoordinator(0),
        ScheduleStep::Read(0),
        ScheduleStep::Sync(0),
        ScheduleStep::Perform(0),
        ScheduleStep::Advance(100_000),
    ]);
    assert_eq!(story.coordinators.len(), 1, "the former owner has ended");
    story.run_to_end();
    assert_eq!([0, 1].map(|n| story.execution_count(n)), [1, 1]);
}

/// A resumed owner purges only reports that could be purged when it last held the lock.
#[test]
fn owner_resumed_after_takeover_purges_nothing_needed() {
    let mut story = Scenario::running(3, &[1, 1, 1]);
    story.advance_seconds(15);
    story.apply(&[
        ScheduleStep::Finish(0, 0, ExecutionEnding::Reward, false),
        ScheduleStep::Mark(0, 0),
        ScheduleStep::Publish(0, 0, true),
        ScheduleStep::CopyDirectory,
        ScheduleStep::Read(0),
        ScheduleStep::Sync(0),
        ScheduleStep::PauseCoordinator(0),
    ]);
    story
        .advance_seconds(31)
        .apply(&[ScheduleStep::StartCoordinator(1, 1), ScheduleStep::ResumeCoordinator(0)]);
    story.apply_step(ScheduleStep::Purge(0));
    story.run_to_end();
    assert_eq!([0, 1, 2].map(|n| story.execution_count(n)), [1, 1, 1]);
}

/// The server loses the lock: its owner writes it again.
#[test]
fn lock_lost_by_server_is_written_again_by_owner() {
    let mut story = Scenario::running(1, &[1]);
    let all = crate::broker::ServerLoss { all: true, ..Default::default() };
    story.apply(&[
        ScheduleStep::CopyDirectory,
        ScheduleStep::ServerDies,
        ScheduleStep::ServerReturns(all),
    ]);
    assert!(!story.apply_step(ScheduleStep::StartCoordinator(1, 1)));
    story.advance_seconds(15);
    assert_eq!(story.broker.lock.as_ref().map(|(_, lock)| lock.owner), Some(1));
    story.run_to_end();
    assert_eq!(story.execution_count(0), 1);
}

/// The answer to a renewal is lost: the owner recognizes its own value.
#[test]
fn lock_renewal_with_lost_answer_keeps_owner() {
    let mut story = Scenario::running(1, &[1]);
    story.apply(&[ScheduleStep::Renew(0, false)]).advance_seconds(60);
    assert_eq!(story.coordinators.len(), 1);
    assert_eq!(story.run_to_end().execution_count(0), 1);
}
