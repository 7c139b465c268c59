//! Settled items that run again, and waits that outlast a session.

use rollout_protocol::wire::command::CommandReceipt;

use super::*;
use crate::engine::core::ItemToReopen;

const FIRST: TryId = TryId { epoch: 1, n: 1 };

/// A failure that no retry follows.
fn failed() -> ReportBody {
    let error = TrialError::transient(
        ErrorType::EnvironmentBuildFailed,
        ErrorCode::UNREACHABLE,
        "no answer",
    );
    let error = TrialError { retry: rollout_protocol::error::RetryClass::Permanent, ..error };
    verdict(ItemOutcome::Failed, Some(error), None)
}

/// The executions that a settlement names.
fn executions(settled: ItemSettlement) -> Vec<rollout_protocol::record::Execution> {
    settled.superseded.into_iter().chain(settled.by).collect()
}

impl CoreFixture {
    /// The next session reopens items.
    fn reopen(&mut self, items: u8, reopened: &[u8]) {
        let mut former: Vec<ItemSettlement> = self.replay(policy());
        let Some((_, JournalRecord::Opened(opening))) = self.journal.last_mut() else {
            unreachable!("a session begins with an opening")
        };
        opening.reopened = reopened.iter().map(|n| item(*n)).collect();
        let (at, record) = self.journal.last().expect("an opening").clone();
        self.core.apply(at, record, &mut Vec::new());
        for n in reopened {
            let place = former.iter().rposition(|settled| settled.item == item(*n));
            let settled = former.remove(place.expect("it was settled"));
            self.core.restore_executions(item(*n), at, executions(settled));
        }
        self.begin(items);
    }
}

/// A user gives items another try within the session, as the journal shows them.
fn retry(world: &mut CoreFixture, items: &[u8]) -> CommandReceipt {
    let mut replay = Core::new(settings(world.epoch, world.permits));
    let mut settlements = std::collections::HashMap::new();
    for (at, record) in &world.journal {
        let mut effects = Vec::new();
        replay.apply(*at, record.clone(), &mut effects);
        for effect in effects {
            if let CoreEffect::Settled(settled) = effect {
                let tries = replay.progress(&settled.item).map_or(0, |progress| progress.tries);
                settlements.insert(settled.item, (tries, settled));
            }
        }
    }
    let chosen = items.iter().filter_map(|n| {
        let (tries, former) = settlements.remove(&item(*n))?;
        Some(ItemToReopen { new: fleet::planned(*n, 1), tries, former })
    });
    let items: Vec<_> = chosen.collect();
    reopen(world, items)
}

fn reopen(world: &mut CoreFixture, items: Vec<ItemToReopen>) -> CommandReceipt {
    world.handle(CoreInput::Reopen { id: 8, named: items.len() as u64, items });
    let mut receipts = world.effects.iter().filter_map(|effect| match effect {
        CoreEffect::Receipt { id: 8, receipt } => Some(receipt.clone()),
        _ => None,
    });
    receipts.next_back().expect("a receipt")
}

#[test]
fn retried_item_runs_again_in_its_session() {
    for mut world in [CoreFixture::new(2, 2), CoreFixture::remote(2, 2)] {
        world.report(0, FIRST, 1, 1, failed());
        assert_eq!(retry(&mut world, &[0]).reopened, Some(1));
        assert!(!world.core.is_complete());
        assert_eq!(world.offered().last(), Some(&(item(0), SECOND)));
        // A late report of the former try.
        world.report(0, FIRST, 9, 1, ok(1.0));
        world.report(1, FIRST, 2, 1, ok(1.0));
        assert_eq!(world.settled().len(), 2);
        world.report(0, SECOND, 3, 1, ok(0.5));
        let last = *world.settled().last().expect("it settled again");
        let former: Vec<ExecId> = last.superseded.iter().map(|e| e.exec).collect();
        assert_eq!((last.verdict.reward, former), (Some(0.5), vec![exec(9), exec(1)]));
        assert!(world.core.is_complete());
    }
}

