//! Which result settles an item, rule by rule.

use super::*;

fn winner(world: &CoreFixture) -> ExecId {
    let settled = world.settled();
    assert_eq!(settled.len(), 1, "settled once: {settled:?}");
    settled[0].by.as_ref().expect("settled by an execution").exec
}

#[test]
fn an_undisturbed_item_costs_one_record_beside_the_shared_offer() {
    let mut world = CoreFixture::new(3, 3);
    for n in 0..3 {
        world.report(n, FIRST, u64::from(n), 1, ok(1.0));
    }
    assert!(world.core.is_complete());
    assert_eq!(world.journal.len(), 1 + 1 + 3, "opening, offers, reports");
}

#[test]
fn the_permits_bound_what_is_offered() {
    let mut world = CoreFixture::new(10, 2);
    assert_eq!(world.offered().len(), 2);
    world.report(0, FIRST, 1, 1, ok(1.0));
    assert_eq!(world.offered().len(), 3);
}

#[test]
fn a_result_said_twice_counts_once() {
    let mut world = CoreFixture::new(1, 1);
    world.report(0, FIRST, 1, 1, ok(1.0));
    world.report(0, FIRST, 1, 1, ok(1.0));
    world.report(0, FIRST, 2, 1, ok(0.0));
    assert_eq!(winner(&world), exec(1));
}

#[test]
fn an_older_result_waits_for_a_newer_open_execution_and_loses_to_its_result() {
    let mut world = CoreFixture::new(1, 1);
    assert_eq!(world.claim(0, FIRST, 1), ClaimAnswer::Run);
    world.report(0, FIRST, 9, 1, ok(0.0));
    assert!(world.settled().is_empty(), "execution 1 was heard of while running: it is newer");
    world.report(0, FIRST, 1, 1, ok(1.0));
    assert_eq!(winner(&world), exec(1));
    assert_eq!(world.settled()[0].superseded.len(), 1, "the other one is kept");
}

#[test]
fn a_withheld_result_settles_when_the_newer_execution_is_lost() {
    let mut world = CoreFixture::new(1, 1);
    assert_eq!(world.claim(0, FIRST, 1), ClaimAnswer::Run);
    world.report(0, FIRST, 9, 1, ok(0.0));
    world.report(0, FIRST, 1, 1, lost(LostReason::WorkerDied));
    assert_eq!(winner(&world), exec(9));
}

#[test]
fn an_execution_that_reports_after_it_was_lost_counts() {
    let mut world = CoreFixture::new(1, 1);
    world.claim(0, FIRST, 1);
    world.report(0, FIRST, 1, 1, lost(LostReason::Unreachable));
    assert_eq!(world.offered().last(), Some(&(item(0), SECOND)));
    world.report(0, FIRST, 1, 1, ok(1.0));
    assert_eq!(winner(&world), exec(1));
    let withdrawn = CoreEffect::Withdraw { item: item(0), try_id: SECOND };
    assert!(world.effects.contains(&withdrawn), "the second try is not wanted any more");
}

#[test]
fn an_infrastructure_failure_is_retried_off_its_permit_and_kept() {
    let mut world = CoreFixture::new(2, 1);
    world.report(0, FIRST, 1, 1, outage());
    assert_eq!(world.offered().last(), Some(&(item(1), FIRST)), "the permit went to another item");
    let wait = world.effects.iter().find_map(|effect| match effect {
        CoreEffect::Retry(retry) => Some(retry.wait_ms),
        _ => None,
    });
    let wait = wait.expect("a retry");
    world.wait(wait / 2);
    world.report(1, FIRST, 2, 1, ok(1.0));
    assert_eq!(world.offered().len(), 2, "the wait is not over");
    world.wait(wait - wait / 2);
    assert_eq!(world.offered().last(), Some(&(item(0), SECOND)));
    world.report(0, SECOND, 3, 1, ok(1.0));
    let settled = world.settled();
    assert_eq!(settled[1].superseded.len(), 1);
    assert_eq!(settled[1].superseded[0].exec, exec(1));
}

#[test]
fn the_last_infrastructure_failure_settles_without_a_reward() {
    let mut world = CoreFixture::new(1, 1);
    for n in 1..=3 {
        world.report(0, TryId { epoch: 1, n }, u64::from(n), 1, outage());
        world.wait(60_000);
    }
    let settled = world.settled();
    assert_eq!(settled.len(), 1);
    assert_eq!(
        (settled[0].verdict.outcome, settled[0].verdict.reward),
        (ItemOutcome::Failed, None)
    );
    assert_eq!(settled[0].superseded.len(), 2);
}

#[test]
fn what_a_sitting_decided_by_its_policy_stays_decided_under_another() {
    let mut world = CoreFixture::new(1, 1);
    world.report(0, FIRST, 1, 1, outage());
    world.wait(60_000);
    world.report(0, SECOND, 2, 1, ok(1.0));
    let strict = RetryPolicy { max_attempts: 1, ..policy() };
    let replayed = world.resume(world.journal.len(), 1, strict);
    assert_eq!(replayed.len(), 1);
    assert_eq!(replayed[0].by.as_ref().map(|by| by.exec), Some(exec(2)));
    assert!(world.core.is_complete());
}

