//! The merge rule: which result settles an item. A pure function of the item's journal records.
//!
//! The executions of an item are ordered by try, and within a try by when they were first heard of
//! while running. One first heard of by its result is older than all of those. The newest eligible
//! result settles the item as soon as no newer execution is open. (Taking the first to finish would
//! favour executions that fail fast.)

use rollout_protocol::Timestamp;
use rollout_protocol::error::{ErrorClass, ErrorCode, ErrorType, RetryClass, TrialError};
use rollout_protocol::id::{ExecId, ItemId};
use rollout_protocol::record::{Execution, ExecutionEnd, Verdict};

use super::effect::ItemSettlement;
use super::item::{ExecutionState, ItemEntry, ItemStatus, KnownExecution};

/// Whether a result may settle the item at all.
fn is_eligible(row: &ItemEntry, known: &KnownExecution) -> bool {
    match &known.state {
        ExecutionState::Result { spec, void, .. } => {
            void.is_none() && known.try_id >= row.floor && *spec == row.spec
        }
        ExecutionState::Open | ExecutionState::Lost(..) => false,
    }
}

/// The execution whose result settles the item now, if there is one.
pub(super) fn winning_execution(row: &ItemEntry) -> Option<ExecId> {
    if row.is_settled() {
        return None;
    }
    let newest = row
        .executions
        .iter()
        .filter(|known| is_eligible(row, known))
        .max_by_key(|known| known.order_key())?;
    let blocked = row
        .executions
        .iter()
        .any(|known| known.is_open() && known.order_key() > newest.order_key());
    (!blocked).then_some(newest.exec)
}

/// Whether an eligible result waits for newer executions to end.
pub(super) fn is_withheld(row: &ItemEntry) -> bool {
    !row.is_settled() && row.executions.iter().any(|known| is_eligible(row, known))
}

/// Settles an item by the result of one of its executions.
pub(super) fn settle(
    item: ItemId,
    row: &mut ItemEntry,
    winner: ExecId,
    at: Timestamp,
) -> ItemSettlement {
    let (by, superseded) = executions(row, |known| known.exec == winner);
    let by = by.expect("the winner is one of the item's executions");
    let ExecutionEnd::Reported { verdict } = &by.end else {
        unreachable!("only an execution with a result is eligible")
    };
    let verdict = verdict.clone();
    build_settlement(item, row, verdict, Some(by), superseded, at)
}

/// Settles an item that a user cancelled. The result of its newest execution is attached.
pub(super) fn settle_cancelled(item: ItemId, row: &mut ItemEntry, at: Timestamp) -> ItemSettlement {
    let (by, superseded) = executions(row, |known| match &known.state {
        _ if known.superseded => false,
        ExecutionState::Open => false,
        ExecutionState::Lost(loss) => loss.record.is_some(),
        ExecutionState::Result { .. } => true,
    });
    let cost = by.as_ref().map_or(0.0, |by| match &by.end {
        ExecutionEnd::Reported { verdict } => verdict.cost,
        ExecutionEnd::Lost { cost, .. } => *cost,
        ExecutionEnd::Open => 0.0,
    });
    let verdict = Verdict::cancelled(cost);
    build_settlement(item, row, verdict, by, superseded, at)
}

/// Settles an item that was tried too often without any verdict.
pub(super) fn settle_exhausted(item: ItemId, row: &mut ItemEntry, at: Timestamp) -> ItemSettlement {
    let message =
        format!("given up: {} executions ended without a verdict", row.ended_executions());
    fail(item, row, final_error(ErrorCode::WORKER_LOST, message), at)
}

/// Settles an item whose executions keep killing their workers.
pub(super) fn settle_poisoned(item: ItemId, row: &mut ItemEntry, at: Timestamp) -> ItemSettlement {
    let message = format!(
        "given up: {} workers died while they ran it, the last ones while they ran nothing else",
        row.deaths()
    );
    fail(item, row, final_error(ErrorCode::POISONED, message), at)
}

/// Settles an item as failed by none of its executions.
pub(super) fn fail(
    item: ItemId,
    row: &mut ItemEntry,
    error: TrialError,
    at: Timestamp,
) -> ItemSettlement {
    let (_, superseded) = executions(row, |_| false);
    let verdict = Verdict::failed(error);
    build_settlement(item, row, verdict, None, superseded, at)
}

fn final_error(code: ErrorCode, message: String) -> TrialError {
    let (kind, class) = (ErrorType::InternalError, ErrorClass::Infrastructure);
    TrialError::new(kind, code, class, RetryClass::Permanent, message)
}

/// Takes the executions of an item in order: the newest one of a kind, and the others.
fn executions(
    row: &mut ItemEntry,
    chosen: impl Fn(&KnownExecution) -> bool,
) -> (Option<Execution>, Vec<Execution>) {
    let mut executions = std::mem::take(&mut row.executions);
    executions.sort_by_key(KnownExecution::order_key);
    let place = executions.iter().rposition(chosen);
    let by = place.map(|place| executions.remove(place).into_execution());
    (by, executions.into_iter().map(KnownExecution::into_execution).collect())
}

fn build_settlement(
    item: ItemId,
    row: &mut ItemEntry,
    verdict: Verdict,
    by: Option<Execution>,
    superseded: Vec<Execution>,
    at: Timestamp,
) -> ItemSettlement {
    row.state = ItemStatus::Settled(verdict.outcome);
    ItemSettlement { item, ordinal: row.ordinal, by, verdict, superseded, at }
}
