//! User commands: stop, cancel, and changes of specs.

use rollout_protocol::record::ItemOutcome;

use crate::names::ExecutionEnding;
use crate::scenario::Scenario;
use crate::step::ScheduleStep;

/// Stopped and resumed.
#[test]
fn stopped_run_resumes_to_completion() {
    let mut story = Scenario::running(3, &[1, 1]);
    story.finish_first(0);
    story.apply(&[ScheduleStep::Stop(0)]).advance_seconds(30).run_to_end();
    assert_eq!(story.invariants.settled.len(), 3);
}

/// The spec of an unsettled item changes while an execution of the old spec runs.
#[test]
fn result_of_previous_spec_does_not_count() {
    let mut story = Scenario::running(1, &[1]);
    story.apply(&[
        ScheduleStep::KillCoordinator(0, 0),
        ScheduleStep::Respecify(0),
        ScheduleStep::Finish(0, 0, ExecutionEnding::Reward, false),
        ScheduleStep::StartCoordinator(0, 0),
    ]);
    story.advance_seconds(1);
    assert_eq!(story.settled_by(0), None);
    story.run_to_end();
    assert_eq!((story.execution_count(0), story.settled_by(0)), (2, Some(2)));
}

/// Cancelled while running: it settles as cancelled when the execution has ended.
#[test]
fn cancel_of_running_item_settles_as_cancelled() {
    let mut story = Scenario::running(2, &[1, 1]);
    story.apply(&[ScheduleStep::Cancel(0, 0)]).advance_seconds(60);
    assert_eq!(story.outcome(0), Some(ItemOutcome::Cancelled));
    story.run_to_end();
    assert_eq!([0, 1].map(|n| story.execution_count(n)), [1, 1]);
    assert_eq!(story.outcome(1), Some(ItemOutcome::Completed));
}

/// A result recorded before the cancel counts.
#[test]
fn cancel_of_settled_item_changes_nothing() {
    let mut story = Scenario::running(2, &[1, 1]);
    let w = story.running_worker(0).expect("it runs");
    story.finish_first(w).apply(&[ScheduleStep::Cancel(0, 0)]).advance_seconds(60).run_to_end();
    assert_eq!(story.outcome(0), Some(ItemOutcome::Completed));
}

/// Cancelled before it was offered.
#[test]
fn cancel_of_unoffered_item_settles_as_cancelled() {
    let mut story = Scenario::running(1, &[1]);
    story.apply(&[ScheduleStep::KillCoordinator(0, 0)]);
    story.setup.items = 2;
    story.specs.push(1);
    story
        .apply(&[ScheduleStep::StartCoordinator(0, 0), ScheduleStep::Cancel(0, 1)])
        .advance_seconds(60)
        .run_to_end();
    assert_eq!((story.execution_count(1), story.outcome(1)), (0, Some(ItemOutcome::Cancelled)));
}

/// The coordinator dies right after acknowledging the cancel, before any execution was stopped.
#[test]
fn cancel_acknowledged_before_kill_survives() {
    let mut story = Scenario::running(1, &[1]);
    story.apply(&[ScheduleStep::Cancel(0, 0), ScheduleStep::Sync(0)]);
    while story.apply_step(ScheduleStep::Perform(0)) {}
    story.apply(&[
        ScheduleStep::KillCoordinator(0, 0),
        ScheduleStep::Finish(0, 0, ExecutionEnding::Reward, false),
    ]);
    story.apply(&[ScheduleStep::StartCoordinator(0, 0)]).run_to_end();
    assert_eq!(story.outcome(0), Some(ItemOutcome::Cancelled));
}