#[test]
fn a_stop_before_anything_is_offered_is_kept_and_a_former_one_is_forgotten() {
    use rollout_protocol::wire::control::StopLevel;
    let mut world = CoreFixture::new(3, 2);
    world.handle(CoreInput::Stop(StopLevel::Kill));
    world.crash(world.journal.len(), 3);
    assert_eq!(world.core.stopping(), None);
    assert_eq!(world.offered().len(), 2, "the new sitting goes on");

    world.core = Core::new(settings(9, 2));
    world.effects.clear();
    world.handle(CoreInput::Stop(StopLevel::Drain));
    world.begin(3);
    assert_eq!(world.core.stopping(), Some(StopLevel::Drain));
    assert_eq!(world.offered().len(), 0);
}

#[test]
fn an_agents_failure_is_never_retried() {
    let mut world = CoreFixture::new(1, 1);
    let error = TrialError::new(
        ErrorType::AgentExecutionFailed,
        ErrorCode::NON_ZERO_EXIT,
        rollout_protocol::error::ErrorClass::Agent,
        rollout_protocol::error::RetryClass::Permanent,
        "exit code 1",
    );
    world.report(0, FIRST, 1, 1, verdict(ItemOutcome::Failed, Some(error), None));
    assert_eq!(world.settled().len(), 1);
}

#[test]
fn a_result_made_under_another_spec_never_settles() {
    let mut world = CoreFixture::new(1, 1);
    world.claim(0, FIRST, 1);
    let records = world.journal.len();
    world.epoch += 1;
    world.core = Core::new(settings(2, 1));
    for (at, record) in &world.journal[..records] {
        world.core.apply(*at, record.clone(), &mut Vec::new());
    }
    let planned =
        vec![NewItem { item: item(0), ordinal: 0, spec: spec(2), class: SizeClass(0), lane: 0 }];
    world.handle(CoreInput::Items(planned));
    world.handle(CoreInput::Exhausted);
    world.report(0, FIRST, 1, 1, ok(1.0));
    assert!(world.settled().is_empty());
    world.handle(CoreInput::FormerExecutorsDead);
    let second = TryId { epoch: 2, n: 2 };
    assert_eq!(world.offered().last(), Some(&(item(0), second)));
    world.report(0, second, 2, 2, ok(0.5));
    assert_eq!(winner(&world), exec(2));
}

#[test]
fn claims_are_answered_by_the_state_of_the_item() {
    let mut world = CoreFixture::new(2, 1);
    assert_eq!(world.claim(0, FIRST, 1), ClaimAnswer::Run);
    assert_eq!(world.claim(0, FIRST, 1), ClaimAnswer::Run, "asked again by the same execution");
    assert_eq!(world.claim(0, FIRST, 2), ClaimAnswer::Hold, "another execution lives");
    assert_eq!(world.claim(0, SECOND, 3), ClaimAnswer::Drop, "a try nobody journalled");
    assert_eq!(world.claim(1, FIRST, 4), ClaimAnswer::Drop, "not offered yet");
    assert_eq!(world.claim(9, FIRST, 5), ClaimAnswer::Drop, "not of this run");
    world.report(0, FIRST, 1, 1, outage());
    assert_eq!(world.claim(0, FIRST, 6), ClaimAnswer::Drop, "waits for its retry");
}

#[test]
fn executions_that_end_without_verdict_are_bounded() {
    let mut world = CoreFixture::new(1, 1);
    for n in 1..=rollout_protocol::limits::TRIES_PER_ITEM {
        assert!(world.settled().is_empty());
        world.report(0, TryId { epoch: 1, n }, u64::from(n), 1, lost(LostReason::Unreachable));
    }
    assert_eq!(world.settled()[0].verdict.outcome, ItemOutcome::Failed);
    assert!(world.settled()[0].by.is_none());
}

#[test]
fn a_stop_withdraws_and_offers_nothing_more_and_only_gets_harder() {
    use rollout_protocol::wire::control::StopLevel;
    let mut world = CoreFixture::new(5, 2);
    world.handle(CoreInput::Stop(StopLevel::Drain));
    world.report(0, FIRST, 1, 1, ok(1.0));
    assert_eq!(world.offered().len(), 2);
    let withdrawn =
        world.effects.iter().filter(|e| matches!(e, CoreEffect::Withdraw { .. })).count();
    assert_eq!(withdrawn, 2);
    world.handle(CoreInput::Stop(StopLevel::Kill));
    world.handle(CoreInput::Stop(StopLevel::Drain));
    assert_eq!(world.core.stopping(), Some(StopLevel::Kill));
    assert!(!world.core.is_complete());
}
