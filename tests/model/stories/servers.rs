//! The server dies, and forgets more or less.

use crate::broker::Loss;
use crate::names::Ending;
use crate::step::Step;
use crate::story::Story;

const NOTHING: Loss = Loss { reports: 0, work: 0, acks: 0, all: false };
const EVERYTHING: Loss = Loss { all: true, ..NOTHING };

fn restarts(story: &mut Story, loss: Loss) -> &mut Story {
    story.does(&[Step::ServerDies, Step::ServerReturns(loss)])
}

#[test]
fn offer_lost_by_server_is_made_again() {
    let mut story = Story::of(1, &[1]);
    story.does(&[Step::Sync(0), Step::Perform(0), Step::Send(0)]);
    restarts(&mut story, Loss { work: 1, ..NOTHING });
    assert_eq!(story.ends().runs(0), 1);
}

#[test]
fn ack_lost_by_server_repeats_nothing() {
    let mut story = Story::running(2, &[2]);
    story.finishes(0);
    restarts(&mut story, Loss { acks: 1, ..NOTHING }).pass_seconds(150).ends();
    assert_eq!((story.runs(0), story.runs(1)), (1, 1));
}

/// The offer comes back while nobody has a slot, for longer than anybody is suspicious.
#[test]
fn offer_restored_by_lost_ack_is_withdrawn_in_time() {
    let mut story = Story::running(2, &[2]);
    story.finishes(0);
    story.does(&[Step::ServerDies, Step::StopWorker(0)]);
    story.does(&[Step::ServerReturns(Loss { acks: 1, ..NOTHING })]).pass_seconds(10);
    story.workers[0].connections = story.broker.connections;
    story.workers[0].suspicious_until = 0;
    story.does(&[Step::ContinueWorker(0)]).pass_seconds(10).ends();
    assert_eq!((story.runs(0), story.runs(1)), (1, 1));
}

/// A report was acknowledged and is lost with the tail of its stream: the store still has it.
#[test]
fn report_lost_by_server_is_found_in_store() {
    let mut story = Story::running(1, &[1]);
    story.does(&[
        Step::Finish(0, 0, Ending::Reward, false),
        Step::Mark(0, 0),
        Step::Publish(0, 0, true),
        Step::Acknowledge(0),
    ]);
    restarts(&mut story, Loss { reports: 1, ..NOTHING }).ends();
    assert_eq!((story.runs(0), story.settled_by(0)), (1, Some(1)));
}

/// The sequences of a lost tail are used again: who goes on behind the old position misses what
/// stands there now.
#[test]
fn report_at_reused_sequence_is_read() {
    let mut story = Story::running(3, &[3]);
    story.does(&[Step::Finish(0, 0, Ending::Reward, true), Step::Pass(1_000)]);
    story.does(&[Step::ServerDies]);
    story.does(&[Step::Finish(0, 0, Ending::Reward, false)]);
    story.does(&[Step::ServerReturns(Loss { reports: 2, ..NOTHING })]);
    story.pass_seconds(3);
    assert_eq!(story.judge.settled.len(), 2);
    story.ends();
    assert_eq!([0, 1, 2].map(|n| story.runs(n)), [1, 1, 1]);
}

/// Everything in flight comes again at once, and nothing of it runs twice.
#[test]
fn server_restart_repeats_nothing() {
    let mut story = Story::running(3, &[2, 1]);
    restarts(&mut story, NOTHING).pass_seconds(200).ends();
    assert_eq!([0, 1, 2].map(|n| story.runs(n)), [1, 1, 1]);
}

/// Everything is gone but what runs.
#[test]
fn execution_survives_server_with_total_loss() {
    let mut story = Story::running(3, &[1, 1]);
    restarts(&mut story, EVERYTHING).pass_seconds(200);
    story.finishes(0).finishes(1).ends();
    assert_eq!([0, 1, 2].map(|n| story.runs(n)), [1, 1, 1]);
}

/// What was reported and not read is lost with everything: the store still has it.
#[test]
fn result_survives_server_with_total_loss() {
    let mut story = Story::running(2, &[1, 1]);
    story.does(&[
        Step::Finish(0, 0, Ending::Reward, false),
        Step::Mark(0, 0),
        Step::Publish(0, 0, true),
        Step::Acknowledge(0),
    ]);
    restarts(&mut story, EVERYTHING).pass_seconds(200).ends();
    assert_eq!([0, 1].map(|n| story.runs(n)), [1, 1]);
}

/// Tokens of the former life do not remove offers of the new one.
#[test]
fn ack_of_previous_incarnation_removes_nothing() {
    let mut story = Story::running(2, &[1]);
    story.does(&[
        Step::Finish(0, 0, Ending::Reward, false),
        Step::Mark(0, 0),
        Step::Publish(0, 0, true),
    ]);
    let acks = story.workers[0].acks.clone();
    restarts(&mut story, EVERYTHING).pass_seconds(100);
    story.workers[0].acks.extend(acks);
    story.does(&[Step::Acknowledge(0)]).ends();
    assert_eq!([0, 1].map(|n| story.runs(n)), [1, 1]);
}

/// Twenty minutes without the server.
#[test]
fn outage_of_20_minutes_repeats_nothing() {
    let mut story = Story::running(2, &[1, 1]);
    story.does(&[Step::ServerDies]);
    story.does(&[Step::Finish(0, 0, Ending::Reward, false)]).pass_seconds(20 * 60);
    story.does(&[Step::ServerReturns(NOTHING)]).pass_seconds(5);
    assert_eq!(story.judge.settled.len(), 1);
    story.ends();
    assert_eq!([0, 1].map(|n| story.runs(n)), [1, 1]);
}

/// An hour without the server: what ended is kept, what ran on was ended by its worker.
#[test]
fn outage_of_an_hour_keeps_finished_results() {
    let mut story = Story::running(2, &[1, 1]);
    let w = story.runner(0).expect("it runs");
    story.does(&[Step::ServerDies]);
    story.does(&[Step::Finish(w, 0, Ending::Reward, false)]).pass_seconds(3_600);
    story.does(&[Step::ServerReturns(NOTHING)]).ends();
    assert_eq!([0, 1].map(|n| story.runs(n)), [1, 2]);
}

/// The server is away, the coordinator dies, everything returns in the wrong order.
#[test]
fn resume_after_outage_waits_before_repeating() {
    let mut story = Story::running(2, &[1, 1]);
    story.does(&[Step::ServerDies, Step::KillCoordinator(0, 0)]).pass_seconds(100);
    story.does(&[Step::CutOff(0), Step::ServerReturns(NOTHING), Step::StartCoordinator(0, 0)]);
    story.pass_seconds(20);
    story.does(&[Step::Connect(0)]).pass_seconds(200).ends();
    assert_eq!([0, 1].map(|n| story.runs(n)), [1, 1]);
}
