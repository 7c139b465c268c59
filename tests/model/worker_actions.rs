//! Actions of workers.

use rollout_protocol::id::ExecId;
use rollout_protocol::record::LostReason;
use rollout_protocol::wire::claim::ClaimAnswer;
use rollout_protocol::wire::delivery::MessageToken;
use rollout_protocol::wire::offer::Offer;
use rollout_protocol::wire::report::ReportBody;

use crate::invariants::ExecutionFact;
use crate::names::{self, ExecutionEnding, LEASE, exec, exec_number, item_number};
use crate::simulation::Simulation;
use crate::worker::{FinishedExecution, HeldDelivery, ModelWorker, RunningExecution};

/// Time for which a claim keeps a slot.
const CLAIM_SLOT_TIME: u64 = 5_000;
/// Time for which a worker keeps executions running without the server.
pub(crate) const MAX_OFFLINE: u64 = 30 * 60_000;
/// An execution that lasts longer is announced and leaves a marker.
const ANNOUNCE_AFTER: u64 = 1_000;
/// After this time an execution is visible to others.
const VISIBLE_AFTER: u64 = 2_000;

/// Reason for starting an execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StartReason {
    Unclaimed,
    Answered,
    NoAnswer,
}

impl Simulation {
    /// Whether the worker can reach the server. Handles a new connection first.
    pub(crate) fn ensure_worker_connected(&mut self, w: usize) -> bool {
        let worker = &mut self.workers[w];
        if !worker.is_active() || !worker.online || !self.broker.up {
            return false;
        }
        if worker.connections != self.broker.connections {
            worker.connections = self.broker.connections;
            worker.connected = self.now;
            worker.progress_due = self.now;
            if self.rules.suspicion {
                worker.suspicious_until = self.now + LEASE;
            }
            worker.claiming.iter_mut().for_each(|held| held.claim_received = false);
            self.publish_heartbeat(w);
        }
        true
    }

    pub(crate) fn publish_heartbeat(&mut self, w: usize) {
        let worker = &self.workers[w];
        let heartbeat = worker.heartbeat(self.rules.heartbeat_lists_finished);
        self.broker.heartbeats.insert(heartbeat.worker.clone(), (self.now, heartbeat));
    }

    /// Takes one delivery if a slot is free.
    pub(crate) fn pull_delivery(&mut self, w: usize, nth: usize) -> bool {
        if !self.ensure_worker_connected(w)
            || self.workers[w].free_slots() == 0
            || self.workers[w].stopped
        {
            return false;
        }
        let ready = self.broker.ready(self.now);
        if ready.is_empty() {
            return false;
        }
        let sequence = ready[nth % ready.len()];
        let delivery = self.broker.deliver(self.now, sequence).expect("it is ready");
        let (offer, token) = (delivery.offer, delivery.token);
        let n = item_number(&offer.item);
        let times = delivery.delivered;
        self.log(|| format!("w{w} pulls item {n} try {}, delivered {times}", offer.try_id));
        if self.workers[w].refresh_token(&offer, token) {
            return true;
        }
        self.executions += 1;
        let exec = exec(self.executions);
        let worker = &self.workers[w];
        let suspicious =
            delivery.delivered > 1 || offer.try_id.n > 1 || self.now < worker.suspicious_until;
        if suspicious {
            let since = self.now;
            let (in_slot, claim_received, cleared) = (true, false, false);
            let held = HeldDelivery { offer, token, exec, since, in_slot, claim_received, cleared };
            self.workers[w].claiming.push(held);
        } else {
            self.start_execution(w, offer, token, exec, StartReason::Unclaimed);
        }
        true
    }

