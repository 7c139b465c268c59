//! Workers die, are stopped, are out of reach.

use rollout_protocol::error::ErrorCode;
use rollout_protocol::record::Outcome;

use crate::names::{Ending, item};
use crate::step::Step;
use crate::story::Story;

/// Dies with a delivery that it had not begun.
#[test]
fn delivery_not_started_before_kill_is_redelivered() {
    let mut story = Story::of(1, &[1, 1]);
    story.does(&[Step::Sync(0), Step::Perform(0), Step::Send(0)]);
    // Suspicious, so that it waits for an answer.
    story.workers[0].suspicious_until = u64::MAX;
    story.does(&[Step::Pull(0, 0), Step::KillWorker(0)]);
    assert_eq!(story.ends().runs(0), 1);
}

/// Dies in the middle and comes back: it says what it lost.
#[test]
fn execution_killed_with_worker_is_repeated_once() {
    let mut story = Story::running(1, &[1]);
    story.does(&[Step::KillWorker(0), Step::StartWorker(0)]).ends();
    assert_eq!(story.runs(0), 2);
}

/// Dies and never comes back, and its host neither: silence says it.
#[test]
fn execution_of_lost_host_is_repeated() {
    let mut story = Story::running(2, &[1, 1]);
    let lost = story.runner(0).expect("it runs");
    story.does(&[Step::DestroyWorker(lost)]).pass_seconds(300);
    story.finishes(1 - lost).pass_seconds(300);
    assert!(story.runner(0).is_some() || story.settled_by(0).is_some());
    story.ends();
    assert_eq!((story.runs(0), story.runs(1)), (2, 1));
}

/// Stopped for longer than a lease, environments running on: the redelivery is held elsewhere or
/// finds out, and the first execution counts.
#[test]
fn worker_paused_shorter_than_lease_keeps_execution() {
    let mut story = Story::running(1, &[1, 1]);
    let w = story.runner(0).expect("it runs");
    story.does(&[Step::StopWorker(w)]).pass_seconds(8);
    story.does(&[Step::ContinueWorker(w)]).pass_seconds(120).finishes(w);
    assert_eq!(story.runs(0), 1);
    story.ends();
}

/// Stopped for minutes: another one runs, which is newer and wins, or the old one is back first and
/// its result waits for the newer one.
#[test]
fn worker_paused_for_minutes_loses_to_newer_execution() {
    let mut story = Story::running(1, &[1, 1]);
    let w = story.runner(0).expect("it runs");
    story.does(&[Step::StopWorker(w)]).pass_seconds(240);
    assert_eq!(story.runner(0), Some(w), "its environment runs on");
    assert_eq!(story.runs(0), 2, "the other one runs it, too");
    story.does(&[Step::ContinueWorker(w)]).pass_seconds(5);
    story.does(&[Step::Finish(w, 0, Ending::Reward, false)]).pass_seconds(60);
    assert_eq!(story.settled_by(0), None, "the newer one is open");
    story.finishes(1 - w);
    assert_eq!(story.settled_by(0), Some(2));
    story.ends();
}

/// Out of reach for a while, and nobody else has a slot: its execution goes on and counts.
#[test]
fn execution_offline_and_not_repeated_counts() {
    let mut story = Story::running(1, &[1]);
    story.does(&[Step::CutOff(0)]).pass_seconds(240);
    story.does(&[Step::Finish(0, 0, Ending::Reward, false)]).pass_seconds(60);
    story.does(&[Step::Connect(0)]).pass_seconds(1);
    assert_eq!(story.settled_by(0), Some(1));
    assert_eq!(story.ends().runs(0), 1);
}

/// Dies after the end of the environment and before its record is stored.
#[test]
fn spool_entry_of_dead_process_is_reported() {
    let mut story = Story::running(1, &[1]);
    story.does(&[Step::Finish(0, 0, Ending::Reward, false), Step::KillWorker(0)]);
    story.does(&[Step::StartWorker(0)]).pass_seconds(1);
    assert_eq!(story.settled_by(0), Some(1));
    assert_eq!(story.ends().runs(0), 1);
}

