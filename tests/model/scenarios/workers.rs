//! Workers that die, are paused or lose their connection.

use rollout_protocol::error::ErrorCode;
use rollout_protocol::record::ItemOutcome;

use crate::names::{ExecutionEnding, item};
use crate::scenario::Scenario;
use crate::step::ScheduleStep;

/// It dies with a delivery that it had not started.
#[test]
fn delivery_not_started_before_kill_is_redelivered() {
    let mut story = Scenario::new(1, &[1, 1]);
    story.apply(&[ScheduleStep::Sync(0), ScheduleStep::Perform(0), ScheduleStep::Send(0)]);
    // Suspicious, so that it waits for a claim answer.
    story.workers[0].suspicious_until = u64::MAX;
    story.apply(&[ScheduleStep::Pull(0, 0), ScheduleStep::KillWorker(0)]);
    assert_eq!(story.run_to_end().execution_count(0), 1);
}

/// It dies during an execution and returns: it reports the loss.
#[test]
fn execution_killed_with_worker_is_repeated_once() {
    let mut story = Scenario::running(1, &[1]);
    story.apply(&[ScheduleStep::KillWorker(0), ScheduleStep::StartWorker(0)]).run_to_end();
    assert_eq!(story.execution_count(0), 2);
}

/// It dies with its host and never returns: missing heartbeats show the loss.
#[test]
fn execution_of_lost_host_is_repeated() {
    let mut story = Scenario::running(2, &[1, 1]);
    let lost = story.running_worker(0).expect("it runs");
    story.apply(&[ScheduleStep::DestroyWorker(lost)]).advance_seconds(300);
    story.finish_first(1 - lost).advance_seconds(300);
    assert!(story.running_worker(0).is_some() || story.settled_by(0).is_some());
    story.run_to_end();
    assert_eq!((story.execution_count(0), story.execution_count(1)), (2, 1));
}

/// Paused for longer than a lease while its environments run: the redelivery is held by another
/// worker or its claim is refused, and the first execution counts.
#[test]
fn worker_paused_shorter_than_lease_keeps_execution() {
    let mut story = Scenario::running(1, &[1, 1]);
    let w = story.running_worker(0).expect("it runs");
    story.apply(&[ScheduleStep::PauseWorker(w)]).advance_seconds(8);
    story.apply(&[ScheduleStep::ResumeWorker(w)]).advance_seconds(120).finish_first(w);
    assert_eq!(story.execution_count(0), 1);
    story.run_to_end();
}

/// Paused for minutes: another execution runs, is newer and wins. If the old one returns first, its
/// result waits for the newer one.
#[test]
fn worker_paused_for_minutes_loses_to_newer_execution() {
    let mut story = Scenario::running(1, &[1, 1]);
    let w = story.running_worker(0).expect("it runs");
    story.apply(&[ScheduleStep::PauseWorker(w)]).advance_seconds(240);
    assert_eq!(story.running_worker(0), Some(w), "its environment keeps running");
    assert_eq!(story.execution_count(0), 2, "the other worker runs it, too");
    story.apply(&[ScheduleStep::ResumeWorker(w)]).advance_seconds(5);
    story.apply(&[ScheduleStep::Finish(w, 0, ExecutionEnding::Reward, false)]).advance_seconds(60);
    assert_eq!(story.settled_by(0), None, "the newer one is open");
    story.finish_first(1 - w);
    assert_eq!(story.settled_by(0), Some(2));
    story.run_to_end();
}

/// Offline for a while, and no other worker has a slot: its execution continues and counts.
#[test]
fn execution_offline_and_not_repeated_counts() {
    let mut story = Scenario::running(1, &[1]);
    story.apply(&[ScheduleStep::CutOff(0)]).advance_seconds(240);
    story.apply(&[ScheduleStep::Finish(0, 0, ExecutionEnding::Reward, false)]).advance_seconds(60);
    story.apply(&[ScheduleStep::Connect(0)]).advance_seconds(1);
    assert_eq!(story.settled_by(0), Some(1));
    assert_eq!(story.run_to_end().execution_count(0), 1);
}

/// It dies after the end of the environment and before its record is stored.
#[test]
fn spool_entry_of_dead_process_is_reported() {
    let mut story = Scenario::running(1, &[1]);
    story.apply(&[
        ScheduleStep::Finish(0, 0, ExecutionEnding::Reward, false),
        ScheduleStep::KillWorker(0),
    ]);
    story.apply(&[ScheduleStep::StartWorker(0)]).advance_seconds(1);
    assert_eq!(story.settled_by(0), Some(1));
    assert_eq!(story.run_to_end().execution_count(0), 1);
}

