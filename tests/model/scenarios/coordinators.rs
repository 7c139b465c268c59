//! Deaths of the coordinator on a host that survives.

use crate::names::{ExecutionEnding, item};
use crate::scenario::Scenario;
use crate::step::ScheduleStep;

const ALL_BYTES: u16 = u16::MAX;

/// It dies between the record of an offer and its publication.
#[test]
fn offer_recorded_before_kill_is_published_on_resume() {
    let mut story = Scenario::new(1, &[1]);
    story.apply(&[
        ScheduleStep::Sync(0),
        ScheduleStep::KillCoordinator(0, 0),
        ScheduleStep::StartCoordinator(0, 0),
    ]);
    assert_eq!(story.run_to_end().execution_count(0), 1);
}

/// It dies before the record of an offer is durable: no worker has seen the offer.
#[test]
fn offer_not_durable_before_kill_is_made_again() {
    for share in [0, 1, ALL_BYTES / 2, ALL_BYTES] {
        let mut story = Scenario::new(2, &[1]);
        story.apply(&[
            ScheduleStep::KillCoordinator(0, share),
            ScheduleStep::StartCoordinator(0, 0),
        ]);
        story.run_to_end();
        assert_eq!((story.execution_count(0), story.execution_count(1)), (1, 1));
    }
}

/// The acknowledgement of a publication is lost.
#[test]
fn offer_published_without_ack_is_queued_once() {
    let mut story = Scenario::new(1, &[1]);
    story.apply(&[
        ScheduleStep::PauseWorker(0),
        ScheduleStep::Sync(0),
        ScheduleStep::Perform(0),
        ScheduleStep::Send(0),
    ]);
    story.apply(&[ScheduleStep::KillCoordinator(0, 0), ScheduleStep::StartCoordinator(0, 0)]);
    assert_eq!(story.advance_seconds(120).broker.list().len(), 1);
    assert_eq!(story.run_to_end().execution_count(0), 1);
}

/// It dies between reading a report and recording it.
#[test]
fn report_read_but_not_recorded_is_read_again() {
    let mut story = Scenario::running(1, &[1]);
    story.apply(&[
        ScheduleStep::Finish(0, 0, ExecutionEnding::Reward, false),
        ScheduleStep::Mark(0, 0),
        ScheduleStep::Publish(0, 0, true),
        ScheduleStep::Acknowledge(0),
        ScheduleStep::Read(0),
        ScheduleStep::KillCoordinator(0, 0),
        ScheduleStep::StartCoordinator(0, 0),
    ]);
    assert_eq!(story.run_to_end().execution_count(0), 1);
}

/// The records after the last sync are cut at any byte, also within a record.
#[test]
fn journal_cut_at_any_byte_repeats_no_execution() {
    for share in (0..=ALL_BYTES).step_by(1_500) {
        let mut story = Scenario::running(3, &[3]);
        story.apply(&[
            ScheduleStep::Finish(0, 0, ExecutionEnding::Reward, false),
            ScheduleStep::Finish(0, 0, ExecutionEnding::AgentFailure, false),
            ScheduleStep::Mark(0, 0),
            ScheduleStep::Mark(0, 1),
            ScheduleStep::Publish(0, 0, true),
            ScheduleStep::Publish(0, 0, true),
            ScheduleStep::Read(0),
            ScheduleStep::Read(0),
            ScheduleStep::KillCoordinator(0, share),
            ScheduleStep::StartCoordinator(0, 0),
        ]);
        story.run_to_end();
        assert_eq!([0, 1, 2].map(|n| story.execution_count(n)), [1, 1, 1], "cut at {share}");
    }
}

/// It dies after the sync and before the acknowledgement: the same reports are read twice.
#[test]
fn report_read_twice_counts_once() {
    let mut story = Scenario::running(2, &[2]);
    story.apply(&[
        ScheduleStep::Finish(0, 0, ExecutionEnding::Reward, false),
        ScheduleStep::Mark(0, 0),
        ScheduleStep::Publish(0, 0, false),
        ScheduleStep::Publish(0, 0, true),
        ScheduleStep::Read(0),
        ScheduleStep::Sync(0),
        ScheduleStep::KillCoordinator(0, 0),
        ScheduleStep::StartCoordinator(0, 0),
    ]);
    assert_eq!(story.run_to_end().execution_count(0), 1);
}

/// It is dead for a while: the workers continue, and nothing is repeated.
#[test]
fn execution_after_coordinator_kill_survives() {
    let mut story = Scenario::running(2, &[1, 1]);
    story.apply(&[ScheduleStep::KillCoordinator(0, 0)]).finish_first(0).advance_seconds(600);
    story.apply(&[ScheduleStep::StartCoordinator(0, 0)]).advance_seconds(90);
    assert_eq!(story.invariants.settled.len(), 1, "reported while no coordinator ran");
    story.run_to_end();
    assert_eq!((story.execution_count(0), story.execution_count(1)), (1, 1));
}

/// It dies between the journaled `run` and its answer: the claim is sent again.
#[test]
fn claim_answer_not_sent_before_kill_is_given_again() {
    let mut story = Scenario::running(1, &[1, 1]);
    story.apply(&[ScheduleStep::DestroyWorker(0)]);
    let other = 1;
    for _ in 0..400 {
        if story.workers[other].claiming.is_empty() {
            story.now += 1_000;
            story.apply_step(ScheduleStep::Pull(other, 0));
            story.apply_step(ScheduleStep::Heartbeat(other));
            story.apply_step(ScheduleStep::ObserveHeartbeats(0));
        }
    }
    story.apply(&[
        ScheduleStep::SendClaim(other, 0),
        ScheduleStep::Claim(0),
        ScheduleStep::Sync(0),
    ]);
    story.apply(&[ScheduleStep::KillCoordinator(0, 0), ScheduleStep::StartCoordinator(0, 0)]);
    story.run_to_end();
    assert_eq!(story.execution_count(0), 2, "one died, one ended");
}

/// A retry is pending when the coordinator dies: it is neither lost nor made twice.
#[test]
fn retry_pending_at_kill_runs_once() {
    let mut story = Scenario::running(1, &[1]);
    story.apply(&[ScheduleStep::Finish(0, 0, ExecutionEnding::Outage, false)]).advance_seconds(1);
    story.apply(&[ScheduleStep::KillCoordinator(0, 0), ScheduleStep::StartCoordinator(0, 0)]);
    assert_eq!(story.run_to_end().execution_count(0), 2);
    assert!(story.invariants.settled.contains_key(&item(0)));
}

/// Offers of tries missing in the journal are withdrawn from the queue.
#[test]
fn try_missing_in_journal_is_withdrawn() {
    let mut story = Scenario::new(1, &[1]);
    story.apply(&[
        ScheduleStep::PauseWorker(0),
        ScheduleStep::Sync(0),
        ScheduleStep::Perform(0),
        ScheduleStep::Send(0),
    ]);
    let try_id = rollout_protocol::id::TryId { epoch: 9, n: 1 };
    let offer = crate::names::offer(item(0), try_id, crate::names::spec(1), Default::default());
    story.broker.publish(offer);
    story.advance_seconds(90);
    assert_eq!(story.broker.list().len(), 1);
    assert_eq!(story.run_to_end().execution_count(0), 1);
}
