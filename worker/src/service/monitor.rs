//! The present state of a worker, for health checks and metrics.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use rollout_base::metrics::encode::{gauge, gauges, info};
use rollout_protocol::dependency::Dependency;
use rollout_protocol::phase::Phase;

use super::WorkerShared;

/// A view of a worker. It shows nothing once the worker has ended.
#[derive(Debug, Clone)]
pub struct WorkerMonitor(Weak<WorkerShared>);

/// Why a worker takes no work at present.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WorkerNotReady {
    /// It has ended.
    #[error("the worker has ended")]
    Ended,
    /// It was asked to stop.
    #[error("the worker is draining")]
    Draining,
    /// The server is unreachable.
    #[error("no connection to the server")]
    Disconnected,
    /// No environment works on this host.
    #[error("no provider of environments works on this host")]
    NoProvider,
    /// A disk has too little space.
    #[error("a disk of this host is full")]
    DiskFull,
    /// A directory of the worker takes no writes.
    #[error("{reason}")]
    DiskFailed {
        /// The directory and the cause.
        reason: String,
    },
}

impl WorkerMonitor {
    pub(super) fn new(shared: &Arc<WorkerShared>) -> Self {
        Self(Arc::downgrade(shared))
    }

    /// Whether the worker takes work.
    ///
    /// # Errors
    /// [`WorkerNotReady`].
    pub fn check_ready(&self) -> Result<(), WorkerNotReady> {
        let shared = self.0.upgrade().ok_or(WorkerNotReady::Ended)?;
        let obstacles = [
            (shared.is_closing(), WorkerNotReady::Draining),
            (!shared.connection.is_up(), WorkerNotReady::Disconnected),
            (shared.config.profile.borrow().providers.is_empty(), WorkerNotReady::NoProvider),
            (shared.low_disk.load(Ordering::Relaxed), WorkerNotReady::DiskFull),
        ];
        let obstacle = obstacles.into_iter().find(|(is_present, _)| *is_present);
        let failed = || {
            let fault = shared.disks.last_failed()?;
            Some(WorkerNotReady::DiskFailed { reason: fault.message })
        };
        obstacle.map(|(_, reason)| reason).or_else(failed).map_or(Ok(()), Err)
    }
}

impl Collector for WorkerMonitor {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        match self.0.upgrade() {
            Some(shared) => encode(&shared, &mut encoder),
            None => Ok(()),
        }
    }
}

fn encode(shared: &WorkerShared, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let config = &shared.config;
    let worker = config.worker.to_string();
    let facts =
        [("worker", &*worker), ("pool", &config.pool), ("version", env!("CARGO_PKG_VERSION"))];
    info(encoder, "worker_info", "The worker, its pool and its version", &facts)?;
    encode_executions(shared, encoder)?;
    gauge(encoder, "worker_slots", "Executions that may run at a time", config.slots)?;
    let free = shared.slots.free_slots();
    gauge(encoder, "worker_slots_free", "Slots without an execution", free)?;
    let help = "Results on the disk of the worker that wait to be reported, bytes";
    gauge(encoder, "worker_spool_bytes", help, shared.spool.bytes())?;

    let status = shared.connection.status();
    let help = "Whether there is a connection to the server";
    gauge(encoder, "worker_connected", help, u32::from(status.up))?;
    let help = "Connections to the server so far";
    gauge(encoder, "worker_connections", help, status.connections)?;
    let outages = [
        ("queue", &shared.queue_outage),
        ("pulls", &shared.pull_outage),
        ("blob_store", &shared.store_outage),
        ("spool", &shared.spool_outage),
    ];
    let outages = outages.map(|(service, outage)| (service, u32::from(outage.is_down())));
    let help = "Whether the last attempt to use a service failed, so that the worker retries";
    gauges(encoder, "worker_outage", help, "service", outages)?;
    let is_low = u32::from(shared.low_disk.load(Ordering::Relaxed));
    let help = "Whether a disk has too little space for more work";
    gauge(encoder, "worker_disk_full", help, is_low)?;
    let has_failed = u32::from(shared.disks.last_failed().is_some());
    let help = "Whether a directory of the worker takes no writes";
    gauge(encoder, "worker_disk_failed", help, has_failed)?;
    let is_draining = u32::from(shared.is_closing());
    gauge(encoder, "worker_draining", "Whether the worker was asked to stop", is_draining)?;
    let providers = config.profile.borrow().clone().providers;
    let providers = providers.keys().map(|kind| (kind.as_str(), 1_u32));
    gauges(encoder, "worker_provider", "Providers that work on this host", "provider", providers)
}

fn encode_executions(shared: &WorkerShared, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let mut phases = BTreeMap::from(Phase::ALL.map(|phase| (phase, 0_u64)));
    let mut waiting = BTreeMap::from(Dependency::ALL.map(|service| (service.as_str(), 0_u64)));
    let (mut claiming, mut unreported) = (0_u64, 0_u64);
    for execution in shared.registry.all() {
        let entry = execution.heartbeat_entry();
        match (entry.claiming, execution.is_running()) {
            (true, _) => claiming += 1,
            (false, true) => {
                *phases.entry(entry.phase).or_default() += 1;
                if let Some(service) = entry.parked {
                    *waiting.entry(service.as_str()).or_default() += 1;
                }
            }
            (false, false) => unreported += 1,
        }
    }
    let phases = phases.into_iter().map(|(phase, count)| (phase.as_str(), count));
    gauges(encoder, "worker_executions", "Running executions by phase", "phase", phases)?;
    let help = "Running executions that wait for a service that does not answer";
    gauges(encoder, "worker_executions_parked", help, "service", waiting)?;
    let help = "Deliveries that wait for the coordinator's answer whether to run them";
    gauge(encoder, "worker_claims", help, claiming)?;
    let help = "Executions that ended and whose report is not acknowledged";
    gauge(encoder, "worker_executions_unreported", help, unreported)
}
