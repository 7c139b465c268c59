//! A coordinator: the real core between a journal, a report reader, and an outlet.

use std::collections::VecDeque;

use rollout_engine::core::{
    Core, CoreEffect, CoreInput, CoreOutput, CoreSettings, InputTime, ItemSettlement,
    JournalRecord, NewItem, RemoteTimeouts, SessionStart,
};
use rollout_protocol::Timestamp;
use rollout_protocol::id::ItemId;
use rollout_protocol::limits::READY_AHEAD;
use rollout_protocol::retry::RetryPolicy;
use rollout_protocol::wire::claim::Claim;
use rollout_protocol::wire::delivery::QueuedOffer;
use rollout_protocol::wire::offer::SizeClass;
use rollout_protocol::wire::position::ReportPosition;

use crate::names::{RUN, WALL, item, spec};
use crate::reference::ReferenceModel;
use crate::simulation::Simulation;

/// Interval of lock renewals.
pub(crate) const LOCK_RENEWAL_INTERVAL: u64 = 10_000;
/// Interval of reconciliation rounds.
const RECONCILE_INTERVAL: u64 = 30_000;

/// One run session.
#[derive(Debug)]
pub(crate) struct ModelCoordinator {
    pub(crate) owner: u32,
    pub(crate) host: usize,
    pub(crate) directory: usize,
    pub(crate) epoch: u32,
    pub(crate) core: Core,
    pub(crate) reference: ReferenceModel,
    pub(crate) paused: bool,
    pub(crate) lock_renewal_due: u64,
    /// The last report that any successor's journal is certain to contain.
    pub(crate) confirmed: Option<ReportPosition>,
    /// The last report in the durable journal.
    pub(crate) journalled: Option<ReportPosition>,
    pub(crate) connections: u64,
    /// The last report that was read.
    pub(crate) cursor: Option<ReportPosition>,
    /// The connection is new: the report at the cursor was not checked.
    pub(crate) unchecked: bool,
    /// The core was not notified of the connection.
    pub(crate) reconnect_unreported: bool,
    /// Effects whose records are not yet durable.
    pub(crate) undurable_effects: Vec<CoreEffect>,
    /// Effects ready to be performed.
    pub(crate) ready_effects: VecDeque<CoreEffect>,
    /// Effects that wait for the server.
    pub(crate) outgoing_effects: VecDeque<CoreEffect>,
    /// Received claims that the core has not seen; `pending` holds those that await its answer.
    pub(crate) received_claims: Vec<ReceivedClaim>,
    pub(crate) pending_answers: Vec<(u64, usize, Claim)>,
    pub(crate) last_request_id: u64,
    pub(crate) commands: Vec<(u64, Vec<ItemId>)>,
    pub(crate) listed: Option<Vec<QueuedOffer>>,
    pub(crate) reconcile_due: u64,
    pub(crate) lookups: Vec<ItemId>,
    /// Items looked up in the store since their last offer.
    pub(crate) looked_up: Vec<ItemId>,
    pub(crate) heartbeats_due: u64,
    pub(crate) started: u64,
    pub(crate) fed: usize,
    /// Its report reader is far behind and reads only on demand.
    pub(crate) is_lagging: bool,
}

/// A received claim, with the head of the reports at that moment.
#[derive(Debug, Clone)]
pub(crate) struct ReceivedClaim {
    pub(crate) worker: usize,
    pub(crate) claim: Claim,
    pub(crate) head: u64,
}

/// Records and effects in their common order.
#[derive(Debug, Default)]
struct Recorder {
    records: Vec<(usize, JournalRecord)>,
    effects: Vec<CoreEffect>,
}

impl CoreOutput for Recorder {
    fn record(&mut self, _: Timestamp, record: &JournalRecord) {
        self.records.push((self.effects.len(), record.clone()));
    }

    fn effects(&mut self) -> &mut Vec<CoreEffect> {
        &mut self.effects
    }
}

