//! Model workers: their state in memory and on disk.

use std::collections::{BTreeMap, BTreeSet};

use rollout_protocol::id::{ExecId, WorkerId};
use rollout_protocol::phase::Phase;
use rollout_protocol::wire::claim::Claim;
use rollout_protocol::wire::delivery::MessageToken;
use rollout_protocol::wire::heartbeat::{ActiveExecution, Heartbeat, ResourceBudget};
use rollout_protocol::wire::offer::Offer;
use rollout_protocol::wire::report::{Report, ReportBody};

use crate::names::RUN;

/// A worker with its directory, across all its processes.
#[derive(Debug)]
pub(crate) struct ModelWorker {
    pub(crate) number: usize,
    pub(crate) slots: usize,
    /// Number of processes so far.
    pub(crate) process: u32,
    pub(crate) up: bool,
    /// Its network connection to the server works.
    pub(crate) online: bool,
    /// Its process is paused while its environments run.
    pub(crate) paused: bool,
    /// The worker and its directory are lost for good.
    pub(crate) destroyed: bool,
    /// Number of the connection that it last handled.
    pub(crate) connections: u64,
    pub(crate) suspicious_until: u64,
    /// Time at which it handled that connection.
    pub(crate) connected: u64,
    pub(crate) offline_since: Option<u64>,
    pub(crate) progress_due: u64,
    /// Deliveries whose claim awaits an answer.
    pub(crate) claiming: Vec<HeldDelivery>,
    pub(crate) running: Vec<RunningExecution>,
    /// Finished executions whose report is not acknowledged.
    pub(crate) finished: Vec<FinishedExecution>,
    /// Start reports not sent yet.
    pub(crate) start_reports: Vec<Report>,
    /// On disk: executions of dead processes to be reported as lost.
    pub(crate) loss_reports: Vec<Report>,
    pub(crate) acks: Vec<MessageToken>,
    /// Executions of a draining run are stopped as soon as they are seen.
    pub(crate) stopped: bool,
}

/// A suspicious delivery with its claim.
#[derive(Debug, Clone)]
pub(crate) struct HeldDelivery {
    pub(crate) offer: Offer,
    pub(crate) token: MessageToken,
    pub(crate) exec: ExecId,
    pub(crate) since: u64,
    pub(crate) in_slot: bool,
    /// A coordinator has received the claim.
    pub(crate) claim_received: bool,
    /// The answer was `run`, but no slot was free.
    pub(crate) cleared: bool,
}

/// A running execution.
#[derive(Debug, Clone)]
pub(crate) struct RunningExecution {
    pub(crate) offer: Offer,
    pub(crate) token: MessageToken,
    pub(crate) exec: ExecId,
    pub(crate) since: u64,
    pub(crate) announced: bool,
}

/// A finished execution.
#[derive(Debug, Clone)]
pub(crate) struct FinishedExecution {
    pub(crate) report: Report,
    /// Token to acknowledge; `None` for executions of a dead process.
    pub(crate) token: Option<MessageToken>,
    /// It ended at once and left nothing: no file, no marker.
    pub(crate) bare: bool,
    pub(crate) marked: bool,
    /// Sequence of the report, which counts as acknowledged when journaled. Only for the embedded
    /// queue, which is lost with its process.
    pub(crate) sent: Option<u64>,
}

impl ModelWorker {
    pub(crate) fn new(number: usize, slots: usize) -> Self {
        Self {
            number,
            slots,
            process: 1,
            up: true,
            online: true,
            paused: false,
            destroyed: false,
            connections: 0,
            suspicious_until: 0,
            connected: 0,
            offline_since: None,
            progress_due: 0,
            claiming: Vec::new(),
            running: Vec::new(),
            finished: Vec::new(),
            start_reports: Vec::new(),
            loss_reports: Vec::new(),
            acks: Vec::new(),
            stopped: false,
        }
    }

