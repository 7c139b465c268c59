//! Deaths of the server with more or less data loss.

use crate::broker::ServerLoss;
use crate::names::ExecutionEnding;
use crate::scenario::Scenario;
use crate::step::ScheduleStep;

const NO_LOSS: ServerLoss = ServerLoss { reports: 0, work: 0, acks: 0, all: false };
const TOTAL_LOSS: ServerLoss = ServerLoss { all: true, ..NO_LOSS };

fn restart(story: &mut Scenario, loss: ServerLoss) -> &mut Scenario {
    story.apply(&[ScheduleStep::ServerDies, ScheduleStep::ServerReturns(loss)])
}

#[test]
fn offer_lost_by_server_is_made_again() {
    let mut story = Scenario::new(1, &[1]);
    story.apply(&[ScheduleStep::Sync(0), ScheduleStep::Perform(0), ScheduleStep::Send(0)]);
    restart(&mut story, ServerLoss { work: 1, ..NO_LOSS });
    assert_eq!(story.run_to_end().execution_count(0), 1);
}

#[test]
fn ack_lost_by_server_repeats_nothing() {
    let mut story = Scenario::running(2, &[2]);
    story.finish_first(0);
    restart(&mut story, ServerLoss { acks: 1, ..NO_LOSS }).advance_seconds(150).run_to_end();
    assert_eq!((story.execution_count(0), story.execution_count(1)), (1, 1));
}

/// The offer is redelivered while no worker has a slot, until after the suspicion period.
#[test]
fn offer_restored_by_lost_ack_is_withdrawn_in_time() {
    let mut story = Scenario::running(2, &[2]);
    story.finish_first(0);
    story.apply(&[ScheduleStep::ServerDies, ScheduleStep::PauseWorker(0)]);
    story
        .apply(&[ScheduleStep::ServerReturns(ServerLoss { acks: 1, ..NO_LOSS })])
        .advance_seconds(10);
    story.workers[0].connections = story.broker.connections;
    story.workers[0].suspicious_until = 0;
    story.apply(&[ScheduleStep::ResumeWorker(0)]).advance_seconds(10).run_to_end();
    assert_eq!((story.execution_count(0), story.execution_count(1)), (1, 1));
}

/// An acknowledged report is lost with the tail of its stream: the store still has it.
#[test]
fn report_lost_by_server_is_found_in_store() {
    let mut story = Scenario::running(1, &[1]);
    story.apply(&[
        ScheduleStep::Finish(0, 0, ExecutionEnding::Reward, false),
        ScheduleStep::Mark(0, 0),
        ScheduleStep::Publish(0, 0, true),
        ScheduleStep::Acknowledge(0),
    ]);
    restart(&mut story, ServerLoss { reports: 1, ..NO_LOSS }).run_to_end();
    assert_eq!((story.execution_count(0), story.settled_by(0)), (1, Some(1)));
}

/// Sequences of a lost tail are used again: a reader that continued after the old position would
/// miss the reports now below it.
#[test]
fn report_at_reused_sequence_is_read() {
    let mut story = Scenario::running(3, &[3]);
    story.apply(&[
        ScheduleStep::Finish(0, 0, ExecutionEnding::Reward, true),
        ScheduleStep::Advance(1_000),
    ]);
    story.apply(&[ScheduleStep::ServerDies]);
    story.apply(&[ScheduleStep::Finish(0, 0, ExecutionEnding::Reward, false)]);
    story.apply(&[ScheduleStep::ServerReturns(ServerLoss { reports: 2, ..NO_LOSS })]);
    story.advance_seconds(3);
    assert_eq!(story.invariants.settled.len(), 2);
    story.run_to_end();
    assert_eq!([0, 1, 2].map(|n| story.execution_count(n)), [1, 1, 1]);
}

/// Everything in flight is redelivered at once, and nothing runs twice.
#[test]
fn server_restart_repeats_nothing() {
    let mut story = Scenario::running(3, &[2, 1]);
    restart(&mut story, NO_LOSS).advance_seconds(200).run_to_end();
    assert_eq!([0, 1, 2].map(|n| story.execution_count(n)), [1, 1, 1]);
}