#[test]
fn retried_item_stays_pending_after_coordinator_death() {
    let mut world = CoreFixture::remote(1, 1);
    world.report(0, FIRST, 1, 1, failed());
    retry(&mut world, &[0]);
    let replayed = world.take_over(&[1]);
    assert_eq!(replayed.len(), 1, "the journal has the former settlement");
    assert!(!world.core.is_complete());
    world.report(0, SECOND, 3, 1, ok(0.5));
    assert!(world.core.is_complete());
    world.assert_replay_matches();
}

#[test]
fn retry_leaves_running_and_changed_items_alone() {
    let mut world = CoreFixture::remote(2, 2);
    world.report(0, FIRST, 1, 1, failed());
    let seen = (1, Box::new((*world.settled()[0]).clone()));
    let asked =
        || ItemToReopen { new: fleet::planned(0, 1), tries: seen.0, former: seen.1.clone() };
    let of_running = ItemToReopen { new: fleet::planned(1, 1), tries: 1, ..asked() };
    assert_eq!(reopen(&mut world, vec![asked(), of_running]).reopened, Some(1));
    let records = world.journal.len();
    assert_eq!(reopen(&mut world, vec![asked()]).reopened, Some(0), "it is pending");
    world.report(0, SECOND, 2, 1, failed());
    assert_eq!(reopen(&mut world, vec![asked()]).reopened, Some(0), "it failed once more since");
    let reopened =
        |(_, record): &(_, JournalRecord)| matches!(record, JournalRecord::Reopened { .. });
    assert!(!world.journal[records..].iter().any(reopened));
    assert_eq!(retry(&mut world, &[0]).reopened, Some(1));
}

#[test]
fn retry_of_cancelled_item_that_was_never_offered_offers_it() {
    let mut world = CoreFixture::remote(2, 1);
    world.handle(CoreInput::Cancel { id: 1, items: vec![fleet::planned(1, 1)] });
    assert_eq!(world.settled().len(), 1);
    assert_eq!(retry(&mut world, &[1]).reopened, Some(1));
    world.report(0, FIRST, 1, 1, ok(1.0));
    assert_eq!(world.offered().last(), Some(&(item(1), FIRST)));
    world.report(1, FIRST, 2, 1, ok(1.0));
    assert!(world.core.is_complete());
}

#[test]
fn retry_in_a_pause_waits_and_is_refused_while_stopping() {
    let mut world = CoreFixture::remote(1, 1);
    world.report(0, FIRST, 1, 1, failed());
    world.handle(CoreInput::Pause { id: 1, is_paused: true });
    assert_eq!(retry(&mut world, &[0]).reopened, Some(1));
    assert_eq!(world.offered(), [(item(0), FIRST)]);
    world.handle(CoreInput::Pause { id: 2, is_paused: false });
    assert_eq!(world.offered().last(), Some(&(item(0), SECOND)));
    world.report(0, SECOND, 2, 1, failed());
    world.handle(CoreInput::Stop(rollout_protocol::wire::control::StopLevel::Drain));
    let refused = retry(&mut world, &[0]).refused.expect("refused");
    assert!(refused.contains("stopping"), "{refused}");
}

#[test]
fn retried_item_without_suitable_worker_waits_for_one_again() {
    let mut world = CoreFixture::remote(1, 1);
    let lanes = std::collections::BTreeMap::from([(0, "no GPU".to_owned())]);
    let patience =
        RemoteTimeouts::default().unplaceable_timeout.expect("bounded").as_millis() as u64;
    world.handle(CoreInput::Unplaceable(lanes));
    world.wait(patience);
    assert_eq!(world.settled().len(), 1, "given up");
    assert_eq!(retry(&mut world, &[0]).reopened, Some(1));
    world.wait(patience - 1);
    assert_eq!(world.settled().len(), 1);
    world.wait(1);
    assert_eq!(world.settled().len(), 2, "given up again");
}