pub(crate) fn policy() -> RetryPolicy {
    RetryPolicy { initial_delay_ms: 4000, ..RetryPolicy::default() }
}

impl Simulation {
    fn settings(&self, epoch: u32) -> CoreSettings {
        let timeouts = RemoteTimeouts::default();
        CoreSettings { run: RUN, epoch, permits: self.setup.permits, retry: policy(), timeouts }
    }

    pub(crate) fn new_item(&self, n: usize) -> NewItem {
        let (spec, class) = (spec(self.specs[n]), SizeClass(0));
        NewItem { item: item(n), ordinal: n as u64, spec, class, lane: 0 }
    }

    /// Begins a run session with the journal of a directory.
    pub(crate) fn begin_run_session(&mut self, host: usize, directory: usize, epoch: u32) {
        self.owners += 1;
        let owner = self.owners;
        let mut core = Core::new(self.settings(epoch));
        let mut reference = ReferenceModel::default();
        let mut settled: Vec<ItemSettlement> = Vec::new();
        let mut effects = Vec::new();
        let same = self.invariants.directory == directory;
        for record in self.directories[directory].replay() {
            reference.apply_record(record);
            core.apply(WALL, record.clone(), &mut effects);
            for effect in effects.drain(..) {
                if let CoreEffect::Settled(by) = effect {
                    if let Err(broken) = reference.settle(&by) {
                        self.invariants.fail(format!("replay: {broken}"));
                    }
                    settled.push(*by);
                }
            }
        }
        self.invariants.check_replay(&settled, same);
        self.check_purged(directory);
        let position = core.position();
        core.begin_session(RUN, policy());
        self.open_segment(directory, epoch);
        let connections = self.broker.connections;
        self.coordinators.push(ModelCoordinator {
            owner,
            host,
            directory,
            epoch,
            core,
            reference,
            paused: false,
            lock_renewal_due: self.now,
            confirmed: None,
            journalled: position,
            connections,
            cursor: position,
            unchecked: true,
            reconnect_unreported: false,
            undurable_effects: Vec::new(),
            ready_effects: VecDeque::new(),
            outgoing_effects: VecDeque::new(),
            received_claims: Vec::new(),
            pending_answers: Vec::new(),
            last_request_id: 0,
            commands: Vec::new(),
            listed: None,
            reconcile_due: self.now,
            lookups: Vec::new(),
            looked_up: Vec::new(),
            heartbeats_due: self.now,
            started: self.now,
            fed: 0,
            is_lagging: false,
        });
        self.invariants.owner = owner;
        self.invariants.directory = directory;
        let c = self.coordinators.len() - 1;
        self.adopt_plan(c);
    }

    fn adopt_plan(&mut self, c: usize) {
        let known: Vec<ItemId> = self.coordinators[c].core.items().collect();
        let items: Vec<NewItem> = (0..self.setup.items)
            .filter(|n| known.contains(&item(*n)))
            .map(|n| self.new_item(n))
            .collect();
        if !items.is_empty() {
            self.handle(c, CoreInput::Items(items));
        }
        if !self.setup.embedded {
            self.handle(c, CoreInput::ResumeRemote);
        }
        self.feed_plan(c);
    }

    fn open_segment(&mut self, directory: usize, epoch: u32) {
        let directory = &mut self.directories[directory];
        let opened = JournalRecord::Opened(Box::new(SessionStart {
            format: rollout_protocol::version::RUN_FORMAT,
            run: RUN,
            epoch,
            plan: spec(0),
            retry: policy(),
            version: String::new(),
            owner: String::new(),
            former: directory.seal_last_segment(),
            holder: None,
            takeover: None,
            pool: None,
            replaces: Vec::new(),
            reopened: Vec::new(),
            reopened_within: Vec::new(),
        }));
        let records = vec![opened];
        directory.segments.push(crate::journal::ModelJournalSegment { epoch, records, durable: 1 });
    }

