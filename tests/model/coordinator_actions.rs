//! Actions of a coordinator around its core.

use rollout_engine::core::{CoreEffect, CoreInput, JournalRecord};
use rollout_protocol::id::ItemId;
use rollout_protocol::wire::control::StopLevel;
use rollout_protocol::wire::heartbeat::ReceivedHeartbeat;
use rollout_protocol::wire::position::{PositionedReport, ReportPosition};
use rollout_protocol::wire::report::ReportBody;

use crate::coordinator::{LOCK_RENEWAL_INTERVAL, ModelCoordinator};
use crate::lock::{JournalHead, LockValue};
use crate::names::{self, exec_number, item_number, spec};
use crate::simulation::Simulation;

/// Time a lock must be unchanged before another host takes it.
pub(crate) const LOCK_STALE_AFTER: u64 = 30_000;

impl ModelCoordinator {
    /// Whether it has ended after losing the lock.
    pub(crate) fn is_gone(&self) -> bool {
        self.started == u64::MAX
    }
}

impl Simulation {
    /// Whether the coordinator can reach the server. Handles a new connection first.
    fn ensure_coordinator_connected(&mut self, c: usize) -> bool {
        let Some(coordinator) = self.coordinators.get_mut(c) else { return false };
        if coordinator.paused || coordinator.is_gone() || !self.broker.up {
            return false;
        }
        if coordinator.connections != self.broker.connections {
            coordinator.connections = self.broker.connections;
            coordinator.unchecked = true;
            coordinator.listed = None;
            coordinator.received_claims.clear();
            coordinator.pending_answers.clear();
            coordinator.lock_renewal_due = self.now;
            coordinator.reconcile_due = self.now;
            coordinator.reconnect_unreported = true;
            if self.rules.reports_reconnects_first {
                self.report_reconnect(c);
            }
        }
        true
    }

    fn report_reconnect(&mut self, c: usize) {
        let untold = std::mem::replace(&mut self.coordinators[c].reconnect_unreported, false);
        if untold && self.rules.reports_reconnects {
            self.handle(c, CoreInput::Reconnected);
        }
    }

    /// The sequence after which the next report is read.
    fn read_position(&mut self, c: usize) -> u64 {
        let incarnation = self.broker.incarnation();
        let coordinator = &mut self.coordinators[c];
        let unchecked = std::mem::replace(&mut coordinator.unchecked, false);
        if let Some(cursor) = coordinator.cursor {
            let lost = cursor.incarnation != incarnation
                || (unchecked
                    && self.rules.checks_position_on_reconnect
                    && !self.broker.contains_position(&cursor));
            if lost {
                coordinator.cursor = None;
                self.log(|| "the reports are read from the start".to_owned());
            }
        }
        self.coordinators[c].cursor.map_or(0, |cursor| cursor.sequence)
    }

    /// Reads one report.
    pub(crate) fn read_report(&mut self, c: usize) -> bool {
        if !self.ensure_coordinator_connected(c) {
            return false;
        }
        let after = self.read_position(c);
        let next = self.broker.reports_after(after).next();
        let Some((sequence, report)) = next.map(|(at, report)| (at, report.clone())) else {
            return false;
        };
        let owner = self.coordinators[c].owner;
        self.log(|| format!("c{owner} reads: {}", names::summarize_report(&report)));
        let position = ReportPosition::for_report(self.broker.incarnation(), sequence, &report);
        self.coordinators[c].cursor = Some(position);
        self.handle(c, CoreInput::Reported(Box::new(PositionedReport { position, report })));
        true
    }

    /// Whether everything up to a sequence was read.
    fn has_read(&mut self, c: usize, head: u64) -> bool {
        let after = self.read_position(c);
        self.broker.reports_after(after).next().is_none_or(|(next, _)| next > head)
    }

    pub(crate) fn observe_heartbeats(&mut self, c: usize) -> bool {
        if !self.ensure_coordinator_connected(c) {
            return false;
        }
        let now = self.now;
        let seen = self.broker.heartbeats.values().map(|(at, heartbeat)| ReceivedHeartbeat {
            heartbeat: heartbeat.clone(),
            age: std::time::Duration::from_millis(now - at),
        });
        let seen = seen.collect();
        self.coordinators[c].heartbeats_due = now + 10_000;
        self.handle(c, CoreInput::Heartbeats(seen));
        true
    }

