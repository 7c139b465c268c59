//! Effects of an execution's end on its item.

use rollout_protocol::Timestamp;
use rollout_protocol::digest::Digest;
use rollout_protocol::id::{ExecId, ItemId, TryId, WorkerId};
use rollout_protocol::limits::TRIES_PER_ITEM;
use rollout_protocol::record::ItemOutcome;
use rollout_protocol::wire::report::ResultBody;

use super::effect::{CoreEffect, ItemRetry, ItemSettlement};
use super::item::{
    ExecutionLoss, ExecutionState, ItemEntry, ItemStatus, KnownExecution, VoidReason,
};
use super::{Core, CoreSettings};
use super::{budget, merge};

impl Core {
    /// An execution reported a verdict.
    pub(super) fn apply_result(
        &mut self,
        at: Timestamp,
        item: ItemId,
        mut heard: KnownExecution,
        spec: Digest,
        body: Box<ResultBody>,
        effects: &mut Vec<CoreEffect>,
    ) {
        self.next_hearing += 1;
        heard.order = -self.next_hearing;
        let Some(row) = self.items.get_mut(&item) else { return };
        if row.is_settled() {
            return;
        }
        if row
            .find(&heard.exec)
            .is_some_and(|known| matches!(known.state, ExecutionState::Result { .. }))
        {
            return;
        }
        let presumed = budget::presumed_loss(row, &heard.exec);
        self.count_use(item, body.verdict.model_use, presumed.as_ref());
        let Some(row) = self.items.get_mut(&item) else { return };
        let (exec, try_id) = (heard.exec, heard.try_id);
        let void = void_reason(row, try_id, &body, &self.settings);
        let error = body.verdict.error.clone().filter(|_| void == Some(VoidReason::Retried));
        let state = ExecutionState::Result { spec, void, body };
        match row.find(&exec) {
            Some(known) => known.state = state,
            None => row.executions.push(KnownExecution { state, ..heard }),
        }
        self.mark_started(&item, try_id);
        self.conclude(at, item, effects);
        let Some(row) = self.items.get_mut(&item).filter(|row| !row.is_settled()) else { return };
        if let (Some(error), ItemStatus::Offered) = (error, row.state)
            && try_id == row.current
        {
            row.state = ItemStatus::Waiting;
            self.failed_at.insert(item, at);
            if let Some(ordinal) = row.ordinal {
                let retry = ItemRetry { item, ordinal, try_id, exec, error, wait_ms: 0 };
                effects.push(CoreEffect::Retry(Box::new(retry)));
            }
            self.release_permit(&item);
        }
        self.disturbed.insert(item);
    }

    /// An execution ended without a verdict. Its worker reported that if `who` is given; otherwise
    /// the coordinator inferred it.
    pub(super) fn apply_lost(
        &mut self,
        at: Timestamp,
        item: ItemId,
        exec: ExecId,
        reported_by: Option<(TryId, WorkerId)>,
        loss: ExecutionLoss,
        effects: &mut Vec<CoreEffect>,
    ) {
        let Some(row) = self.items.get_mut(&item) else { return };
        if row.is_settled() {
            return;
        }
        let reported = reported_by.is_some();
        let former = budget::presumed_loss(row, &exec);
        let is_new = match row.find(&exec).map(|known| &known.state) {
            Some(ExecutionState::Open) => true,
            Some(ExecutionState::Lost(former)) => former.is_presumed(),
            Some(ExecutionState::Result { .. }) => false,
            None => reported,
        };
        if is_new {
            self.count_loss(item, &loss, former.as_ref());
        }
        let Some(row) = self.items.get_mut(&item) else { return };
        let try_id = match (row.find(&exec), reported_by) {
            (Some(known), _) => {
                let try_id = known.try_id;
                match &mut known.state {
                    ExecutionState::Open => {
                        known.state = ExecutionState::Lost(loss);
                        if let Some(ordinal) = row.ordinal {
                            effects.push(CoreEffect::Lost { item, ordinal, try_id, exec });
                        }
                    }
                    ExecutionState::Lost(former) if former.is_presumed() => *former = loss,
                    ExecutionState::Lost(_) | ExecutionState::Result { .. } => return,
                }
                try_id
            }
            (None, None) => return,
            (None, Some((try_id, worker))) => {
                self.next_hearing += 1;
                let (order, state) = (-self.next_hearing, ExecutionState::Lost(loss));
                let solo = row.solo && try_id == row.current;
                row.executions.push(KnownExecution {
                    exec,
                    try_id,
                    order,
                    worker,
                    solo,
                    superseded: false,
                    state,
                });
                if let Some(ordinal) = row.ordinal {
                    effects.push(CoreEffect::Lost { item, ordinal, try_id, exec });
                }
                self.disturbed.insert(item);
                try_id
            }
        };
        self.conclude(at, item, effects);
        self.give_up(at, item, effects);
        if reported {
            self.requeue_after_loss(item, try_id);
        }
    }