    fn start_execution(
        &mut self,
        w: usize,
        offer: Offer,
        token: MessageToken,
        exec: ExecId,
        why: StartReason,
    ) {
        let (n, e) = (item_number(&offer.item), exec_number(&exec));
        self.log(|| format!("w{w} runs e{e} of item {n} try {} ({why:?})", offer.try_id));
        if why == StartReason::Unclaimed && self.ran_before(&offer) {
            self.invariants.fail(format!("item {n} runs again as e{e} without a claim"));
        }
        let Offer { item, try_id, spec, .. } = offer;
        if why == StartReason::Answered
            && let Some(other) = self.held_by_other_worker(w, &offer)
        {
            self.invariants.fail(format!("e{e} of item {n} may run although e{other} is held"));
        }
        let fact =
            ExecutionFact { item, try_id, spec, verdict: None, died: false, has_marker: false };
        self.invariants.record_start(exec, fact);
        let (since, announced) = (self.now, why != StartReason::Unclaimed);
        let worker = &mut self.workers[w];
        worker.running.push(RunningExecution { offer, token, exec, since, announced });
        if announced {
            let began = worker.report(&offer, exec, ReportBody::Started);
            worker.start_reports.push(began);
        }
    }

    /// Whether the same try was already run and not lost. An offer whose acknowledgement the server
    /// lost can outlast the suspicion period while no worker has a slot for it and no coordinator
    /// withdraws it.
    fn ran_before(&self, offer: &Offer) -> bool {
        if self.acks_lost.is_some_and(|at| self.now > at + LEASE) {
            return false;
        }
        let same = |fact: &ExecutionFact| (fact.item, fact.try_id) == (offer.item, offer.try_id);
        self.invariants.executions.values().any(|fact| same(fact) && !fact.died)
    }

    /// An execution of the same try that another worker holds and could have shown.
    fn held_by_other_worker(&self, w: usize, offer: &Offer) -> Option<u32> {
        let since = self.now.saturating_sub(VISIBLE_AFTER);
        let reachable = |other: &&ModelWorker| {
            let heard = other.connections == self.broker.connections && other.connected < since;
            other.number != w && other.is_active() && other.online && heard
        };
        let others = self.workers.iter().filter(reachable);
        let mut held = others.flat_map(|other| {
            let running = other.running.iter().filter(|execution| execution.since < since);
            let running = running.map(|held| (held.offer.item, held.offer.try_id, held.exec));
            let finished = other.finished.iter().map(|finished| &finished.report);
            let results = finished.filter(|report| matches!(report.body, ReportBody::Result(_)));
            running.chain(results.map(|report| (report.item, report.try_id, report.exec)))
        });
        let same = held.find(|(item, try_id, _)| (*item, *try_id) == (offer.item, offer.try_id));
        same.map(|(.., exec)| exec_number(&exec))
    }

    /// Sends the claim of a held delivery to all connected coordinators.
    pub(crate) fn send_claim(&mut self, w: usize, i: usize) -> bool {
        let held = self.workers[w].claiming.get(i);
        if held.is_none_or(|held| held.claim_received || held.cleared)
            || !self.ensure_worker_connected(w)
        {
            return false;
        }
        let claim = self.workers[w].claim(&self.workers[w].claiming[i]);
        let head = self.broker.reports_head();
        let connections = self.broker.connections;
        let mut heard = false;
        for coordinator in &mut self.coordinators {
            if !coordinator.paused && coordinator.connections == connections {
                heard = true;
                coordinator.received_claims.push(crate::coordinator::ReceivedClaim {
                    worker: w,
                    claim: claim.clone(),
                    head,
                });
            }
        }
        self.workers[w].claiming[i].claim_received = heard;
        heard
    }

    /// Handles an answer, if the worker still waits for it.
    pub(crate) fn receive_answer(&mut self, w: usize, exec: &ExecId, answer: ClaimAnswer) {
        let e = exec_number(exec);
        if !self.ensure_worker_connected(w) {
            return;
        }
        let Some(i) = self.workers[w].claiming.iter().position(|held| held.exec == *exec) else {
            return;
        };
        if self.workers[w].claiming[i].cleared {
            return;
        }
        self.log(|| format!("w{w} is answered {answer:?} for e{e}"));
        match answer {
            ClaimAnswer::Run => {
                self.workers[w].claiming[i].cleared = true;
                self.start_cleared(w);
            }
            ClaimAnswer::Hold if !self.rules.hold_answer_forgets => {
                self.workers[w].claiming[i].claim_received = false;
            }
            ClaimAnswer::Hold => {
                self.workers[w].claiming.remove(i);
            }
            ClaimAnswer::Drop => {
                let held = self.workers[w].claiming.remove(i);
                self.workers[w].acks.push(held.token);
            }
        }
    }