/// Everything is lost except running executions.
#[test]
fn execution_survives_server_with_total_loss() {
    let mut story = Scenario::running(3, &[1, 1]);
    restart(&mut story, TOTAL_LOSS).advance_seconds(200);
    story.finish_first(0).finish_first(1).run_to_end();
    assert_eq!([0, 1, 2].map(|n| story.execution_count(n)), [1, 1, 1]);
}

/// A reported but unread result is lost with everything else: the store still has it.
#[test]
fn result_survives_server_with_total_loss() {
    let mut story = Scenario::running(2, &[1, 1]);
    story.apply(&[
        ScheduleStep::Finish(0, 0, ExecutionEnding::Reward, false),
        ScheduleStep::Mark(0, 0),
        ScheduleStep::Publish(0, 0, true),
        ScheduleStep::Acknowledge(0),
    ]);
    restart(&mut story, TOTAL_LOSS).advance_seconds(200).run_to_end();
    assert_eq!([0, 1].map(|n| story.execution_count(n)), [1, 1]);
}

/// Tokens of the previous incarnation do not remove offers of the new one.
#[test]
fn ack_of_previous_incarnation_removes_nothing() {
    let mut story = Scenario::running(2, &[1]);
    story.apply(&[
        ScheduleStep::Finish(0, 0, ExecutionEnding::Reward, false),
        ScheduleStep::Mark(0, 0),
        ScheduleStep::Publish(0, 0, true),
    ]);
    let acks = story.workers[0].acks.clone();
    restart(&mut story, TOTAL_LOSS).advance_seconds(100);
    story.workers[0].acks.extend(acks);
    story.apply(&[ScheduleStep::Acknowledge(0)]).run_to_end();
    assert_eq!([0, 1].map(|n| story.execution_count(n)), [1, 1]);
}

/// Twenty minutes without the server.
#[test]
fn outage_of_20_minutes_repeats_nothing() {
    let mut story = Scenario::running(2, &[1, 1]);
    story.apply(&[ScheduleStep::ServerDies]);
    story
        .apply(&[ScheduleStep::Finish(0, 0, ExecutionEnding::Reward, false)])
        .advance_seconds(20 * 60);
    story.apply(&[ScheduleStep::ServerReturns(NO_LOSS)]).advance_seconds(5);
    assert_eq!(story.invariants.settled.len(), 1);
    story.run_to_end();
    assert_eq!([0, 1].map(|n| story.execution_count(n)), [1, 1]);
}

/// An hour without the server: finished results are kept, running executions are stopped by their
/// worker.
#[test]
fn outage_of_an_hour_keeps_finished_results() {
    let mut story = Scenario::running(2, &[1, 1]);
    let w = story.running_worker(0).expect("it runs");
    story.apply(&[ScheduleStep::ServerDies]);
    story
        .apply(&[ScheduleStep::Finish(w, 0, ExecutionEnding::Reward, false)])
        .advance_seconds(3_600);
    story.apply(&[ScheduleStep::ServerReturns(NO_LOSS)]).run_to_end();
    assert_eq!([0, 1].map(|n| story.execution_count(n)), [1, 2]);
}

/// The server is down, the coordinator dies, and both return in the wrong order.
#[test]
fn resume_after_outage_waits_before_repeating() {
    let mut story = Scenario::running(2, &[1, 1]);
    story
        .apply(&[ScheduleStep::ServerDies, ScheduleStep::KillCoordinator(0, 0)])
        .advance_seconds(100);
    story.apply(&[
        ScheduleStep::CutOff(0),
        ScheduleStep::ServerReturns(NO_LOSS),
        ScheduleStep::StartCoordinator(0, 0),
    ]);
    story.advance_seconds(20);
    story.apply(&[ScheduleStep::Connect(0)]).advance_seconds(200).run_to_end();
    assert_eq!([0, 1].map(|n| story.execution_count(n)), [1, 1]);
}
