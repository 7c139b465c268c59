//! Division of the limits of a run's model servers among workers. Pure: it is told what heartbeats
//! say, and says which leases workers get.
//!
//! The calls of all workers stay within a limit although messages of the session are late or lost:
//! what a worker may use counts until it says that it applies a smaller lease. Nothing expires, so
//! that workers without a connection go on; their part is lent to others when they are given up.

use std::collections::BTreeMap;

use rollout_protocol::id::WorkerId;
use rollout_protocol::spec::gateway::GatewaySpec;
use rollout_protocol::wire::model_leases::{LeaseTable, LimitParts, ServerUse};

/// The part of a heartbeat that is about a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WorkerUse {
    /// Whether the worker has executions of the run.
    pub takes_part: bool,
    /// Serial of the table that it applies; 0 without one.
    pub serial: u64,
    /// Its use of each server.
    pub servers: Vec<ServerUse>,
}

/// The leases of a run's model servers.
#[derive(Debug)]
pub struct ModelLeases {
    /// Limits of each server.
    limits: Vec<(Option<u32>, Option<u32>)>,
    serial: u64,
    workers: BTreeMap<WorkerId, Vec<ServerLease>>,
    /// Who is first where there is too little for all.
    turn: usize,
}

/// The leases of a worker for a server.
#[derive(Debug, Clone, Copy, Default)]
struct ServerLease {
    concurrent: Lease,
    per_minute: Lease,
}

/// A part of a limit.
#[derive(Debug, Clone, Copy, Default)]
struct Lease {
    /// The part in the last table.
    told: u32,
    /// The most that it may apply: it has not confirmed a smaller part.
    most: u32,
    /// The most that it may use, with calls that began under a larger part.
    used: u32,
    /// The largest part that the worker could use.
    wanted: u32,
    /// Whether it waits for more.
    waits: bool,
}

impl ModelLeases {
    /// The leases of a session; `None` if no server has a limit. `first_serial` is greater than those
    /// of former sessions, as far as clocks show.
    pub fn new(gateway: &GatewaySpec, first_serial: u64) -> Option<Self> {
        let limits = gateway
            .upstreams
            .iter()
            .map(|upstream| (upstream.max_concurrent, upstream.requests_per_minute))
            .collect();
        let workers = BTreeMap::new();
        gateway.is_limited().then_some(Self { limits, serial: first_serial, workers, turn: 0 })
    }

    /// The present leases, to be told to workers.
    pub fn table(&self) -> LeaseTable {
        let parts = |leases: &Vec<ServerLease>| {
            let part = |lease: &ServerLease| LimitParts {
                concurrent: lease.concurrent.told,
                per_minute: lease.per_minute.told,
            };
            leases.iter().map(part).collect()
        };
        let workers = self.workers.iter();
        let workers = workers.map(|(worker, leases)| (worker.clone(), parts(leases))).collect();
        LeaseTable { serial: self.serial, workers }
    }

    /// Lets another worker be first where there is too little for all.
    pub fn next_turn(&mut self) {
        self.turn = self.turn.wrapping_add(1);
    }

    /// Applies what all living workers say, and divides the limits anew if a worker needs more than
    /// it has. Returns whether workers must be told the table.
    pub fn update(&mut self, seen: &BTreeMap<WorkerId, WorkerUse>) -> bool {
        let before = self.table();
        for (worker, found) in seen {
            if found.takes_part || found.serial > 0 {
                let is_confirmed = found.serial == self.serial;
                let is_new = !self.workers.contains_key(worker);
                let nothing = || vec![ServerLease::default(); self.limits.len()];
                let leases = self.workers.entry(worker.clone()).or_insert_with(nothing);
                for (place, lease) in leases.iter_mut().enumerate() {
                    let server = found.servers.get(place).copied().unwrap_or_default();
                    lease.observe(server, found.takes_part, is_new, is_confirmed);
                }
            }
        }
        self.workers.retain(|worker, leases| {
            let found = seen.get(worker);
            let is_idle = || leases.iter().all(ServerLease::is_free);
            found.is_some_and(|found| found.takes_part || !is_idle())
        });
        let (turn, mut leases) = (self.turn, self.workers.values_mut().collect::<Vec<_>>());
        for (place, (concurrent, per_minute)) in self.limits.iter().enumerate() {
            if let Some(limit) = concurrent {
                let parts = leases.iter_mut().map(|leases| &mut leases[place].concurrent);
                divide(*limit, parts.collect(), turn);
            }
            if let Some(limit) = per_minute {
                let parts = leases.iter_mut().map(|leases| &mut leases[place].per_minute);
                divide(*limit, parts.collect(), turn);
            }
        }
        // Workers ignore tables with smaller serials than that of a former session, whose clock was
        // ahead.
        let newest = seen.values().map(|found| found.serial).max().unwrap_or(0);
        let is_changed = newest > self.serial || self.table().workers != before.workers;
        self.serial = self.serial.max(newest).saturating_add(u64::from(is_changed));
        is_changed
    }

