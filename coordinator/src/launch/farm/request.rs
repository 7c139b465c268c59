//! The request for a session of a farm.

use rollout_base::traces::Tracer;
use rollout_engine::LockWaitPolicy;
use rollout_protocol::farm::FarmSettings;
use rollout_store::StoreUrl;

use crate::config::Job;
use crate::launch::host::{HostPaths, OperatorOptions};
#[cfg(feature = "nats")]
use crate::launch::nats::RemoteOptions;
use crate::launch::slot_pool::SlotShare;
use crate::sources::datasets::Dataset;

/// A farm to open.
#[derive(Debug)]
pub struct FarmRequest {
    /// Its settings.
    pub settings: FarmSettings,
    /// The job that describes its agent, its environment and its run directory. It has one agent.
    /// The number of attempts is not used. An infrastructure failure is not retried within a sample:
    /// the group's policy decides.
    pub job: Job,
    /// The datasets of the job, in its order: the tasks of groups.
    pub datasets: Vec<Dataset>,
    /// The blob store; by default that of the first session, or one beside the runs.
    pub store: Option<StoreUrl>,
    /// Limit on the local cache of a store in a service, in MiB; 0 for none.
    pub store_cache_mb: u64,
    /// Policy for taking the run from an owner that may be dead.
    pub wait_policy: LockWaitPolicy,
    /// The server whose workers run the samples; without one they run in this process.
    #[cfg(feature = "nats")]
    pub remote: Option<RemoteOptions>,
    /// Paths of the host for samples in this process. By default those of this process, which then
    /// must be the program `rollout`: it starts itself as the supervisor of sandboxes.
    pub host: Option<HostPaths>,
    /// Options of the operator, in place of those of the host.
    pub operator: OperatorOptions,
    /// Takes the spans of samples in this process.
    pub tracer: Tracer,
    /// The farm's part in a pool of slots that runs of this process share.
    pub slots: Option<SlotShare>,
}