    /// Passes the first received claim to the core.
    pub(crate) fn handle_claim(&mut self, c: usize) -> bool {
        if !self.ensure_coordinator_connected(c) || self.coordinators[c].received_claims.is_empty()
        {
            return false;
        }
        let received = self.coordinators[c].received_claims[0].clone();
        if self.rules.reads_before_answer {
            while !self.has_read(c, received.head) && self.read_report(c) {}
        }
        if self.rules.watches_heartbeats && !self.setup.embedded {
            self.observe_heartbeats(c);
        }
        let unread = !self.has_read(c, received.head);
        let coordinator = &mut self.coordinators[c];
        coordinator.received_claims.remove(0);
        coordinator.last_request_id += 1;
        let id = coordinator.last_request_id;
        let claim = received.claim;
        coordinator.pending_answers.push((id, received.worker, claim.clone()));
        if unread && self.could_settle_unread(c, &claim.item) {
            check_unread_claim(self, c, id, &claim);
            return true;
        }
        self.handle(c, CoreInput::Claim { id, claim });
        true
    }

    /// Whether an unread result would settle the item.
    fn could_settle_unread(&mut self, c: usize, item: &ItemId) -> bool {
        let after = self.read_position(c);
        let Some((spec, floor, false)) = self.coordinators[c].reference.item_state(item) else {
            return false;
        };
        self.broker.reports_after(after).any(|(_, report)| {
            report.item == *item
                && report.spec == spec
                && report.try_id >= floor
                && matches!(&report.body, ReportBody::Result(r) if !names::may_be_retried(&r.verdict))
        })
    }

    /// Makes all recorded records durable.
    pub(crate) fn sync_journal(&mut self, c: usize) -> bool {
        let Some(coordinator) = self.coordinators.get_mut(c) else { return false };
        if coordinator.paused || coordinator.is_gone() {
            return false;
        }
        let owns = coordinator.owner == self.invariants.owner;
        let segment = self.directories[coordinator.directory].segment(coordinator.epoch);
        let clean = segment.durable == segment.records.len();
        if clean && coordinator.undurable_effects.is_empty() {
            return false;
        }
        segment.durable = segment.records.len();
        coordinator.journalled = coordinator.core.position();
        let gathered = std::mem::take(&mut coordinator.undurable_effects);
        for effect in &gathered {
            if let CoreEffect::Settled(settled) = effect
                && owns
            {
                self.invariants.record_settlement(settled);
                let (n, by) = (item_number(&settled.item), settled.by.clone());
                let by = by.map(|by| exec_number(&by.exec));
                let outcome = settled.verdict.outcome;
                self.log(|| format!("SETTLED: item {n} by e{by:?}, {outcome:?}"));
            }
        }
        self.coordinators[c].ready_effects.extend(gathered);
        if self.setup.embedded {
            self.acknowledge_durable(c);
        }
        true
    }

    /// The embedded queue is lost with its process, so it acknowledges only journaled reports.
    fn acknowledge_durable(&mut self, c: usize) {
        let Some(position) = self.coordinators[c].journalled else { return };
        self.broker.purge(position);
        for worker in &mut self.workers {
            let journalled = |sent: Option<u64>| sent.is_some_and(|at| at <= position.sequence);
            for finished in worker.finished.extract_if(.., |f| journalled(f.sent)) {
                worker.acks.extend(finished.token);
            }
        }
    }

    /// Performs one effect whose records are durable.
    pub(crate) fn perform_effect(&mut self, c: usize) -> bool {
        if self.coordinators.get(c).is_none_or(|c| c.paused || c.is_gone()) {
            return false;
        }
        if !self.rules.durable_before_effect {
            let gathered = self.coordinators[c].undurable_effects.clone();
            let settled = |effect: &CoreEffect| matches!(effect, CoreEffect::Settled(_));
            self.coordinators[c].undurable_effects.retain(settled);
            let others = gathered.into_iter().filter(|effect| !settled(effect));
            self.coordinators[c].ready_effects.extend(others);
        }
        let Some(effect) = self.coordinators[c].ready_effects.pop_front() else { return false };
        match effect {
            CoreEffect::Answer { id, answer } => {
                let pending = &mut self.coordinators[c].pending_answers;
                if let Some(at) = pending.iter().position(|(of, ..)| *of == id) {
                    let (_, w, claim) = pending.remove(at);
                    if self.broker.up {
                        self.receive_answer(w, &claim.exec, answer);
                    }
                }
            }
            CoreEffect::LookForResults { item } => self.coordinators[c].lookups.push(item),
            CoreEffect::Receipt { id, .. } => self.handle_receipt(c, id),
            CoreEffect::Settled(_)
            | CoreEffect::Retry(_)
            | CoreEffect::Lost { .. }
            | CoreEffect::EventChunk(_) => {}
            effect => self.coordinators[c].outgoing_effects.push_back(effect),
        }
        true
    }