    /// Whether a worker has not said that it applies the present table.
    pub fn is_unconfirmed(&self, seen: &BTreeMap<WorkerId, WorkerUse>) -> bool {
        let applies = |worker| seen.get(worker).is_some_and(|found| found.serial == self.serial);
        self.workers.keys().any(|worker| !applies(worker))
    }
}

impl ServerLease {
    fn observe(&mut self, server: ServerUse, takes_part: bool, is_new: bool, is_confirmed: bool) {
        let ServerUse { lease, in_flight, waiting } = server;
        let calls = if takes_part { in_flight + waiting } else { 0 };
        let wanted = calls.max(u32::from(takes_part));
        self.concurrent.observe(lease.concurrent, in_flight, is_new, is_confirmed);
        (self.concurrent.wanted, self.concurrent.waits) = (wanted, waiting > 0);
        self.per_minute.observe(lease.per_minute, 0, is_new, is_confirmed);
        let all = if takes_part { u32::MAX } else { 0 };
        (self.per_minute.wanted, self.per_minute.waits) = (all, waiting > 0);
    }

    /// Whether the worker may use nothing.
    fn is_free(&self) -> bool {
        [self.concurrent, self.per_minute].iter().all(|lease| lease.told == 0 && lease.used == 0)
    }
}

impl Lease {
    fn observe(&mut self, applied: u32, in_flight: u32, is_new: bool, is_confirmed: bool) {
        if is_new {
            // A table of a former session that did not arrive yet is not known.
            (self.told, self.most) = (applied, applied);
        } else if is_confirmed {
            self.most = self.told;
        }
        self.used = self.most.max(in_flight);
    }
}

/// Divides a limit: nothing changes unless a worker waits for a part, or has one without a need.
fn divide(limit: u32, mut leases: Vec<&mut Lease>, turn: usize) {
    let targets = targets(limit, &leases, turn);
    let is_short = |(lease, target): (&&mut Lease, &u32)| {
        lease.told < *target && (lease.waits || lease.told == 0)
    };
    let is_unneeded = |lease: &&mut Lease| lease.wanted == 0 && lease.told > 0;
    let is_over = leases.iter().map(|lease| u64::from(lease.told)).sum::<u64>() > u64::from(limit);
    let needs_change = leases.iter().zip(&targets).any(is_short) || leases.iter().any(is_unneeded);
    if !needs_change && !is_over {
        return;
    }
    for (lease, target) in leases.iter_mut().zip(&targets) {
        lease.told = lease.told.min(*target);
    }
    let used: u64 = leases.iter().map(|lease| u64::from(lease.used)).sum();
    let mut free = u64::from(limit).saturating_sub(used);
    for at in in_turn(leases.len(), turn) {
        let (lease, target) = (&mut leases[at], targets[at]);
        // The worker may use this much already, so it takes nothing from others.
        let within = target.min(lease.used);
        lease.told = lease.told.max(within);
        let more = u64::from(target.saturating_sub(lease.told.max(lease.used))).min(free);
        free -= more;
        if more > 0 {
            lease.told = lease.told.max(lease.used) + u32::try_from(more).unwrap_or(u32::MAX);
        }
        lease.most = lease.most.max(lease.told);
        lease.used = lease.used.max(lease.told);
    }
}

/// The part that each worker should have: as much as it wants if there is enough, otherwise the same
/// for all. The rest is divided equally, so that more calls need not wait for a new table.
fn targets(limit: u32, leases: &[&mut Lease], turn: usize) -> Vec<u32> {
    let mut targets = vec![0; leases.len()];
    let mut left = limit;
    let mut order: Vec<usize> = in_turn(leases.len(), turn).collect();
    order.retain(|at| leases[*at].wanted > 0);
    let mut by_want = order.clone();
    by_want.sort_by_key(|at| leases[*at].wanted);
    for (place, at) in by_want.iter().enumerate() {
        let others = u32::try_from(by_want.len() - place).unwrap_or(u32::MAX);
        targets[*at] = leases[*at].wanted.min(left / others);
        left -= targets[*at];
    }
    // The rest of a division, first to those who want more.
    for at in &order {
        if left > 0 && targets[*at] < leases[*at].wanted {
            targets[*at] += 1;
            left -= 1;
        }
    }
    let count = u32::try_from(order.len()).unwrap_or(u32::MAX).max(1);
    let (each, mut rest) = (left / count, left % count);
    for at in &order {
        targets[*at] += each + u32::from(rest > 0);
        rest = rest.saturating_sub(1);
    }
    targets
}

/// All places, beginning with the one whose turn it is.
fn in_turn(count: usize, turn: usize) -> impl Iterator<Item = usize> {
    (0..count).map(move |at| (at + turn) % count.max(1))
}

#[cfg(test)]
mod tests;