    /// Starts one cleared delivery that has a slot.
    fn start_cleared(&mut self, w: usize) -> bool {
        let worker = &mut self.workers[w];
        let free = worker.free_slots();
        let fits = |held: &HeldDelivery| held.cleared && (held.in_slot || free > 0);
        let Some(i) = worker.claiming.iter().position(fits) else { return false };
        let HeldDelivery { offer, token, exec, .. } = worker.claiming.remove(i);
        self.start_execution(w, offer, token, exec, StartReason::Answered);
        true
    }

    /// Handles the worker's timers.
    fn handle_worker_timers(&mut self, w: usize) -> bool {
        let now = self.now;
        let worker = &mut self.workers[w];
        let mut moved = false;
        let off_slot = worker.claiming.iter().filter(|held| !held.in_slot).count();
        let mut free_places = worker.slots.saturating_sub(off_slot);
        worker.claiming.retain_mut(|held| {
            if held.in_slot && !held.cleared && now >= held.since + CLAIM_SLOT_TIME {
                moved = true;
                held.in_slot = false;
                let kept = free_places > 0;
                free_places = free_places.saturating_sub(1);
                return kept;
            }
            true
        });
        for at in 0..worker.running.len() {
            let RunningExecution { offer, exec, since, announced, .. } = worker.running[at].clone();
            if !announced && now > since + ANNOUNCE_AFTER {
                worker.running[at].announced = true;
                let began = worker.report(&offer, exec, ReportBody::Started);
                worker.start_reports.push(began);
                moved = true;
            }
        }
        moved | self.decide_unanswered_claim(w) | self.stop_when_offline(w)
    }

    /// Lets the worker itself decide the first claim without an answer for a lease.
    pub(crate) fn decide_unanswered_claim(&mut self, w: usize) -> bool {
        let due = |held: &HeldDelivery| !held.cleared && self.now >= held.since + LEASE;
        let Some(i) = self.workers[w].claiming.iter().position(due) else { return false };
        if !self.ensure_worker_connected(w) {
            return false;
        }
        let worker = &mut self.workers[w];
        let held = worker.claiming.remove(i);
        let claim = worker.claim(&held);
        let HeldDelivery { offer, token, exec, .. } = held;
        let (n, e) = (item_number(&offer.item), exec_number(&exec));
        let now = self.now;
        let mut heartbeats = self.broker.heartbeats.values();
        let contested = heartbeats
            .any(|(at, heartbeat)| now < at + LEASE && heartbeat_contests_claim(&claim, heartbeat));
        let marked = self.store.has_marker(&offer.item, offer.try_id);
        self.log(|| format!("w{w} has no answer for e{e}: contested {contested}, marked {marked}"));
        let marker = (marked || self.store.down) && self.rules.checks_markers;
        if (contested && self.rules.checks_peer_heartbeats) || marker {
            return true;
        }
        if contested {
            self.invariants.fail(format!("e{e} of item {n} runs beside one listed in a heartbeat"));
        }
        if marked && self.rules.markers {
            self.invariants.fail(format!("e{e} of item {n} runs although the try has a marker"));
        }
        if self.workers[w].free_slots() == 0 {
            return true;
        }
        self.start_execution(w, offer, token, exec, StartReason::NoAnswer);
        true
    }

    fn stop_when_offline(&mut self, w: usize) -> bool {
        let worker = &self.workers[w];
        let alone = worker.offline_since.is_some_and(|since| self.now >= since + MAX_OFFLINE);
        if !alone || worker.running.is_empty() {
            return false;
        }
        self.stop_all_executions(w);
        true
    }

