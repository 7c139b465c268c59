//! Random schedules of workers, calls and late or lost messages.

use proptest::prelude::*;
use rollout_protocol::spec::gateway::{ModelDialect, UpstreamSpec};

use super::*;

const WORKERS: usize = 4;

/// Rounds in which every worker must get a call once messages arrive.
const ROUNDS: usize = 40;

fn gateway(max_concurrent: Option<u32>, requests_per_minute: Option<u32>) -> GatewaySpec {
    let upstream = UpstreamSpec {
        max_concurrent,
        requests_per_minute,
        ..UpstreamSpec::new("main", ModelDialect::Openai, "http://127.0.0.1:1")
    };
    GatewaySpec { upstreams: vec![upstream] }
}

fn worker(number: usize) -> WorkerId {
    format!("w{number}").parse().expect("a worker")
}

/// A worker as the coordinator does not see it.
#[derive(Debug, Clone, Default)]
struct SimulatedWorker {
    now: WorkerUse,
    /// Its last heartbeat.
    heartbeat: WorkerUse,
    /// Tables on their way.
    tables: Vec<LeaseTable>,
    calls_made: usize,
}

impl SimulatedWorker {
    fn server(&mut self) -> &mut ServerUse {
        if self.now.servers.is_empty() {
            self.now.servers.push(ServerUse::default());
        }
        &mut self.now.servers[0]
    }

    fn apply(&mut self, table: &LeaseTable, id: &WorkerId) {
        if table.serial > self.now.serial {
            self.now.serial = table.serial;
            let parts = table.workers.get(id).map_or_else(Vec::new, Clone::clone);
            self.server().lease = parts.first().copied().unwrap_or_default();
        }
    }

    fn begin_call(&mut self) {
        let server = self.server();
        if server.waiting > 0 && server.in_flight < server.lease.concurrent {
            (server.in_flight, server.waiting) = (server.in_flight + 1, server.waiting - 1);
            self.calls_made += 1;
        }
    }
}

struct Simulation {
    leases: ModelLeases,
    workers: Vec<SimulatedWorker>,
    limit: u32,
}

impl Simulation {
    fn new(limit: u32) -> Self {
        let leases = ModelLeases::new(&gateway(Some(limit), None), 1).expect("a limit");
        Self { leases, workers: vec![SimulatedWorker::default(); WORKERS], limit }
    }

    fn coordinate(&mut self) {
        let seen = self.workers.iter().enumerate();
        let seen = seen.map(|(number, found)| (worker(number), found.heartbeat.clone())).collect();
        self.leases.update(&seen);
        for found in &mut self.workers {
            found.tables.push(self.leases.table());
        }
    }

    fn step(&mut self, action: u8, number: usize) {
        let found = &mut self.workers[number];
        match action {
            0 => {
                found.now.takes_part = true;
                found.server().waiting += 1;
            }
            1 => found.begin_call(),
            2 => {
                let server = found.server();
                server.in_flight = server.in_flight.saturating_sub(1);
            }
            3 if !found.tables.is_empty() => {
                let table = found.tables.remove(0);
                found.apply(&table, &worker(number));
            }
            4 if !found.tables.is_empty() => drop(found.tables.remove(0)),
            5 => found.heartbeat = found.now.clone(),
            6 => {
                found.now.takes_part = false;
                let server = found.server();
                (server.in_flight, server.waiting) = (0, 0);
            }
            7 => self.coordinate(),
            8 => self.leases.next_turn(),
            _ => {}
        }
        let calls: u32 = self.workers.iter_mut().map(|found| found.server().in_flight).sum();
        assert!(calls <= self.limit, "{calls} calls: {:#?}", self.workers);
    }

    /// Messages arrive, calls end, and everybody wants another one.
    fn round(&mut self) {
        for number in 0..WORKERS {
            for action in [2, 0, 5] {
                self.step(action, number);
            }
        }
        self.step(7, 0);
        for number in 0..WORKERS {
            while !self.workers[number].tables.is_empty() {
                self.step(3, number);
            }
            self.step(1, number);
        }
    }
}

proptest! {
    #[test]
    fn calls_of_all_workers_stay_within_the_limit_and_everybody_gets_some(
        limit in 1_u32..7,
        steps in prop::collection::vec((0_u8..9, 0..WORKERS), 0..400),
    ) {
        let mut simulation = Simulation::new(limit);
        for (action, number) in steps {
            simulation.step(action, number);
        }
        let before: Vec<_> = simulation.workers.iter().map(|found| found.calls_made).collect();
        for number in 0..ROUNDS {
            simulation.round();
            if number % 5 == 4 {
                simulation.leases.next_turn();
            }
        }
        for (found, before) in simulation.workers.iter().zip(before) {
            prop_assert!(found.calls_made > before, "{:#?}", simulation.workers);
        }
    }
}

#[test]
fn limit_is_divided_by_need_and_rates_equally() {
    let busy = |waiting| {
        let server = ServerUse { waiting, ..ServerUse::default() };
        WorkerUse { takes_part: true, serial: 0, servers: vec![server] }
    };
    let seen = BTreeMap::from([(worker(0), busy(8)), (worker(1), busy(1))]);
    let mut leases = ModelLeases::new(&gateway(Some(6), Some(90)), 1).expect("limits");
    assert!(leases.update(&seen));
    let table = leases.table();
    let part = |concurrent, per_minute| vec![LimitParts { concurrent, per_minute }];
    assert_eq!(table.workers[&worker(0)], part(5, 45));
    assert_eq!(table.workers[&worker(1)], part(1, 45));
    assert!(leases.is_unconfirmed(&seen));
    assert!(!leases.update(&seen), "nothing is free");
    assert!(ModelLeases::new(&gateway(None, None), 1).is_none());
}

#[test]
fn part_of_a_worker_that_is_given_up_goes_to_others() {
    let idle = WorkerUse { takes_part: true, ..WorkerUse::default() };
    let both = BTreeMap::from([(worker(0), idle.clone()), (worker(1), idle.clone())]);
    let mut leases = ModelLeases::new(&gateway(Some(4), None), 1).expect("limits");
    leases.update(&both);
    let waiting = ServerUse { waiting: 3, ..ServerUse::default() };
    let left = WorkerUse { servers: vec![waiting], ..idle };
    assert!(leases.update(&BTreeMap::from([(worker(1), left)])));
    let table = leases.table();
    assert_eq!(table.workers.len(), 1);
    assert_eq!(table.workers[&worker(1)][0].concurrent, 4);
}

#[test]
fn table_of_session_whose_clock_was_set_back_is_newer_than_that_of_workers() {
    let mut leases = ModelLeases::new(&gateway(Some(4), None), 10).expect("a limit");
    let lease = LimitParts { concurrent: 4, per_minute: 0 };
    let server = ServerUse { lease, in_flight: 0, waiting: 0 };
    let former = WorkerUse { takes_part: true, serial: 5_000, servers: vec![server] };
    let seen = BTreeMap::from([(worker(0), former.clone())]);
    assert!(leases.update(&seen), "workers are told");
    let table = leases.table();
    assert!(table.serial > 5_000 && leases.is_unconfirmed(&seen));
    let applied = WorkerUse { serial: table.serial, ..former };
    let seen = BTreeMap::from([(worker(0), applied)]);
    leases.update(&seen);
    assert_eq!(leases.table().serial, table.serial);
    assert!(!leases.is_unconfirmed(&seen));
}
