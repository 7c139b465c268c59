//! Leases of the limits of a run's model servers: a worker calls a server only within its lease. The
//! coordinator divides the limits among the workers that have executions of the run.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::id::{RunId, WorkerId};

/// A part of the limits of a model server. A number without a limit says nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitParts {
    /// Calls at once.
    pub concurrent: u32,
    /// Calls per minute.
    pub per_minute: u32,
}

/// The leases of all workers of a run; a worker that is not named has nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseTable {
    /// Greater than that of every former table of the run.
    pub serial: u64,
    /// Parts of each worker, in the order of the servers in the gateway of the run.
    pub workers: BTreeMap<WorkerId, Vec<LimitParts>>,
}

/// How a worker uses its leases of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseUse {
    /// The run.
    pub run: RunId,
    /// Serial of the table that the worker applies; 0 without one.
    pub serial: u64,
    /// Its use of each server, in the order of the servers in the gateway of the run.
    pub servers: Vec<ServerUse>,
}

/// How a worker uses a model server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerUse {
    /// The parts that it applies.
    pub lease: LimitParts,
    /// Calls that were admitted and have not ended.
    pub in_flight: u32,
    /// Calls that wait for the limits.
    pub waiting: u32,
}
