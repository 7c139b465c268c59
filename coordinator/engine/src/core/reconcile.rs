//! Reconciliation rounds: pending items that are nowhere are offered again.
//!
//! ```text
//! listed, but not the pending try                ─▶ withdraw
//! open, and not shown by any worker              ─▶ lost; the merge rule
//! lost, and its worker silent for max_offline    ─▶ dead
//! published, not listed, not held, twice         ─▶ look for results ─▶ merge ─▶ a new try
//! delivered, not held for two leases             ─▶ the same
//! delivered, begun by none of the workers        ─▶ the same
//! ```

use std::collections::HashMap;

use rollout_protocol::id::{ExecId, ItemId};
use rollout_protocol::record::LostReason;
use rollout_protocol::wire::delivery::QueuedOffer;
use rollout_protocol::wire::report::{Report, ReportBody};

use super::Core;
use super::effect::CoreEffect;
use super::handle::CoreOutput;
use super::input::InputTime;
use super::item::{ExecutionState, ItemEntry, ItemStatus, KnownExecution};
use super::record::{JournalRecord, WithdrawnTry};

/// Consecutive rounds after which an offer that is not found is missing: the list of one round may
/// be older than the offer.
const MISSING_ROUNDS: u8 = 2;

impl Core {
    /// Takes in a reconciliation round.
    pub(super) fn on_observation(
        &mut self,
        now: InputTime,
        listed: Vec<QueuedOffer>,
        out: &mut impl CoreOutput,
    ) {
        let Some(remote) = &self.remote else { return };
        let is_watched = remote.is_watched(now.monotonic_ms);
        let mut in_queue = HashMap::with_capacity(listed.len());
        for QueuedOffer { item, try_id, delivered } in listed {
            let wanted = |row: &&ItemEntry| {
                row.state == ItemStatus::Offered && row.current == try_id && !row.cancelled
            };
            if self.items.get(&item).filter(wanted).is_some() && self.stop.is_none() {
                in_queue.insert(item, delivered);
            } else {
                out.effects().push(CoreEffect::Withdraw { item, try_id });
            }
        }
        if is_watched {
            for (item, exec) in self.silent_executions(now) {
                self.declare_lost(now, item, exec, out);
            }
            for (item, exec) in self.dead_executions(now) {
                self.commit(
                    now,
                    JournalRecord::Lost { item, exec, reason: LostReason::WorkerDied },
                    out,
                );
            }
        }
        if self.stop.is_none() {
            self.look_for_missing(now, &in_queue, is_watched, out);
        }
        self.answer_deferred_claims(now, out);
        self.reclaim(now, out);
    }

    /// Declares an execution lost because no live worker shows it.
    pub(super) fn declare_lost(
        &mut self,
        now: InputTime,
        item: ItemId,
        exec: ExecId,
        out: &mut impl CoreOutput,
    ) {
        let Some(remote) = &self.remote else { return };
        let known = self.items.get_mut(&item).and_then(|row| row.find(&exec));
        let Some(known) = known.filter(|known| known.is_open()) else { return };
        // A worker that was not heard since the queue was unreachable may have been cut off, and
        // not dead.
        let heard = remote.workers.get(&known.worker).copied().unwrap_or(remote.session_began);
        let outage = remote.after_outage && heard <= remote.watched_since;
        let reason = if outage { LostReason::Outage } else { LostReason::Unreachable };
        self.commit(now, JournalRecord::Lost { item, exec, reason }, out);
    }

    /// Open executions that show no sign of life.
    fn silent_executions(&self, now: InputTime) -> Vec<(ItemId, ExecId)> {
        self.disturbed_executions(|known, remote| {
            known.is_open() && remote.alive_until(now.monotonic_ms, &known.exec).is_none()
        })
    }

    /// Lost executions whose workers were unreachable for longer than they continue alone.
    fn dead_executions(&self, now: InputTime) -> Vec<(ItemId, ExecId)> {
        self.disturbed_executions(|known, remote| {
            let presumed = matches!(&known.state, ExecutionState::Lost(loss) if loss.is_presumed());
            let silent = remote.silent_for(now.monotonic_ms, &known.worker);
            presumed && silent >= remote.offline_limit(&known.worker)
        })
    }