    /// Stops all executions of a worker.
    pub(crate) fn stop_all_executions(&mut self, w: usize) {
        while let Some(execution) = self.workers[w].running.first() {
            let exec = execution.exec;
            self.stop_execution(w, &exec);
        }
        self.workers[w].claiming.clear();
    }

    /// Stops an execution early.
    pub(crate) fn stop_execution(&mut self, w: usize, exec: &ExecId) {
        let worker = &mut self.workers[w];
        worker.claiming.retain(|held| held.exec != *exec || held.cleared);
        let Some(at) = worker.running.iter().position(|e| e.exec == *exec) else { return };
        let RunningExecution { offer, token, .. } = worker.running.remove(at);
        let report = worker.report(&offer, *exec, names::lost_body(LostReason::Stopped));
        let token = Some(token);
        worker.finished.push(FinishedExecution {
            report,
            token,
            bare: false,
            marked: true,
            sent: None,
        });
        let e = exec_number(exec);
        self.log(|| format!("w{w} stops e{e}"));
    }

    /// Finishes an execution; its environment is gone.
    pub(crate) fn finish_execution(
        &mut self,
        w: usize,
        i: usize,
        ending: ExecutionEnding,
        bare: bool,
    ) -> bool {
        let now = self.now;
        let worker = &mut self.workers[w];
        if !worker.up || i >= worker.running.len() {
            return false;
        }
        let RunningExecution { offer, token, exec, since, .. } = worker.running.remove(i);
        let bare = bare && now <= since + ANNOUNCE_AFTER;
        let report = worker.report(&offer, exec, names::result_body(exec, ending));
        self.invariants.record_result(&report);
        self.log(|| format!("w{w} finishes: {}", names::summarize_report(&report)));
        let marked = bare || !self.rules.markers;
        let token = Some(token);
        let finished = FinishedExecution { report, token, bare, marked, sent: None };
        self.workers[w].finished.push(finished);
        true
    }

    /// Stores a finished record with its marker.
    pub(crate) fn store_marker(&mut self, w: usize, i: usize) -> bool {
        let worker = &mut self.workers[w];
        let acts = worker.is_active() && !self.store.down;
        let Some(finished) = worker.finished.get_mut(i).filter(|f| acts && !f.marked) else {
            return false;
        };
        finished.marked = true;
        let report = finished.report.clone();
        self.log(|| format!("w{w} marks: {}", names::summarize_report(&report)));
        self.store.put_marker(report);
        true
    }

    /// Reports a finished execution; `heard` is false when the acknowledgement is lost.
    pub(crate) fn publish_result(&mut self, w: usize, i: usize, heard: bool) -> bool {
        if !self.workers[w].finished.get(i).is_some_and(|f| f.marked && f.sent.is_none()) {
            return false;
        }
        if !self.ensure_worker_connected(w) {
            return false;
        }
        let report = self.workers[w].finished[i].report.clone();
        let Some(sequence) = self.broker.report(report.clone()) else { return false };
        self.log(|| {
            format!(
                "w{w} reports{}: {}",
                ["unheard", ""][usize::from(heard)],
                names::summarize_report(&report)
            )
        });
        if !self.workers[w].finished[i].bare {
            self.invariants.record_kept_result(&report.exec);
        }
        if self.setup.embedded {
            self.workers[w].finished[i].sent = Some(sequence);
        } else if heard {
            let finished = self.workers[w].finished.remove(i);
            self.workers[w].acks.extend(finished.token);
        }
        true
    }

    /// Sends one start report, not necessarily the first.
    pub(crate) fn report_start(&mut self, w: usize, i: usize) -> bool {
        if i >= self.workers[w].start_reports.len() || !self.ensure_worker_connected(w) {
            return false;
        }
        let report = self.workers[w].start_reports[i].clone();
        if self.broker.report(report.clone()).is_none() {
            return false;
        }
        self.workers[w].start_reports.remove(i);
        self.log(|| format!("w{w} reports: {}", names::summarize_report(&report)));
        true
    }

