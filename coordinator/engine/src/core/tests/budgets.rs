//! Budgets of model calls: which items are offered, and when nothing is left for the others.

use rollout_protocol::spec::budget::{BudgetLimits, ModelUse, RunBudget};

use super::super::budget::BudgetLedger;
use super::*;

fn calls(calls: u64) -> ModelUse {
    ModelUse { calls, ..ModelUse::default() }
}

fn limit(calls: u64) -> BudgetLimits {
    BudgetLimits { calls: Some(calls), ..BudgetLimits::default() }
}

/// Tries of ten calls at most.
fn budget(run: BudgetLimits, agent: BudgetLimits) -> RunBudget {
    RunBudget { run, agent, each_try: limit(10) }
}

/// Items of the agents of these lanes; lanes 2 and 3 are of agent 1.
fn world(budget: RunBudget, lanes: &[u16]) -> CoreFixture {
    let mut world = CoreFixture::new(0, 16);
    world.core.ledger = Box::new(BudgetLedger::new(budget));
    world.core.set_agents_of_lanes(vec![0, 0, 1, 1]);
    let items = (0..).zip(lanes).map(|(n, lane)| NewItem { lane: *lane, ..fleet::planned(n, 1) });
    world.handle(CoreInput::Items(items.collect()));
    world
}

fn used(reward: f64, used: ModelUse) -> ReportBody {
    let ReportBody::Result(mut body) = ok(reward) else { unreachable!("it is a result") };
    body.verdict.model_use = used;
    ReportBody::Result(body)
}

fn offered(world: &CoreFixture) -> Vec<u8> {
    world.offered().iter().map(|(item, _)| item.as_bytes()[0]).collect()
}

#[test]
fn item_is_offered_only_if_the_rest_covers_a_whole_try() {
    let mut world = world(budget(limit(30), BudgetLimits::default()), &[0; 6]);
    assert_eq!(offered(&world), [0, 1, 2], "three tries of ten calls");
    world.report(0, FIRST, 1, 1, used(1.0, calls(2)));
    assert_eq!(offered(&world).len(), 3, "28 calls are left, and two tries hold 20");
    world.report(1, FIRST, 2, 1, used(1.0, calls(8)));
    assert_eq!(offered(&world), [0, 1, 2, 3], "20 are left, and one try holds 10");
    world.report(2, FIRST, 3, 1, used(1.0, calls(10)));
    world.report(3, FIRST, 4, 1, used(1.0, calls(1)));
    assert_eq!(offered(&world).len(), 4, "9 are left");
    let exceeded = world.core.exceeded_budget().expect("exceeded");
    assert!(exceeded.contains("the run") && exceeded.contains("31 of 30 calls"), "{exceeded}");
}

#[test]
fn agent_without_budget_leaves_the_others_running() {
    let mut world = world(budget(BudgetLimits::default(), limit(10)), &[0, 1, 0, 2, 3]);
    assert_eq!(offered(&world), [0, 3]);
    world.report(0, FIRST, 1, 1, used(1.0, calls(10)));
    assert_eq!(world.core.exceeded_budget(), None, "the other agent runs");
    world.report(3, FIRST, 2, 1, used(1.0, calls(0)));
    assert_eq!(offered(&world), [0, 3, 4], "it used nothing");
    world.report(4, FIRST, 3, 1, used(1.0, calls(4)));
    let exceeded = world.core.exceeded_budget().expect("exceeded");
    assert!(exceeded.contains("an agent") && exceeded.contains("20 of 10 calls"), "{exceeded}");
}

#[test]
fn complete_run_is_not_over_its_budget() {
    let mut world = world(budget(limit(10), BudgetLimits::default()), &[0]);
    world.report(0, FIRST, 1, 1, used(1.0, calls(10)));
    assert!(world.core.is_complete());
    assert_eq!(world.core.exceeded_budget(), None);
}

#[test]
fn lost_try_counts_as_its_budget_until_its_report_comes() {
    let budget = budget(limit(40), BudgetLimits::default());
    let mut world = world(budget, &[0; 9]);
    assert_eq!(offered(&world).len(), 4);
    world.report(0, FIRST, 1, 1, ReportBody::Started);
    world.report(0, FIRST, 1, 1, lost(LostReason::WorkerDied));
    assert_eq!(world.core.in_flight(), 3, "40 are used or reserved, so it is not offered again");
    world.report(1, FIRST, 2, 1, used(1.0, calls(0)));
    assert_eq!(world.core.in_flight(), 3, "another one is");
    for (n, e) in [(2, 3), (3, 4)] {
        world.report(n, FIRST, e, 1, used(1.0, calls(10)));
    }
    world.report(0, FIRST.next(1), 5, 1, used(1.0, calls(10)));
    assert!(world.core.exceeded_budget().is_some(), "{:?}", world.offered());
}

#[test]
fn stopped_try_whose_record_says_what_it_used_counts_as_that() {
    let mut world = world(budget(limit(10), BudgetLimits::default()), &[0; 2]);
    world.report(0, FIRST, 1, 1, ReportBody::Started);
    let record = Some(BlobRef::for_bytes(b"{}", MediaType::Json));
    let (reason, phase) = (LostReason::Stopped, None);
    let model_use = calls(1);
    world.report(0, FIRST, 1, 1, ReportBody::Lost { reason, phase, record, cost: 0.0, model_use });
    let exceeded = world.core.exceeded_budget().expect("9 are left");
    assert!(exceeded.contains("11 of 10 calls"), "{exceeded}");
}

#[test]
fn replayed_run_with_a_larger_budget_goes_on_with_what_is_left() {
    let mut world = world(budget(limit(20), BudgetLimits::default()), &[0; 9]);
    world.report(0, FIRST, 1, 1, used(1.0, calls(7)));
    world.report(1, FIRST, 2, 1, used(1.0, calls(6)));
    assert!(world.core.exceeded_budget().is_some());
    let larger = budget(limit(34), BudgetLimits::default());
    let mut again = Core::new(settings(2, 16)).with_budget(larger);
    replay_journal(&mut again, &world.journal);
    again.begin_session(RUN, policy());
    again.set_agents_of_lanes(vec![0]);
    world.core = again;
    world.effects.clear();
    let items = (0..9).map(|n| NewItem { lane: 0, ..fleet::planned(n, 1) });
    world.handle(CoreInput::Items(items.collect()));
    world.handle(CoreInput::PlanComplete);
    world.handle(CoreInput::PreviousExecutorsDead);
    assert_eq!(offered(&world), [2, 3], "21 are left");
}