    /// Called after a worker reported the end of its execution of the current try: unless another
    /// execution of the item is open, the item is pending again at once. (An execution that is only
    /// presumed lost may be delivered again, and run under the same try.)
    fn requeue_after_loss(&mut self, item: ItemId, lost: TryId) {
        let Some(row) = self.items.get(&item) else { return };
        let rival = |known: &KnownExecution| known.is_open() && known.try_id >= row.floor;
        let held = row.executions.iter().any(rival);
        if row.state == ItemStatus::Offered && lost == row.current && !held {
            self.requeue(item);
        }
    }

    /// Gives up an item that was tried too often, when none of its executions is open.
    fn give_up(&mut self, at: Timestamp, item: ItemId, effects: &mut Vec<CoreEffect>) {
        let Some(row) = self.items.get(&item) else { return };
        if row.is_settled() || row.has_open() {
            return;
        }
        if row.is_poisoned() {
            self.settle(item, effects, |row| merge::settle_poisoned(item, row, at));
        } else if row.ended_executions() >= TRIES_PER_ITEM {
            self.settle(item, effects, |row| merge::settle_exhausted(item, row, at));
        }
    }

    /// The merge rule: settles the item if its known executions decide it.
    pub(super) fn conclude(&mut self, at: Timestamp, item: ItemId, effects: &mut Vec<CoreEffect>) {
        let Some(row) = self.items.get(&item) else { return };
        if let Some(winner) = merge::winning_execution(row) {
            self.settle(item, effects, |row| merge::settle(item, row, winner, at));
        } else if row.cancelled && !row.is_settled() && !row.has_open() {
            self.settle(item, effects, |row| merge::settle_cancelled(item, row, at));
        }
    }

    /// Gives an item its one settlement.
    pub(super) fn settle(
        &mut self,
        item: ItemId,
        effects: &mut Vec<CoreEffect>,
        settle: impl FnOnce(&mut ItemEntry) -> ItemSettlement,
    ) {
        let Some(row) = self.items.get_mut(&item) else { return };
        let was_offered = row.state == ItemStatus::Offered;
        let (current, planned) = (row.current, row.ordinal.is_some());
        let settled = settle(row);
        if was_offered {
            self.release_permit(&item);
            // The worker that finished the current try acknowledges it itself.
            if settled.by.as_ref().is_none_or(|by| by.try_id != current) {
                effects.push(CoreEffect::Withdraw { item, try_id: current });
            }
        }
        if planned {
            self.unsettled -= 1;
            self.settled += 1;
        }
        if !self.disturbed.is_empty() {
            self.disturbed.remove(&item);
        }
        if !self.failed_at.is_empty() {
            self.failed_at.remove(&item);
        }
        effects.push(CoreEffect::Settled(Box::new(settled)));
    }
}

/// The reason why a result does not count, if there is one. Counts a retried failure against the
/// retry policy.
fn void_reason(
    row: &mut ItemEntry,
    try_id: TryId,
    body: &ResultBody,
    settings: &CoreSettings,
) -> Option<VoidReason> {
    if row.cancelled {
        return Some(VoidReason::Late);
    }
    retry_follows(row, try_id, body, settings).then_some(VoidReason::Retried)
}

/// Whether a result is an infrastructure failure after which the item is tried again.
fn retry_follows(
    row: &mut ItemEntry,
    try_id: TryId,
    body: &ResultBody,
    settings: &CoreSettings,
) -> bool {
    let verdict = &body.verdict;
    let failed = verdict.outcome == ItemOutcome::Failed;
    if !failed || !verdict.error.as_ref().is_some_and(|error| error.is_retryable()) {
        return false;
    }
    if try_id != row.current || row.state != ItemStatus::Offered {
        // Another try is on its way already.
        return true;
    }
    row.failures += 1;
    settings.retry.delay(row.failures, 0.0).is_some() && row.ended_executions() + 1 < TRIES_PER_ITEM
}
