//! Which result settles an item, rule by rule.

use super::*;

fn winner(world: &CoreFixture) -> ExecId {
    let settled = world.settled();
    assert_eq!(settled.len(), 1, "settled once: {settled:?}");
    settled[0].by.as_ref().expect("settled by an execution").exec
}

#[test]
fn item_without_faults_adds_one_journal_record() {
    let mut world = CoreFixture::new(3, 3);
    for n in 0..3 {
        world.report(n, FIRST, u64::from(n), 1, ok(1.0));
    }
    assert!(world.core.is_complete());
    assert_eq!(world.journal.len(), 1 + 1 + 3, "opening, offers, reports");
}

#[test]
fn offers_in_flight_are_limited_by_permits() {
    let mut world = CoreFixture::new(10, 2);
    assert_eq!(world.offered().len(), 2);
    world.report(0, FIRST, 1, 1, ok(1.0));
    assert_eq!(world.offered().len(), 3);
}

#[test]
fn result_reported_twice_counts_once() {
    let mut world = CoreFixture::new(1, 1);
    world.report(0, FIRST, 1, 1, ok(1.0));
    world.report(0, FIRST, 1, 1, ok(1.0));
    world.report(0, FIRST, 2, 1, ok(0.0));
    assert_eq!(winner(&world), exec(1));
}

#[test]
fn result_older_than_open_execution_waits_and_is_superseded() {
    let mut world = CoreFixture::new(1, 1);
    assert_eq!(world.claim(0, FIRST, 1), ClaimAnswer::Run);
    world.report(0, FIRST, 9, 1, ok(0.0));
    assert!(world.settled().is_empty(), "execution 1 was heard of while running: it is newer");
    world.report(0, FIRST, 1, 1, ok(1.0));
    assert_eq!(winner(&world), exec(1));
    assert_eq!(world.settled()[0].superseded.len(), 1, "the other one is kept");
}

#[test]
fn result_withheld_settles_when_newer_execution_is_lost() {
    let mut world = CoreFixture::new(1, 1);
    assert_eq!(world.claim(0, FIRST, 1), ClaimAnswer::Run);
    world.report(0, FIRST, 9, 1, ok(0.0));
    world.report(0, FIRST, 1, 1, lost(LostReason::WorkerDied));
    assert_eq!(winner(&world), exec(9));
}

#[test]
fn result_of_execution_declared_lost_counts() {
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
fn infrastructure_failure_releases_permit_and_is_retried() {
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
fn infrastructure_failure_of_last_retry_settles_no_reward() {
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
fn retry_policy_changed_on_resume_keeps_settled_result() {
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
fn stop_before_first_offer_is_kept_and_cleared_on_resume() {
    use rollout_protocol::wire::control::StopLevel;
    let mut world = CoreFixture::new(3, 2);
    world.handle(CoreInput::Stop(StopLevel::Kill));
    world.crash(world.journal.len(), 3);
    assert_eq!(world.core.stopping(), None);
    assert_eq!(world.offered().len(), 2, "the new session continues");

    world.core = Core::new(settings(9, 2));
    world.effects.clear();
    world.handle(CoreInput::Stop(StopLevel::Drain));
    world.begin(3);
    assert_eq!(world.core.stopping(), Some(StopLevel::Drain));
    assert_eq!(world.offered().len(), 0);
}

#[test]
fn agent_failure_is_never_retried() {
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
fn result_of_previous_spec_never_settles() {
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
    world.handle(CoreInput::PlanComplete);
    world.report(0, FIRST, 1, 1, ok(1.0));
    assert!(world.settled().is_empty());
    world.handle(CoreInput::PreviousExecutorsDead);
    let second = TryId { epoch: 2, n: 2 };
    assert_eq!(world.offered().last(), Some(&(item(0), second)));
    world.report(0, second, 2, 2, ok(0.5));
    assert_eq!(winner(&world), exec(2));
}

#[test]
fn claim_answer_follows_state_of_item() {
    let mut world = CoreFixture::new(2, 1);
    assert_eq!(world.claim(0, FIRST, 1), ClaimAnswer::Run);
    assert_eq!(world.claim(0, FIRST, 1), ClaimAnswer::Run, "asked again by the same execution");
    assert_eq!(world.claim(0, FIRST, 2), ClaimAnswer::Hold, "another execution lives");
    assert_eq!(world.claim(0, SECOND, 3), ClaimAnswer::Drop, "a try not journalled");
    assert_eq!(world.claim(1, FIRST, 4), ClaimAnswer::Drop, "not offered yet");
    assert_eq!(world.claim(9, FIRST, 5), ClaimAnswer::Drop, "not of this run");
    world.report(0, FIRST, 1, 1, outage());
    assert_eq!(world.claim(0, FIRST, 6), ClaimAnswer::Drop, "waits for its retry");
}

#[test]
fn execution_losses_without_verdict_fail_item_at_limit() {
    let mut world = CoreFixture::new(1, 1);
    for n in 1..=rollout_protocol::limits::TRIES_PER_ITEM {
        assert!(world.settled().is_empty());
        world.report(0, TryId { epoch: 1, n }, u64::from(n), 1, lost(LostReason::Unreachable));
    }
    assert_eq!(world.settled()[0].verdict.outcome, ItemOutcome::Failed);
    assert!(world.settled()[0].by.is_none());
}

#[test]
fn stop_withdraws_offers_and_its_level_only_rises() {
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
