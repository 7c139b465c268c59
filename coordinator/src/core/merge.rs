//! Which result settles an item: a pure function of what the journal holds of it.
//!
//! The executions of an item have one order: by try, within a try by when they were first heard of
//! while running; one first heard of by its result is older than all of those. The newest eligible
//! result settles the item as soon as no newer execution is open. (Taking whichever finishes first
//! would favour executions that fail fast.)

use rollout_protocol::Timestamp;
use rollout_protocol::error::{ErrorClass, ErrorCode, ErrorType, RetryClass, TrialError};
use rollout_protocol::id::{ExecId, ItemId};
use rollout_protocol::record::{ExecutionEnd, Outcome, Verdict};

use super::effect::Settled;
use super::row::{End, Known, Row, State};

/// Whether a result may settle the item at all.
fn is_eligible(row: &Row, known: &Known) -> bool {
    match &known.end {
        End::Result { spec, retried, .. } => {
            !retried && known.try_id >= row.floor && *spec == row.spec
        }
        End::Open | End::Lost(..) => false,
    }
}

/// The execution whose result settles the item now, if there is one.
pub(super) fn decided(row: &Row) -> Option<ExecId> {
    if row.is_settled() {
        return None;
    }
    let newest = row
        .executions
        .iter()
        .filter(|known| is_eligible(row, known))
        .max_by_key(|known| known.age())?;
    let blocked = row.executions.iter().any(|known| known.is_open() && known.age() > newest.age());
    (!blocked).then_some(newest.exec)
}

/// Whether an eligible result waits for newer executions to end.
pub(super) fn is_withheld(row: &Row) -> bool {
    !row.is_settled() && row.executions.iter().any(|known| is_eligible(row, known))
}

/// Settles a row by the result of one of its executions.
pub(super) fn settle(item: ItemId, row: &mut Row, winner: ExecId, at: Timestamp) -> Settled {
    let mut executions = std::mem::take(&mut row.executions);
    executions.sort_by_key(Known::age);
    let place = executions
        .iter()
        .position(|known| known.exec == winner)
        .expect("the winner is one of the row's executions");
    let by = executions.remove(place).into_execution();
    let verdict = match &by.end {
        ExecutionEnd::Reported { verdict } => verdict.clone(),
        ExecutionEnd::Lost { .. } | ExecutionEnd::Open => {
            unreachable!("only an execution with a result is eligible")
        }
    };
    row.state = State::Settled(verdict.outcome);
    Settled {
        item,
        ordinal: row.ordinal,
        by: Some(by),
        verdict,
        superseded: executions.into_iter().map(Known::into_execution).collect(),
        at,
    }
}

/// Settles a row that was tried too often without any verdict.
pub(super) fn settle_exhausted(item: ItemId, row: &mut Row, at: Timestamp) -> Settled {
    let mut executions = std::mem::take(&mut row.executions);
    executions.sort_by_key(Known::age);
    let message = format!("given up: {} executions ended without a verdict", row.ended);
    let error = TrialError::new(
        ErrorType::InternalError,
        ErrorCode::WORKER_LOST,
        ErrorClass::Infrastructure,
        RetryClass::Permanent,
        message,
    );
    let verdict = Verdict { outcome: Outcome::Failed, reward: None, cost: 0.0, error: Some(error) };
    row.state = State::Settled(verdict.outcome);
    Settled {
        item,
        ordinal: row.ordinal,
        by: None,
        verdict,
        superseded: executions.into_iter().map(Known::into_execution).collect(),
        at,
    }
}
