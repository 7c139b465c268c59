//! Users stop, cancel, and change what is to be done.

use rollout_protocol::record::Outcome;

use crate::names::Ending;
use crate::step::Step;
use crate::story::Story;

/// Stopped and gone on with.
#[test]
fn stopped_run_resumes_to_completion() {
    let mut story = Story::running(3, &[1, 1]);
    story.finishes(0);
    story.does(&[Step::Stop(0)]).pass_seconds(30).ends();
    assert_eq!(story.judge.settled.len(), 3);
}

/// The spec of an unsettled item changes while an execution of the old one runs.
#[test]
fn result_of_previous_spec_does_not_count() {
    let mut story = Story::running(1, &[1]);
    story.does(&[
        Step::KillCoordinator(0, 0),
        Step::Respecify(0),
        Step::Finish(0, 0, Ending::Reward, false),
        Step::StartCoordinator(0, 0),
    ]);
    story.pass_seconds(1);
    assert_eq!(story.settled_by(0), None);
    story.ends();
    assert_eq!((story.runs(0), story.settled_by(0)), (2, Some(2)));
}

/// Cancelled while it runs: it settles as cancelled when the execution has ended.
#[test]
fn cancel_of_running_item_settles_as_cancelled() {
    let mut story = Story::running(2, &[1, 1]);
    story.does(&[Step::Cancel(0, 0)]).pass_seconds(60);
    assert_eq!(story.outcome(0), Some(Outcome::Cancelled));
    story.ends();
    assert_eq!([0, 1].map(|n| story.runs(n)), [1, 1]);
    assert_eq!(story.outcome(1), Some(Outcome::Completed));
}

/// A result that was recorded before stands.
#[test]
fn cancel_of_settled_item_changes_nothing() {
    let mut story = Story::running(2, &[1, 1]);
    let w = story.runner(0).expect("it runs");
    story.finishes(w).does(&[Step::Cancel(0, 0)]).pass_seconds(60).ends();
    assert_eq!(story.outcome(0), Some(Outcome::Completed));
}

/// Cancelled before anybody asked for it.
#[test]
fn cancel_of_unoffered_item_settles_as_cancelled() {
    let mut story = Story::running(1, &[1]);
    story.does(&[Step::KillCoordinator(0, 0)]);
    story.setup.items = 2;
    story.specs.push(1);
    story.does(&[Step::StartCoordinator(0, 0), Step::Cancel(0, 1)]).pass_seconds(60).ends();
    assert_eq!((story.runs(1), story.outcome(1)), (0, Some(Outcome::Cancelled)));
}

/// The coordinator dies right after the promise, before anybody was stopped.
#[test]
fn cancel_acknowledged_before_kill_survives() {
    let mut story = Story::running(1, &[1]);
    story.does(&[Step::Cancel(0, 0), Step::Sync(0)]);
    while story.step(Step::Perform(0)) {}
    story.does(&[Step::KillCoordinator(0, 0), Step::Finish(0, 0, Ending::Reward, false)]);
    story.does(&[Step::StartCoordinator(0, 0)]).ends();
    assert_eq!(story.outcome(0), Some(Outcome::Cancelled));
}