/// It dies with the marker stored and the report not sent; the next process sends it.
#[test]
fn marker_stored_before_kill_is_reported_on_restart() {
    let mut story = Scenario::running(1, &[1]);
    story.apply(&[
        ScheduleStep::Finish(0, 0, ExecutionEnding::Reward, false),
        ScheduleStep::Mark(0, 0),
        ScheduleStep::KillWorker(0),
    ]);
    story.apply(&[ScheduleStep::StartWorker(0)]).advance_seconds(1);
    assert_eq!(story.settled_by(0), Some(1));
    assert_eq!(story.run_to_end().execution_count(0), 1);
}

/// The report is acknowledged, the work message is not: it is redelivered and dropped.
#[test]
fn ack_not_sent_before_kill_repeats_nothing() {
    let mut story = Scenario::running(2, &[2]);
    story.apply(&[
        ScheduleStep::Finish(0, 0, ExecutionEnding::Reward, false),
        ScheduleStep::Mark(0, 0),
        ScheduleStep::Publish(0, 0, true),
        ScheduleStep::KillWorker(0),
        ScheduleStep::StartWorker(0),
    ]);
    story.advance_seconds(120).run_to_end();
    assert_eq!((story.execution_count(0), story.execution_count(1)), (1, 2));
}

/// A late acknowledgement of the first delivery removes the offer during the second. The second
/// execution dies, too: the item is in no queue and on no worker, and is offered again.
#[test]
fn offer_removed_by_late_ack_is_made_again() {
    let mut story = Scenario::running(1, &[1, 1]);
    let w = story.running_worker(0).expect("it runs");
    story.apply(&[ScheduleStep::PauseWorker(w)]).advance_seconds(240);
    assert_eq!(story.execution_count(0), 2);
    let token = story.workers[w].running[0].token;
    story.broker.ack(token);
    assert_eq!(story.broker.list(), []);
    story.apply(&[ScheduleStep::DestroyWorker(1 - w), ScheduleStep::KillWorker(w)]);
    story.workers[w].loss_reports.clear();
    story.apply(&[ScheduleStep::StartWorker(w)]).advance_seconds(300).run_to_end();
    assert_eq!(story.execution_count(0), 3);
}

/// An item that kills every worker running it ends as poisoned, and no other item does.
#[test]
fn item_that_kills_workers_is_poisoned_alone() {
    let mut story = Scenario::running(2, &[1, 1]);
    for _ in 0..60 {
        if let Some(w) = story.running_worker(0) {
            story.apply(&[ScheduleStep::KillWorker(w)]).advance_seconds(1);
            story.apply(&[ScheduleStep::StartWorker(w)]);
        }
        if story.invariants.settled.contains_key(&item(0)) {
            break;
        }
        story.advance_seconds(70);
        if let Some(w) = story.running_worker(1) {
            story.finish_first(w);
        }
    }
    let settled = &story.invariants.settled[&item(0)];
    let code = settled.verdict().error.as_ref().map(|error| error.code.clone());
    assert_eq!(code, Some(ErrorCode::POISONED));
    let runs = story.execution_count(0);
    assert!((5..=10).contains(&runs), "{runs} executions");
    story.run_to_end();
    assert_eq!(story.outcome(1), Some(ItemOutcome::Completed));
}

/// Reports overtake each other, and a start arrives after its result.
#[test]
fn start_report_after_result_changes_nothing() {
    let mut story = Scenario::new(1, &[1]);
    story.apply(&[ScheduleStep::Sync(0), ScheduleStep::Perform(0), ScheduleStep::Send(0)]);
    story.workers[0].suspicious_until = u64::MAX;
    story.apply(&[
        ScheduleStep::Pull(0, 0),
        ScheduleStep::SendClaim(0, 0),
        ScheduleStep::Heartbeat(0),
        ScheduleStep::Claim(0),
        ScheduleStep::Sync(0),
        ScheduleStep::Perform(0),
        ScheduleStep::Finish(0, 0, ExecutionEnding::Reward, false),
        ScheduleStep::Mark(0, 0),
        ScheduleStep::Publish(0, 0, true),
        ScheduleStep::ReportStart(0, 0),
        ScheduleStep::Acknowledge(0),
    ]);
    assert_eq!(story.run_to_end().execution_count(0), 1);
}

/// A worker offline for too long stops its executions and reports that later.
#[test]
fn worker_offline_too_long_stops_executions() {
    let mut story = Scenario::running(1, &[1]);
    story.apply(&[ScheduleStep::CutOff(0)]).advance_seconds(31 * 60);
    assert!(story.workers[0].running.is_empty());
    story.apply(&[ScheduleStep::Connect(0)]).run_to_end();
    assert_eq!(story.execution_count(0), 2);
}
