//! The coordinator dies, and its host lives.

use crate::names::{Ending, item};
use crate::step::Step;
use crate::story::Story;

const ALL: u16 = u16::MAX;

/// Dies between the record of an offer and its publication.
#[test]
fn offer_recorded_before_kill_is_published_on_resume() {
    let mut story = Story::of(1, &[1]);
    story.does(&[Step::Sync(0), Step::KillCoordinator(0, 0), Step::StartCoordinator(0, 0)]);
    assert_eq!(story.ends().runs(0), 1);
}

/// Dies before the record of an offer is durable: nobody has seen it.
#[test]
fn offer_not_durable_before_kill_is_made_again() {
    for share in [0, 1, ALL / 2, ALL] {
        let mut story = Story::of(2, &[1]);
        story.does(&[Step::KillCoordinator(0, share), Step::StartCoordinator(0, 0)]);
        story.ends();
        assert_eq!((story.runs(0), story.runs(1)), (1, 1));
    }
}

/// The answer to a publication is lost: nobody knows that it is there.
#[test]
fn offer_published_without_ack_is_queued_once() {
    let mut story = Story::of(1, &[1]);
    story.does(&[Step::StopWorker(0), Step::Sync(0), Step::Perform(0), Step::Send(0)]);
    story.does(&[Step::KillCoordinator(0, 0), Step::StartCoordinator(0, 0)]);
    assert_eq!(story.pass_seconds(120).broker.list().len(), 1);
    assert_eq!(story.ends().runs(0), 1);
}

/// Dies between reading a report and recording it.
#[test]
fn report_read_but_not_recorded_is_read_again() {
    let mut story = Story::running(1, &[1]);
    story.does(&[
        Step::Finish(0, 0, Ending::Reward, false),
        Step::Mark(0, 0),
        Step::Publish(0, 0, true),
        Step::Acknowledge(0),
        Step::Read(0),
        Step::KillCoordinator(0, 0),
        Step::StartCoordinator(0, 0),
    ]);
    assert_eq!(story.ends().runs(0), 1);
}

/// The records behind the last sync are cut anywhere, in the middle of one, too.
#[test]
fn journal_cut_at_any_byte_repeats_no_execution() {
    for share in (0..=ALL).step_by(1_500) {
        let mut story = Story::running(3, &[3]);
        story.does(&[
            Step::Finish(0, 0, Ending::Reward, false),
            Step::Finish(0, 0, Ending::AgentFailure, false),
            Step::Mark(0, 0),
            Step::Mark(0, 1),
            Step::Publish(0, 0, true),
            Step::Publish(0, 0, true),
            Step::Read(0),
            Step::Read(0),
            Step::KillCoordinator(0, share),
            Step::StartCoordinator(0, 0),
        ]);
        story.ends();
        assert_eq!([0, 1, 2].map(|n| story.runs(n)), [1, 1, 1], "cut at {share}");
    }
}

/// Dies after the sync and before anybody is told: what was read is read twice.
#[test]
fn report_read_twice_counts_once() {
    let mut story = Story::running(2, &[2]);
    story.does(&[
        Step::Finish(0, 0, Ending::Reward, false),
        Step::Mark(0, 0),
        Step::Publish(0, 0, false),
        Step::Publish(0, 0, true),
        Step::Read(0),
        Step::Sync(0),
        Step::KillCoordinator(0, 0),
        Step::StartCoordinator(0, 0),
    ]);
    assert_eq!(story.ends().runs(0), 1);
}

/// Dies for a while: the workers go on, and nothing is repeated.
#[test]
fn execution_after_coordinator_kill_survives() {
    let mut story = Story::running(2, &[1, 1]);
    story.does(&[Step::KillCoordinator(0, 0)]).finishes(0).pass_seconds(600);
    story.does(&[Step::StartCoordinator(0, 0)]).pass_seconds(90);
    assert_eq!(story.judge.settled.len(), 1, "reported while nobody listened");
    story.ends();
    assert_eq!((story.runs(0), story.runs(1)), (1, 1));
}

/// Dies between the journalled `run` and its answer: the question comes again.
#[test]
fn claim_answer_not_sent_before_kill_is_given_again() {
    let mut story = Story::running(1, &[1, 1]);
    story.does(&[Step::DestroyWorker(0)]);
    let other = 1;
    for _ in 0..400 {
        if story.workers[other].claiming.is_empty() {
            story.now += 1_000;
            story.step(Step::Pull(other, 0));
            story.step(Step::Hello(other));
            story.step(Step::Hellos(0));
        }
    }
    story.does(&[Step::Ask(other, 0), Step::Claim(0), Step::Sync(0)]);
    story.does(&[Step::KillCoordinator(0, 0), Step::StartCoordinator(0, 0)]);
    story.ends();
    assert_eq!(story.runs(0), 2, "one died, one ended");
}

/// A retry waits when the coordinator dies: it is neither lost nor made twice.
#[test]
fn retry_pending_at_kill_runs_once() {
    let mut story = Story::running(1, &[1]);
    story.does(&[Step::Finish(0, 0, Ending::Outage, false)]).pass_seconds(1);
    story.does(&[Step::KillCoordinator(0, 0), Step::StartCoordinator(0, 0)]);
    assert_eq!(story.ends().runs(0), 2);
    assert!(story.judge.settled.contains_key(&item(0)));
}

/// Offers of tries that the journal does not know are taken out of the queue.
#[test]
fn try_missing_in_journal_is_withdrawn() {
    let mut story = Story::of(1, &[1]);
    story.does(&[Step::StopWorker(0), Step::Sync(0), Step::Perform(0), Step::Send(0)]);
    let try_id = rollout_protocol::id::TryId { epoch: 9, n: 1 };
    let offer = crate::names::offer(item(0), try_id, crate::names::spec(1), Default::default());
    story.broker.publish(offer);
    story.pass_seconds(90);
    assert_eq!(story.broker.list().len(), 1);
    assert_eq!(story.ends().runs(0), 1);
}
