//! State of the simulated world, and the rules of its progress.

use crate::broker::ModelBroker;
use crate::coordinator::ModelCoordinator;
use crate::invariants::InvariantChecker;
use crate::journal::ModelRunDirectory;
use crate::rules::ProtocolRules;
use crate::store::ModelStore;
use crate::worker::ModelWorker;

/// Initial state of a schedule.
#[derive(Debug, Clone)]
pub(crate) struct SimulationSetup {
    pub(crate) items: usize,
    pub(crate) permits: usize,
    /// Slots of every worker.
    pub(crate) slots: Vec<usize>,
    /// Unpurged reports that the queue holds.
    pub(crate) reports_limit: usize,
    /// The workers have been connected for a long time.
    pub(crate) settled_workers: bool,
    /// Coordinator, queue and one worker are one process.
    pub(crate) embedded: bool,
}

#[derive(Debug)]
pub(crate) struct Simulation {
    pub(crate) setup: SimulationSetup,
    pub(crate) rules: ProtocolRules,
    /// Milliseconds.
    pub(crate) now: u64,
    pub(crate) broker: ModelBroker,
    pub(crate) store: ModelStore,
    pub(crate) workers: Vec<ModelWorker>,
    pub(crate) coordinators: Vec<ModelCoordinator>,
    pub(crate) directories: Vec<ModelRunDirectory>,
    /// Current spec version of each item in the plan.
    pub(crate) specs: Vec<u8>,
    pub(crate) invariants: InvariantChecker,
    pub(crate) owners: u32,
    pub(crate) executions: u32,
    pub(crate) inputs: u64,
    /// Time of the last lock write, or since when the server answers.
    pub(crate) lock_written: u64,
    /// Time at which the server last lost acknowledgements.
    pub(crate) acks_lost: Option<u64>,
    /// Log of events, if it will be printed.
    pub(crate) trace: Option<Vec<String>>,
}

impl Simulation {
    pub(crate) fn new(setup: SimulationSetup, rules: ProtocolRules) -> Self {
        let mut workers: Vec<ModelWorker> =
            setup.slots.iter().enumerate().map(|(n, slots)| ModelWorker::new(n, *slots)).collect();
        let broker = ModelBroker::new(setup.reports_limit);
        if setup.settled_workers {
            workers.iter_mut().for_each(|worker| worker.connections = broker.connections);
        }
        let mut world = Self {
            specs: vec![1; setup.items],
            setup,
            rules,
            now: 1_000_000,
            broker,
            store: ModelStore::default(),
            workers,
            coordinators: Vec::new(),
            directories: vec![ModelRunDirectory::default()],
            invariants: InvariantChecker::default(),
            owners: 0,
            executions: 0,
            inputs: 0,
            lock_written: 0,
            acks_lost: None,
            trace: None,
        };
        world.start_coordinator(0, 0);
        world
    }

    pub(crate) fn log(&mut self, what: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            let seconds = (self.now - 1_000_000) as f64 / 1000.0;
            trace.push(format!("{seconds:9.1}s  {}", what()));
        }
    }

    /// The living coordinator that owns the run.
    pub(crate) fn owner(&self) -> Option<usize> {
        self.coordinators.iter().position(|c| c.owner == self.invariants.owner)
    }

    /// Whether the owner has durably settled all items.
    pub(crate) fn is_complete(&self) -> bool {
        self.owner().is_some_and(|c| {
            let coordinator = &self.coordinators[c];
            coordinator.core.is_complete()
                && coordinator.undurable_effects.is_empty()
                && self.invariants.settled.len() == self.setup.items
        })
    }

    /// Every live and unblocked process does its work at once.
    pub(crate) fn run_until_idle(&mut self) {
        for _ in 0..40 {
            let mut moved = false;
            for w in 0..self.workers.len() {
                moved |= self.run_worker(w);
            }
            let mut c = 0;
            while c < self.coordinators.len() {
                moved |= self.run_coordinator(c);
                c += 1;
            }
            self.coordinators.retain(|c| !c.is_gone());
            if !moved || self.invariants.violation.is_some() {
                return;
            }
        }
        self.invariants.fail("the world never becomes idle");
    }

    /// Advances time, running everything that becomes due.
    pub(crate) fn advance(&mut self, ms: u64) {
        let until = self.now + ms;
        self.run_until_idle();
        while self.now < until && self.invariants.violation.is_none() {
            let mut next = until;
            for w in 0..self.workers.len() {
                next = next.min(self.next_worker_deadline(w));
            }
            for c in 0..self.coordinators.len() {
                if !self.coordinators[c].paused {
                    next = next.min(self.next_coordinator_deadline(c));
                }
            }
            if let Some(expiry) = self.broker.next_expiry(self.now) {
                next = next.min(expiry);
            }
            self.now = next.max(self.now + 100).min(until);
            self.run_until_idle();
        }
    }
}