    /// Sends the first effect that waits for the server.
    pub(crate) fn send_effect(&mut self, c: usize) -> bool {
        if !self.ensure_coordinator_connected(c) {
            return false;
        }
        let Some(effect) = self.coordinators[c].outgoing_effects.pop_front() else { return false };
        let owner = self.coordinators[c].owner;
        match effect {
            CoreEffect::Offer { item, try_id, class, .. } => {
                let n = item_number(&item);
                self.log(|| format!("c{owner} offers item {n} try {try_id}"));
                let present = spec(self.specs[n]);
                self.broker.publish(names::offer(item, try_id, present, class));
                self.handle(c, CoreInput::Published(vec![(item, try_id)]));
            }
            CoreEffect::Withdraw { item, try_id } => {
                let n = item_number(&item);
                self.log(|| format!("c{owner} withdraws item {n} try {try_id}"));
                self.broker.withdraw(item, try_id);
            }
            CoreEffect::StopExecution { exec, .. } => {
                for w in 0..self.workers.len() {
                    if self.ensure_worker_connected(w) {
                        self.stop_execution(w, &exec);
                    }
                }
            }
            CoreEffect::Stop(_) => {
                for w in 0..self.workers.len() {
                    if self.ensure_worker_connected(w) {
                        self.stop_all_executions(w);
                    }
                }
            }
            _ => {}
        }
        true
    }

    fn handle_receipt(&mut self, c: usize, id: u64) {
        let commands = &mut self.coordinators[c].commands;
        let Some(at) = commands.iter().position(|(of, _)| *of == id) else { return };
        let (_, items) = commands.remove(at);
        if self.coordinators[c].owner != self.invariants.owner {
            return;
        }
        for item in items {
            if !self.invariants.settled.contains_key(&item) {
                self.invariants.cancelled.insert(item);
            }
        }
    }

    pub(crate) fn cancel_item(&mut self, c: usize, n: usize) -> bool {
        let Some(coordinator) = self.coordinators.get_mut(c) else { return false };
        if coordinator.paused || coordinator.is_gone() || self.setup.embedded {
            return false;
        }
        coordinator.last_request_id += 1;
        let id = coordinator.last_request_id;
        let item = self.new_item(n);
        self.invariants.cancel_requested.insert(item.item);
        self.coordinators[c].commands.push((id, vec![item.item]));
        self.log(|| format!("a user cancels item {n}"));
        self.handle(c, CoreInput::Cancel { id, items: vec![item] });
        true
    }

    pub(crate) fn stop_run(&mut self, c: usize) -> bool {
        let Some(coordinator) = self.coordinators.get(c) else { return false };
        if coordinator.paused || coordinator.is_gone() {
            return false;
        }
        self.log(|| "a user stops the run session".to_owned());
        self.handle(c, CoreInput::Stop(StopLevel::Drain));
        true
    }

    /// First half of a reconciliation round: reads reports to the head, then lists the queue.
    pub(crate) fn begin_reconcile(&mut self, c: usize) -> bool {
        if self.setup.embedded || !self.rules.reconciles || !self.ensure_coordinator_connected(c) {
            return false;
        }
        self.report_reconnect(c);
        while self.read_report(c) {}
        self.coordinators[c].listed = Some(self.broker.list());
        self.schedule_reconcile(c);
        true
    }

    /// Second half: reads heartbeats, then reports to the head again.
    pub(crate) fn end_reconcile(&mut self, c: usize) -> bool {
        if !self.ensure_coordinator_connected(c) {
            return false;
        }
        let Some(listed) = self.coordinators[c].listed.take() else { return false };
        self.observe_heartbeats(c);
        if self.rules.reconcile_reads_again {
            while self.read_report(c) {}
        }
        self.handle(c, CoreInput::Observed(listed));
        true
    }

    /// Looks up one missing item in the store.
    pub(crate) fn look_up_results(&mut self, c: usize) -> bool {
        if self.coordinators.get(c).is_none_or(|c| c.paused || c.is_gone()) {
            return false;
        }
        if self.store.down {
            return false;
        }
        let Some(item) = self.coordinators[c].lookups.pop() else { return false };
        let mut reports = self.store.results_of_item(&item);
        if !self.rules.looks_up_results {
            reports.clear();
        }
        self.coordinators[c].looked_up.push(item);
        let (n, found) = (item_number(&item), reports.len());
        self.log(|| format!("the store has {found} results of item {n}"));
        self.handle(c, CoreInput::Found { item, reports });
        true
    }