    /// Checks that the successor's journal contains every purged report.
    fn check_purged(&mut self, directory: usize) {
        let kind = |report: &rollout_protocol::wire::report::Report| {
            (report.exec, std::mem::discriminant(&report.body))
        };
        let records: Vec<_> = self.directories[directory]
            .replay()
            .filter_map(|record| match record {
                JournalRecord::Reported { report, .. } => Some(kind(report)),
                _ => None,
            })
            .collect();
        let missing = self.invariants.purged.iter().find(|report| !records.contains(&kind(report)));
        if let Some(report) = missing {
            let what = crate::names::summarize_report(report);
            self.invariants.fail(format!("{what} was purged, and the successor lacks it"));
        }
    }

    /// Feeds the core the plan items it wants.
    fn feed_plan(&mut self, c: usize) {
        loop {
            let coordinator = &mut self.coordinators[c];
            let wanted = coordinator.core.wanted_items(READY_AHEAD);
            if wanted == 0 {
                return;
            }
            let from = coordinator.fed;
            let to = (from + wanted).min(self.setup.items);
            coordinator.fed = to;
            if from == to {
                self.handle_input(c, CoreInput::PlanComplete);
            } else {
                let items = (from..to).map(|n| self.new_item(n)).collect();
                self.handle_input(c, CoreInput::Items(items));
            }
        }
    }

    /// Gives the core one input, then the plan items it wants.
    pub(crate) fn handle(&mut self, c: usize, input: CoreInput) {
        self.handle_input(c, input);
        self.feed_plan(c);
    }

    fn handle_input(&mut self, c: usize, input: CoreInput) {
        self.inputs += 1;
        let coordinator = &mut self.coordinators[c];
        let monotonic_ms = self.now - coordinator.started;
        let mut out = Recorder::default();
        let now = InputTime { monotonic_ms, wall: WALL };
        coordinator.core.handle(now, input, &mut out);
        if let Err(broken) = coordinator.core.check_invariants() {
            self.invariants.fail(broken.to_string());
        }
        let mut records = out.records.into_iter().peekable();
        let segment = self.directories[coordinator.directory].segment(coordinator.epoch);
        for (at, effect) in out.effects.iter().enumerate() {
            while let Some((_, record)) = records.next_if(|(before, _)| *before <= at) {
                coordinator.reference.apply_record(&record);
                segment.records.push(record);
            }
            if let CoreEffect::Offer { item, .. } = effect
                && coordinator.looked_up.contains(item)
            {
                coordinator.looked_up.retain(|looked| looked != item);
                if let Err(broken) =
                    coordinator.reference.may_offer(item, &self.invariants.executions)
                {
                    self.invariants.fail(broken);
                }
            }
            if let CoreEffect::Settled(settled) = effect {
                let judged = coordinator.reference.settle(settled);
                let present = spec(self.specs[crate::names::item_number(&settled.item)]);
                let owner = self.invariants.owner == coordinator.owner;
                let truth =
                    if owner { self.invariants.check_settlement(settled, present) } else { Ok(()) };
                if let Err(broken) = judged.and(truth) {
                    self.invariants.fail(broken);
                }
            }
        }
        for (_, record) in records {
            coordinator.reference.apply_record(&record);
            segment.records.push(record);
        }
        coordinator.undurable_effects.extend(out.effects);
    }

    /// Time of the coordinator's next timer.
    pub(crate) fn next_coordinator_deadline(&self, c: usize) -> u64 {
        let coordinator = &self.coordinators[c];
        let core = coordinator.core.next_due_ms().map(|ms| ms + coordinator.started);
        let ModelCoordinator { lock_renewal_due, reconcile_due, heartbeats_due, .. } = *coordinator;
        let own = [lock_renewal_due, reconcile_due, heartbeats_due]
            .into_iter()
            .filter(|_| !self.setup.embedded);
        own.chain(core).filter(|due| *due > self.now).min().unwrap_or(u64::MAX)
    }

    pub(crate) fn schedule_reconcile(&mut self, c: usize) {
        self.coordinators[c].reconcile_due = self.now + RECONCILE_INTERVAL;
    }
}
