//! Suspicious deliveries.

use crate::broker::Loss;
use crate::names::Ending;
use crate::step::Step;
use crate::story::Story;

/// A redelivery of what runs elsewhere is forgotten: neither acknowledged nor kept.
#[test]
fn redelivery_of_remote_execution_is_forgotten() {
    let mut story = Story::running(1, &[1, 1]);
    let w = story.runner(0).expect("it runs");
    story.does(&[Step::ServerDies, Step::ServerReturns(Loss::default())]);
    story.does(&[Step::Pull(1 - w, 0)]).pass_seconds(70);
    assert_eq!(story.broker.list().len(), 1, "the offer is still there");
    assert!(story.workers[1 - w].claiming.is_empty(), "and nobody else keeps it");
    assert_eq!(story.ends().runs(0), 1);
}

/// A result waits unread when somebody asks: it is read first.
#[test]
fn claim_with_unread_result_reads_it_first() {
    let mut story = Story::running(1, &[1, 1]);
    let w = story.runner(0).expect("it runs");
    story.does(&[
        Step::Finish(w, 0, Ending::Reward, false),
        Step::Mark(w, 0),
        Step::Publish(w, 0, true),
        Step::ServerDies,
        Step::ServerReturns(Loss::default()),
        Step::Pull(1 - w, 0),
        Step::Hellos(0),
        Step::Ask(1 - w, 0),
        Step::Claim(0),
    ]);
    assert_eq!(story.ends().runs(0), 1);
}

/// Nobody answers for a lease, and the hello of another worker shows the execution.
#[test]
fn claim_unanswered_is_decided_by_heartbeats() {
    let mut story = Story::running(1, &[1, 1]);
    let w = story.runner(0).expect("it runs");
    story.does(&[Step::KillCoordinator(0, 0), Step::ServerDies]);
    story.does(&[Step::ServerReturns(Loss::default()), Step::Hello(w), Step::Pull(1 - w, 0)]);
    story.pass_seconds(200);
    assert_eq!(story.runs(0), 1);
    story.ends();
}

/// Nobody answers for a lease, nobody runs it, and the store has its result.
#[test]
fn claim_unanswered_is_decided_by_marker() {
    let mut story = Story::running(1, &[1, 1]);
    let w = story.runner(0).expect("it runs");
    story.does(&[Step::Finish(w, 0, Ending::Reward, false), Step::Mark(w, 0)]);
    story.does(&[Step::DestroyWorker(w), Step::KillCoordinator(0, 0)]).pass_seconds(300);
    assert_eq!(story.runs(0), 1);
    assert_eq!(story.ends().settled_by(0), Some(1));
    assert_eq!(story.runs(0), 1);
}

/// Nobody answers for a lease, and nothing is known of it: it runs.
#[test]
fn claim_unanswered_without_trace_runs() {
    let mut story = Story::running(1, &[1, 1]);
    let w = story.runner(0).expect("it runs");
    story.does(&[Step::DestroyWorker(w), Step::KillCoordinator(0, 0)]).pass_seconds(300);
    assert_eq!(story.runs(0), 2);
    story.ends();
}

/// After its first connection a worker takes nothing for new.
#[test]
fn worker_after_connect_claims_before_run() {
    let mut story = Story::running(1, &[1, 1]);
    story.does(&[Step::ServerDies, Step::KillWorker(0), Step::KillWorker(1)]);
    let lost = Loss { acks: 1, ..Loss::default() };
    story.does(&[Step::ServerReturns(lost), Step::StartWorker(0), Step::StartWorker(1)]);
    story.pass_seconds(100).ends();
    assert_eq!(story.runs(0), 2);
}

/// Two hold the same try, one after the other; one of them runs it.
#[test]
fn try_held_by_two_workers_runs_once() {
    let mut story = Story::of(1, &[1, 1]);
    story.does(&[Step::Sync(0), Step::Perform(0), Step::Send(0), Step::KillCoordinator(0, 0)]);
    for w in 0..2 {
        story.workers[w].suspicious_until = u64::MAX;
        story.does(&[Step::Pull(w, 0), Step::Hello(w), Step::ServerDies]);
        story.does(&[Step::ServerReturns(Loss::default())]);
    }
    story.pass_seconds(180);
    assert_eq!(story.runs(0), 1);
    story.ends();
}
