//! Heartbeats: the state of a worker and of its executions.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::model_calls::RunModelCalls;
use super::model_leases::LeaseUse;
use super::stage::StageProgress;
use crate::dependency::Dependency;
use crate::id::{ExecId, ItemId, RunId, TryId, WorkerId};
use crate::phase::Phase;
use crate::spec::environment::ProviderKind;

/// The state of a worker, published about once a second and on every change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heartbeat {
    /// Worker.
    pub worker: WorkerId,
    /// Host name.
    pub host: String,
    /// Program version.
    pub version: String,
    /// Identity of the blob store it uses.
    pub store: String,
    /// Pool whose work it takes.
    pub pool: String,
    /// Its slots.
    pub slots: u32,
    /// Its unoccupied slots.
    #[serde(default)]
    pub free: u32,
    /// Resources that its operator lets trials use.
    #[serde(default)]
    pub budget: ResourceBudget,
    /// Its providers, and the largest environment of each.
    #[serde(default)]
    pub providers: BTreeMap<ProviderKind, EnvironmentCapacity>,
    /// Names of the variables that trials can see there. Never values.
    #[serde(default)]
    pub variables: BTreeSet<String>,
    /// How long it continues without the queue, seconds; absent in heartbeats of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_offline_sec: Option<u64>,
    /// Takes no more work.
    #[serde(default)]
    pub draining: bool,
    /// Takes no work at present: one of its disks is nearly full.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub low_disk: bool,
    /// Takes no work at present: why its files cannot be written. `low_disk` is set, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_fault: Option<String>,
    /// It has ended, or is proven dead, and everything it started is reported. Sent by itself or by
    /// the process that adopted its directory.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub gone: bool,
    /// Every execution whose report is not acknowledged (running, spooled, uploading), and every
    /// delivery whose claim is not answered.
    pub executions: Vec<ActiveExecution>,
    /// Model calls of the runs among these executions whose state the worker knows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub model_calls: Vec<RunModelCalls>,
    /// Leases of model servers, of every run that has given it some.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub model_leases: Vec<LeaseUse>,
}

impl Heartbeat {
    /// The last heartbeat of a worker.
    pub fn departed(worker: WorkerId, host: String, pool: String) -> Self {
        Self {
            worker,
            host,
            version: String::new(),
            store: String::new(),
            pool,
            slots: 0,
            free: 0,
            budget: ResourceBudget::default(),
            providers: BTreeMap::new(),
            variables: BTreeSet::new(),
            max_offline_sec: None,
            draining: true,
            low_disk: false,
            disk_fault: None,
            gone: true,
            executions: Vec::new(),
            model_calls: Vec::new(),
            model_leases: Vec::new(),
        }
    }
}

/// A heartbeat with its age.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceivedHeartbeat {
    /// The heartbeat.
    pub heartbeat: Heartbeat,
    /// Time since it arrived, by the broker's own clock.
    pub age: Duration,
}

/// Resources that the trials of a worker may use together. Absent values have no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResourceBudget {
    /// Processors.
    #[serde(default)]
    pub cpus: Option<u32>,
    /// Memory, MiB.
    #[serde(default)]
    pub memory_mb: Option<u64>,
}

/// The largest environment that a provider can make on a host. Absent values have no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnvironmentCapacity {
    /// Processors.
    #[serde(default)]
    pub cpus: Option<u32>,
    /// Memory, MiB.
    #[serde(default)]
    pub memory_mb: Option<u64>,
}

/// One execution of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActiveExecution {
    /// Run.
    pub run: RunId,
    /// Item.
    pub item: ItemId,
    /// Try.
    #[serde(rename = "try")]
    pub try_id: TryId,
    /// Execution.
    pub exec: ExecId,
    /// Its current phase.
    pub phase: Phase,
    /// It does not run yet: it waits for the answer to its claim.
    #[serde(default)]
    pub claiming: bool,
    /// Its progress in the stages of an eval, if it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<StageProgress>,
    /// The service that it waits for because it does not answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parked: Option<Dependency>,
}
