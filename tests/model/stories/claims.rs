//! Suspicious deliveries.

use crate::broker::Loss;
use crate::names::Ending;
use crate::step::Step;
use crate::story::Story;

/// A redelivery of what runs elsewhere is forgotten: neither acknowledged nor kept.
#[test]
fn a_delivery_of_what_runs_elsewhere_is_forgotten() {
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
fn the_reports_are_read_before_a_claim_is_answered() {
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
fn without_an_answer_the_hellos_decide() {
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
fn without_an_answer_a_marker_decides() {
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
fn without_an_answer_and_without_a_trace_it_runs() {
    let mut story = Story::running(1, &[1, 1]);
    let w = story.runner(0).expect("it runs");
    story.does(&[Step::DestroyWorker(w), Step::KillCoordinator(0, 0)]).pass_seconds(300);
    assert_eq!(story.runs(0), 2);
    story.ends();
}

/// After its first connection a worker takes nothing for new.
#[test]
fn a_worker_that_has_just_connected_asks() {
    let mut story = Story::running(1, &[1, 1]);
    story.does(&[Step::ServerDies, Step::KillWorker(0), Step::KillWorker(1)]);
    let lost = Loss { acks: 1, ..Loss::default() };
    story.does(&[Step::ServerReturns(lost), Step::StartWorker(0), Step::StartWorker(1)]);
    story.pass_seconds(100).ends();
    assert_eq!(story.runs(0), 2);
}

/// Two hold the same try, one after the other; one of them runs it.
#[test]
fn of_two_that_hold_a_try_one_runs_it() {
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