    /// Reports one execution of a dead process as lost.
    pub(crate) fn report_loss(&mut self, w: usize) -> bool {
        if self.workers[w].loss_reports.is_empty() || !self.ensure_worker_connected(w) {
            return false;
        }
        let report = self.workers[w].loss_reports[0].clone();
        if self.broker.report(report.clone()).is_none() {
            return false;
        }
        self.workers[w].loss_reports.remove(0);
        self.log(|| format!("w{w} reports: {}", names::summarize_report(&report)));
        true
    }

    pub(crate) fn send_acks(&mut self, w: usize) -> bool {
        if self.workers[w].acks.is_empty() || !self.ensure_worker_connected(w) {
            return false;
        }
        let incarnation = self.broker.incarnation();
        for token in std::mem::take(&mut self.workers[w].acks) {
            if token.incarnation == incarnation {
                self.broker.ack(token);
            } else if !self.rules.acks_check_incarnation && self.broker.ack(token) {
                self.invariants.fail("an acknowledgement of an old incarnation removes an offer");
            }
        }
        true
    }

    pub(crate) fn extend_leases(&mut self, w: usize) -> bool {
        if self.now < self.workers[w].progress_due || !self.ensure_worker_connected(w) {
            return false;
        }
        let incarnation = self.broker.incarnation();
        for token in self.workers[w].tokens() {
            if token.incarnation == incarnation || !self.rules.acks_check_incarnation {
                self.broker.progress(self.now, token);
            }
        }
        self.workers[w].progress_due = self.now + LEASE / 3;
        false
    }

    /// Everything a healthy worker does without delay.
    pub(crate) fn run_worker(&mut self, w: usize) -> bool {
        if !self.workers[w].is_active() {
            return false;
        }
        let mut moved = self.handle_worker_timers(w);
        self.extend_leases(w);
        while self.start_cleared(w) {
            moved = true;
        }
        while self.report_start(w, 0) || self.report_loss(w) {
            moved = true;
        }
        let mut i = 0;
        while i < self.workers[w].finished.len() {
            moved |= self.store_marker(w, i);
            let before = self.workers[w].finished.len();
            moved |= self.publish_result(w, i, true);
            i += usize::from(self.workers[w].finished.len() == before);
        }
        moved |= self.send_acks(w);
        while self.pull_delivery(w, 0) {
            moved = true;
        }
        for i in 0..self.workers[w].claiming.len() {
            moved |= self.send_claim(w, i);
        }
        if self.ensure_worker_connected(w) {
            self.publish_heartbeat(w);
        }
        moved
    }

    /// Time of the worker's next timer.
    pub(crate) fn next_worker_deadline(&self, w: usize) -> u64 {
        let worker = &self.workers[w];
        if !worker.is_active() {
            return u64::MAX;
        }
        let claims = worker.claiming.iter().filter(|held| !held.cleared).map(|held| {
            if held.in_slot { held.since + CLAIM_SLOT_TIME } else { held.since + LEASE }
        });
        let fresh = worker.running.iter().filter(|execution| !execution.announced);
        let beginnings = fresh.map(|execution| execution.since + ANNOUNCE_AFTER + 1);
        let holds = !worker.tokens().is_empty() && worker.online && self.broker.up;
        let progress = if holds { worker.progress_due } else { u64::MAX };
        claims
            .chain(beginnings)
            .chain([progress])
            .filter(|due| *due > self.now)
            .min()
            .unwrap_or(u64::MAX)
    }
}

/// Whether a heartbeat shows the claimed try at another worker that runs it or has priority. Among
/// workers that only claim the try, the lowest execution id has priority.
fn heartbeat_contests_claim(
    claim: &rollout_protocol::wire::claim::Claim,
    heartbeat: &rollout_protocol::wire::heartbeat::Heartbeat,
) -> bool {
    heartbeat.worker != claim.worker
        && heartbeat.executions.iter().any(|execution| {
            (execution.item, execution.try_id) == (claim.item, claim.try_id)
                && (!execution.claiming || execution.exec < claim.exec)
        })
}
