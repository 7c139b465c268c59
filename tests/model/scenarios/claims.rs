//! Claims of suspicious deliveries.

use crate::broker::ServerLoss;
use crate::names::ExecutionEnding;
use crate::scenario::Scenario;
use crate::step::ScheduleStep;

/// A redelivery of an offer that runs elsewhere is forgotten: neither acknowledged nor kept.
#[test]
fn redelivery_of_remote_execution_is_forgotten() {
    let mut story = Scenario::running(1, &[1, 1]);
    let w = story.running_worker(0).expect("it runs");
    story.apply(&[ScheduleStep::ServerDies, ScheduleStep::ServerReturns(ServerLoss::default())]);
    story.apply(&[ScheduleStep::Pull(1 - w, 0)]).advance_seconds(70);
    assert_eq!(story.broker.list().len(), 1, "the offer is still there");
    assert!(story.workers[1 - w].claiming.is_empty(), "and no other worker keeps it");
    assert_eq!(story.run_to_end().execution_count(0), 1);
}

/// An unread result exists when a claim arrives: it is read first.
#[test]
fn claim_with_unread_result_reads_it_first() {
    let mut story = Scenario::running(1, &[1, 1]);
    let w = story.running_worker(0).expect("it runs");
    story.apply(&[
        ScheduleStep::Finish(w, 0, ExecutionEnding::Reward, false),
        ScheduleStep::Mark(w, 0),
        ScheduleStep::Publish(w, 0, true),
        ScheduleStep::ServerDies,
        ScheduleStep::ServerReturns(ServerLoss::default()),
        ScheduleStep::Pull(1 - w, 0),
        ScheduleStep::ObserveHeartbeats(0),
        ScheduleStep::SendClaim(1 - w, 0),
        ScheduleStep::Claim(0),
    ]);
    assert_eq!(story.run_to_end().execution_count(0), 1);
}

/// A claim has no answer for a lease, and another worker's heartbeat shows the execution.
#[test]
fn claim_unanswered_is_decided_by_heartbeats() {
    let mut story = Scenario::running(1, &[1, 1]);
    let w = story.running_worker(0).expect("it runs");
    story.apply(&[ScheduleStep::KillCoordinator(0, 0), ScheduleStep::ServerDies]);
    story.apply(&[
        ScheduleStep::ServerReturns(ServerLoss::default()),
        ScheduleStep::Heartbeat(w),
        ScheduleStep::Pull(1 - w, 0),
    ]);
    story.advance_seconds(200);
    assert_eq!(story.execution_count(0), 1);
    story.run_to_end();
}

/// A claim has no answer for a lease, no worker runs the try, and the store has its result.
#[test]
fn claim_unanswered_is_decided_by_marker() {
    let mut story = Scenario::running(1, &[1, 1]);
    let w = story.running_worker(0).expect("it runs");
    story.apply(&[
        ScheduleStep::Finish(w, 0, ExecutionEnding::Reward, false),
        ScheduleStep::Mark(w, 0),
    ]);
    story
        .apply(&[ScheduleStep::DestroyWorker(w), ScheduleStep::KillCoordinator(0, 0)])
        .advance_seconds(300);
    assert_eq!(story.execution_count(0), 1);
    assert_eq!(story.run_to_end().settled_by(0), Some(1));
    assert_eq!(story.execution_count(0), 1);
}

/// A claim has no answer for a lease, and nothing is known of the try: it runs.
#[test]
fn claim_unanswered_without_trace_runs() {
    let mut story = Scenario::running(1, &[1, 1]);
    let w = story.running_worker(0).expect("it runs");
    story
        .apply(&[ScheduleStep::DestroyWorker(w), ScheduleStep::KillCoordinator(0, 0)])
        .advance_seconds(300);
    assert_eq!(story.execution_count(0), 2);
    story.run_to_end();
}

/// After its first connection a worker claims every delivery.
#[test]
fn worker_after_connect_claims_before_run() {
    let mut story = Scenario::running(1, &[1, 1]);
    story.apply(&[
        ScheduleStep::ServerDies,
        ScheduleStep::KillWorker(0),
        ScheduleStep::KillWorker(1),
    ]);
    let lost = ServerLoss { acks: 1, ..ServerLoss::default() };
    story.apply(&[
        ScheduleStep::ServerReturns(lost),
        ScheduleStep::StartWorker(0),
        ScheduleStep::StartWorker(1),
    ]);
    story.advance_seconds(100).run_to_end();
    assert_eq!(story.execution_count(0), 2);
}

/// Two workers hold the same try one after the other; one of them runs it.
#[test]
fn try_held_by_two_workers_runs_once() {
    let mut story = Scenario::new(1, &[1, 1]);
    story.apply(&[
        ScheduleStep::Sync(0),
        ScheduleStep::Perform(0),
        ScheduleStep::Send(0),
        ScheduleStep::KillCoordinator(0, 0),
    ]);
    for w in 0..2 {
        story.workers[w].suspicious_until = u64::MAX;
        story.apply(&[
            ScheduleStep::Pull(w, 0),
            ScheduleStep::Heartbeat(w),
            ScheduleStep::ServerDies,
        ]);
        story.apply(&[ScheduleStep::ServerReturns(ServerLoss::default())]);
    }
    story.advance_seconds(180);
    assert_eq!(story.execution_count(0), 1);
    story.run_to_end();
}