    /// Renews the lock, or ends if another process owns it.
    pub(crate) fn renew_lock(&mut self, c: usize, heard: bool) -> bool {
        if self.setup.embedded || !self.ensure_coordinator_connected(c) {
            return false;
        }
        let coordinator = &self.coordinators[c];
        let ModelCoordinator { owner, host, epoch, journalled: position, .. } = *coordinator;
        let directory = &mut self.directories[coordinator.directory];
        let records = directory.segment(epoch).durable;
        let head = Some(JournalHead { epoch, records, position });
        let value = LockValue { owner, host, epoch, head };
        // A process that took over the directory has written a newer epoch to it.
        let named = self.directories[self.coordinators[c].directory].epoch() == epoch;
        let revision = match &self.broker.lock {
            None => named.then_some(None),
            // A former owner may have written the lock after the server lost it; its older epoch
            // does not count.
            Some((at, lock)) if lock.owner == owner || lock.epoch < epoch => Some(Some(*at)),
            Some(_) => None,
        };
        if !revision.is_some_and(|revision| self.broker.write_lock(value, revision)) {
            self.log(|| format!("c{owner} has lost the run lock and ends"));
            self.coordinators[c].started = u64::MAX;
            return true;
        }
        self.lock_written = self.now;
        let settled: Vec<ItemId> = self.invariants.settled.keys().copied().collect();
        if self.invariants.owner == owner {
            self.invariants.confirmed.extend(settled);
            self.invariants.cancelled_for_all.clone_from(&self.invariants.cancelled);
        }
        let coordinator = &mut self.coordinators[c];
        coordinator.lock_renewal_due = self.now + LOCK_RENEWAL_INTERVAL;
        if heard {
            coordinator.confirmed = position;
        }
        true
    }

    /// Purges the reports that the journal contains.
    pub(crate) fn purge_reports(&mut self, c: usize) -> bool {
        if self.setup.embedded || !self.ensure_coordinator_connected(c) {
            return false;
        }
        let coordinator = &self.coordinators[c];
        let held =
            if self.rules.purges_confirmed { coordinator.confirmed } else { coordinator.cursor };
        let Some(position) = held else { return false };
        if self.rules.purge_checks_position && !self.broker.contains_position(&position) {
            return false;
        }
        let purged = self.broker.purge(position);
        let any = !purged.is_empty();
        self.invariants.purged.extend(purged);
        any
    }

    /// Everything a healthy coordinator does without delay.
    pub(crate) fn run_coordinator(&mut self, c: usize) -> bool {
        if self.coordinators[c].paused || self.coordinators[c].is_gone() {
            return false;
        }
        let mut moved = false;
        if self.now >= self.coordinators[c].lock_renewal_due {
            self.renew_lock(c, true);
            if self.coordinators[c].is_gone() {
                return true;
            }
        }
        while !self.coordinators[c].is_lagging && self.read_report(c) {
            moved = true;
        }
        let due = self.coordinators[c].core.next_due_ms();
        if due.is_some_and(|ms| ms + self.coordinators[c].started <= self.now) {
            self.handle(c, CoreInput::Tick);
        }
        let watches = self.rules.watches_heartbeats && !self.setup.embedded;
        if watches && self.now >= self.coordinators[c].heartbeats_due {
            self.observe_heartbeats(c);
        }
        while self.handle_claim(c) {
            moved = true;
        }
        if self.now >= self.coordinators[c].reconcile_due && self.begin_reconcile(c) {
            self.end_reconcile(c);
        }
        while self.look_up_results(c) {
            moved = true;
        }
        moved |= self.sync_journal(c);
        while self.perform_effect(c) {
            moved = true;
        }
        while self.send_effect(c) {
            moved = true;
        }
        self.purge_reports(c);
        moved
    }

    /// Ends a run session cleanly: withdraws its offers as far as the server can be reached.
    pub(crate) fn close_run_session(&mut self, c: usize) {
        let owed = u64::from(!self.coordinators[c].core.is_complete());
        let closed = rollout_engine::core::SessionEnd { cancelled: owed > 0, owed };
        let coordinator = &self.coordinators[c];
        let segment = self.directories[coordinator.directory].segment(coordinator.epoch);
        segment.records.push(JournalRecord::Closed(closed));
        self.sync_journal(c);
        while self.perform_effect(c) {}
        while self.send_effect(c) {}
        self.coordinators.remove(c);
    }
}

fn check_unread_claim(
    world: &mut Simulation,
    c: usize,
    id: u64,
    claim: &rollout_protocol::wire::claim::Claim,
) {
    world.handle(c, CoreInput::Claim { id, claim: claim.clone() });
    let run = CoreEffect::Answer { id, answer: rollout_protocol::wire::claim::ClaimAnswer::Run };
    if world.coordinators[c].undurable_effects.contains(&run) {
        let e = exec_number(&claim.exec);
        world.invariants.fail(format!("e{e} may run although a result of its item is unread"));
    }
}