/// Dies with the marker stored and the report not said; the next process says it.
#[test]
fn marker_stored_before_kill_is_reported_on_restart() {
    let mut story = Story::running(1, &[1]);
    story.does(&[Step::Finish(0, 0, Ending::Reward, false), Step::Mark(0, 0), Step::KillWorker(0)]);
    story.does(&[Step::StartWorker(0)]).pass_seconds(1);
    assert_eq!(story.settled_by(0), Some(1));
    assert_eq!(story.ends().runs(0), 1);
}

/// The report is acknowledged, the work is not: it comes again and is dropped.
#[test]
fn ack_not_sent_before_kill_repeats_nothing() {
    let mut story = Story::running(2, &[2]);
    story.does(&[
        Step::Finish(0, 0, Ending::Reward, false),
        Step::Mark(0, 0),
        Step::Publish(0, 0, true),
        Step::KillWorker(0),
        Step::StartWorker(0),
    ]);
    story.pass_seconds(120).ends();
    assert_eq!((story.runs(0), story.runs(1)), (1, 2));
}

/// A late acknowledgement of the first delivery removes the offer under the second one; that one
/// dies, too: the item is nowhere, and is offered again.
#[test]
fn offer_removed_by_late_ack_is_made_again() {
    let mut story = Story::running(1, &[1, 1]);
    let w = story.runner(0).expect("it runs");
    story.does(&[Step::StopWorker(w)]).pass_seconds(240);
    assert_eq!(story.runs(0), 2);
    let token = story.workers[w].running[0].token;
    story.broker.ack(token);
    assert_eq!(story.broker.list(), []);
    story.does(&[Step::DestroyWorker(1 - w), Step::KillWorker(w)]);
    story.workers[w].losses.clear();
    story.does(&[Step::StartWorker(w)]).pass_seconds(300).ends();
    assert_eq!(story.runs(0), 3);
}

/// Kills every worker that runs it: it ends as poisoned, and no other item does.
#[test]
fn item_that_kills_workers_is_poisoned_alone() {
    let mut story = Story::running(2, &[1, 1]);
    for _ in 0..60 {
        if let Some(w) = story.runner(0) {
            story.does(&[Step::KillWorker(w)]).pass_seconds(1);
            story.does(&[Step::StartWorker(w)]);
        }
        if story.judge.settled.contains_key(&item(0)) {
            break;
        }
        story.pass_seconds(70);
        if let Some(w) = story.runner(1) {
            story.finishes(w);
        }
    }
    let settled = &story.judge.settled[&item(0)];
    let code = settled.verdict().error.as_ref().map(|error| error.code.clone());
    assert_eq!(code, Some(ErrorCode::POISONED));
    let runs = story.runs(0);
    assert!((5..=10).contains(&runs), "{runs} executions");
    story.ends();
    assert_eq!(story.outcome(1), Some(Outcome::Completed));
}

/// Reports that overtake each other, and a beginning after its end.
#[test]
fn start_report_after_result_changes_nothing() {
    let mut story = Story::of(1, &[1]);
    story.does(&[Step::Sync(0), Step::Perform(0), Step::Send(0)]);
    story.workers[0].suspicious_until = u64::MAX;
    story.does(&[
        Step::Pull(0, 0),
        Step::Ask(0, 0),
        Step::Hello(0),
        Step::Claim(0),
        Step::Sync(0),
        Step::Perform(0),
        Step::Finish(0, 0, Ending::Reward, false),
        Step::Mark(0, 0),
        Step::Publish(0, 0, true),
        Step::Begin(0, 0),
        Step::Acknowledge(0),
    ]);
    assert_eq!(story.ends().runs(0), 1);
}

/// A worker alone for too long ends what it runs by itself, and says so later.
#[test]
fn worker_offline_too_long_stops_executions() {
    let mut story = Story::running(1, &[1]);
    story.does(&[Step::CutOff(0)]).pass_seconds(31 * 60);
    assert!(story.workers[0].running.is_empty());
    story.does(&[Step::Connect(0)]).ends();
    assert_eq!(story.runs(0), 2);
}