#[test]
fn reopened_item_runs_again_and_keeps_previous_execution() {
    let mut world = CoreFixture::new(2, 2);
    world.report(0, FIRST, 1, 1, failed());
    world.report(1, FIRST, 2, 1, ok(1.0));
    assert_eq!(world.settled().len(), 2);
    world.reopen(2, &[0]);
    let again = TryId { epoch: 2, n: 2 };
    assert_eq!(world.offered(), [(item(0), again)]);
    world.report(0, again, 3, 1, ok(0.5));
    let settled = world.settled();
    assert_eq!(settled.len(), 1);
    assert_eq!(settled[0].verdict.reward, Some(0.5));
    let superseded: Vec<ExecId> = settled[0].superseded.iter().map(|e| e.exec).collect();
    assert_eq!(superseded, [exec(1)]);
    assert!(world.core.is_complete());
}

#[test]
fn reopened_item_ignores_late_report_of_previous_try() {
    let mut world = CoreFixture::new(1, 1);
    world.report(0, FIRST, 1, 1, failed());
    world.reopen(1, &[0]);
    // The same report again, and one of another execution of the previous try.
    world.report(0, FIRST, 1, 1, failed());
    world.report(0, FIRST, 9, 1, ok(1.0));
    assert!(world.settled().is_empty());
    let again = TryId { epoch: 2, n: 2 };
    world.report(0, again, 3, 1, ok(0.5));
    assert_eq!(world.settled()[0].verdict.reward, Some(0.5));
}

#[test]
fn reopened_item_stays_pending_after_coordinator_restart() {
    let mut world = CoreFixture::new(1, 1);
    world.report(0, FIRST, 1, 1, failed());
    world.reopen(1, &[0]);
    let records = world.journal.len();
    world.crash(records, 1);
    assert!(!world.core.is_complete());
    let again = world.offered();
    assert_eq!(again.len(), 1);
    world.report(0, again[0].1, 5, 1, ok(1.0));
    assert_eq!(world.settled().len(), 1);
    assert!(world.core.is_complete());
}

#[test]
fn reopened_item_gets_all_its_retries_again() {
    let mut world = CoreFixture::new(1, 1);
    let mut try_id = FIRST;
    for number in 1..=3 {
        world.report(0, try_id, number, 1, outage());
        world.wait(60_000);
        try_id = TryId { epoch: 1, n: try_id.n + 1 };
    }
    assert_eq!(world.settled().len(), 1, "three tries are the policy");
    world.reopen(1, &[0]);
    let (_, again) = world.offered()[0];
    world.report(0, again, 7, 1, outage());
    assert!(world.settled().is_empty(), "a retry follows");
    world.wait(60_000);
    assert_eq!(world.offered().len(), 2);
}

#[test]
fn retry_wait_survives_coordinator_restart() {
    let mut world = CoreFixture::new(1, 1);
    world.report(0, FIRST, 1, 1, outage());
    let wait = world.effects.iter().find_map(|effect| match effect {
        CoreEffect::Retry(retry) => Some(retry.wait_ms),
        _ => None,
    });
    let wait = wait.expect("a retry");
    assert!(wait > 2, "the jitter of this item is no less: {wait}");
    world.wait(wait / 2);
    let records = world.journal.len();
    world.crash(records, 1);
    assert_eq!(world.offered(), [], "a restart does not retry at once");
    world.wait(wait - wait / 2);
    assert_eq!(world.offered(), [(item(0), TryId { epoch: 2, n: 2 })]);
}

#[test]
fn retry_backoff_is_bounded_and_differs_between_items() {
    for failures in 1u32..3 {
        let mut world = CoreFixture::new(40, 40);
        for n in 0..40 {
            let mut try_id = FIRST;
            for failure in 1..=failures {
                world.report(n, try_id, u64::from(n) * 10 + u64::from(failure), 1, outage());
                world.wait(60_000);
                try_id = TryId { epoch: 1, n: try_id.n + 1 };
            }
        }
        let waits = world.effects.iter().filter_map(|effect| match effect {
            CoreEffect::Retry(retry) if retry.try_id.n == failures => Some(retry.wait_ms),
            _ => None,
        });
        let waits: Vec<u64> = waits.collect();
        assert_eq!(waits.len(), 40);
        let bound = 1000 << (failures - 1);
        assert!(waits.iter().all(|wait| *wait <= bound), "{waits:?}");
        let distinct: std::collections::BTreeSet<u64> = waits.iter().copied().collect();
        assert!(distinct.len() > 20, "{waits:?}");
    }
}