    fn disturbed_executions(
        &self,
        kind: impl Fn(&KnownExecution, &super::worker_liveness::WorkerLiveness) -> bool,
    ) -> Vec<(ItemId, ExecId)> {
        let Some(remote) = &self.remote else { return Vec::new() };
        let mut found = Vec::new();
        for item in &self.disturbed {
            let Some(row) = self.items.get(item) else { continue };
            let executions = row.executions.iter().filter(|known| kind(known, remote));
            found.extend(executions.map(|known| (*item, known.exec)));
        }
        found
    }

    /// Looks up results of offers that are missing. `is_watched`: it is meaningful that an execution is
    /// not shown.
    fn look_for_missing(
        &mut self,
        now: InputTime,
        in_queue: &HashMap<ItemId, bool>,
        is_watched: bool,
        out: &mut impl CoreOutput,
    ) {
        let now = now.monotonic_ms;
        let Some(mut remote) = self.remote.take() else { return };
        let mut missing = Vec::new();
        let mut flights = std::mem::take(&mut remote.offered);
        for (item, flight) in &mut flights {
            let Some(row) = self.items.get(item).filter(|row| !row.cancelled) else { continue };
            let Some(published_at) = flight.published_at else { continue };
            if remote.is_held(now, item, row) {
                flight.mark_found();
                continue;
            }
            let times = remote.timeouts;
            let nowhere = match in_queue.get(item) {
                Some(false) => {
                    flight.mark_found();
                    false
                }
                Some(true) => {
                    flight.missing = 0;
                    let since = *flight.unshown_since.get_or_insert(now);
                    is_watched && now.saturating_sub(since) >= 2 * times.lease
                        || remote.is_delivery_lost(flight, since)
                }
                None if !is_watched => false,
                // Its worker may not have sent a heartbeat since.
                None if now.saturating_sub(published_at) < times.silence => false,
                None => {
                    flight.missing = flight.missing.saturating_add(1);
                    flight.missing >= MISSING_ROUNDS
                }
            };
            if nowhere
                && flight.missing_lookup.is_none_or(|at| now.saturating_sub(at) >= times.lease)
            {
                flight.missing_lookup = Some(now);
                missing.push(CoreEffect::LookForResults { item: *item });
            }
        }
        remote.offered = flights;
        self.remote = Some(remote);
        out.effects().append(&mut missing);
    }

    /// Takes in the results that the store has of an item.
    pub(super) fn on_results_found(
        &mut self,
        now: InputTime,
        item: ItemId,
        reports: Vec<Report>,
        out: &mut impl CoreOutput,
    ) {
        for report in reports.into_iter().filter(|report| report.item == item) {
            if self.adds_information(&report) {
                self.commit(now, JournalRecord::Recovered { report: Box::new(report) }, out);
            }
        }
        if self.is_missing(now, item) {
            if let Some(row) = self.items.get(&item) {
                let nowhere = WithdrawnTry { item, try_id: row.current };
                self.withdraw(now, vec![nowhere], out);
            }
        } else {
            self.answer_deferred_claims(now, out);
        }
    }

    /// Whether an item whose results were looked up is still missing.
    fn is_missing(&mut self, now: InputTime, item: ItemId) -> bool {
        let Some(remote) = &mut self.remote else { return false };
        let Some(flight) = remote.offered.get_mut(&item) else { return false };
        flight.lookup_done = true;
        let looked = flight.missing_lookup.is_some();
        // A worker may have shown it meanwhile.
        let row = self.items.get(&item).filter(|row| !row.cancelled);
        looked && row.is_some_and(|row| !remote.is_held(now.monotonic_ms, &item, row))
    }

    /// Whether a marker adds something that the journal does not hold.
    fn adds_information(&self, report: &Report) -> bool {
        let Some(row) = self.items.get(&report.item) else { return false };
        let known = row.executions.iter().find(|known| known.exec == report.exec);
        let is_result = matches!(report.body, ReportBody::Result(_));
        is_result && !row.is_settled() && known.is_none_or(KnownExecution::may_report)
    }
}