    pub(crate) fn id(&self) -> WorkerId {
        format!("w{}-{}", self.number, self.process).parse().expect("a token")
    }

    pub(crate) fn is_active(&self) -> bool {
        self.up && !self.paused
    }

    pub(crate) fn free_slots(&self) -> usize {
        let in_slots = self.claiming.iter().filter(|held| held.in_slot).count();
        self.slots.saturating_sub(self.running.len() + in_slots)
    }

    pub(crate) fn claim(&self, held: &HeldDelivery) -> Claim {
        let Offer { item, try_id, spec, .. } = held.offer;
        Claim { run: RUN, item, try_id, exec: held.exec, spec, worker: self.id(), stage: None }
    }

    pub(crate) fn report(&self, offer: &Offer, exec: ExecId, body: ReportBody) -> Report {
        let Offer { item, try_id, spec, .. } = *offer;
        Report { run: RUN, item, try_id, exec, spec, worker: self.id(), body }
    }

    /// Heartbeat with all executions whose report is not acknowledged, and the claims.
    pub(crate) fn heartbeat(&self, with_finished: bool) -> Heartbeat {
        let line = |offer: &Offer, exec, phase, claiming| {
            let Offer { run, item, try_id, .. } = *offer;
            ActiveExecution { run, item, try_id, exec, phase, claiming, stage: None, parked: None }
        };
        let running = self.running.iter();
        let mut executions: Vec<ActiveExecution> =
            running.map(|e| line(&e.offer, e.exec, Phase::AgentExecution, false)).collect();
        let claiming = self.claiming.iter();
        executions.extend(claiming.map(|h| line(&h.offer, h.exec, Phase::Queued, true)));
        if with_finished {
            executions.extend(self.finished.iter().map(|finished| {
                let Report { run, item, try_id, exec, .. } = finished.report;
                let phase = Phase::Teardown;
                ActiveExecution {
                    run,
                    item,
                    try_id,
                    exec,
                    phase,
                    claiming: false,
                    stage: None,
                    parked: None,
                }
            }));
        }
        Heartbeat {
            worker: self.id(),
            host: format!("host-{}", self.number),
            version: "0".to_owned(),
            store: "store".to_owned(),
            pool: "default".to_owned(),
            slots: u32::try_from(self.slots).expect("few"),
            free: u32::try_from(self.free_slots()).expect("few"),
            budget: ResourceBudget::default(),
            providers: BTreeMap::new(),
            variables: BTreeSet::new(),
            max_offline_sec: None,
            draining: false,
            low_disk: false,
            disk_fault: None,
            gone: false,
            executions,
            model_calls: Vec::new(),
            model_leases: Vec::new(),
        }
    }

    /// Tokens of everything it holds.
    pub(crate) fn tokens(&self) -> Vec<MessageToken> {
        let claiming = self.claiming.iter().map(|held| held.token);
        let running = self.running.iter().map(|execution| execution.token);
        let finished = self.finished.iter().filter_map(|finished| finished.token);
        claiming.chain(running).chain(finished).collect()
    }

    /// Whether the worker already holds the try. If so, takes over the token of the new delivery.
    pub(crate) fn refresh_token(&mut self, offer: &Offer, token: MessageToken) -> bool {
        let same = |other: &Offer| (other.item, other.try_id) == (offer.item, offer.try_id);
        let claiming = self.claiming.iter_mut().map(|held| (held.offer, &mut held.token));
        let running = self.running.iter_mut().map(|held| (held.offer, &mut held.token));
        for (offer, held) in claiming.chain(running) {
            if same(&offer) {
                *held = token;
                return true;
            }
        }
        for finished in &mut self.finished {
            let report = &finished.report;
            if finished.token.is_some()
                && (report.item, report.try_id) == (offer.item, offer.try_id)
            {
                finished.token = Some(token);
                return true;
            }
        }
        false
    }
}
