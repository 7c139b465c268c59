//! Claims: a worker with a suspicious delivery asks whether to run it, and a worker that runs an
//! eval asks whether its next stage may start.

use serde::{Deserialize, Serialize};

use super::heartbeat::Heartbeat;
use super::stage::StageProgress;
use crate::digest::Digest;
use crate::id::{ExecId, ItemId, RunId, TryId, WorkerId};

/// A request of a worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// Run.
    pub run: RunId,
    /// Item.
    pub item: ItemId,
    /// Try that was delivered.
    #[serde(rename = "try")]
    pub try_id: TryId,
    /// Execution that would run it.
    pub exec: ExecId,
    /// Digest of the spec it was offered under.
    pub spec: Digest,
    /// The worker that asks.
    pub worker: WorkerId,
    /// Set by an execution that already runs: it requests the permit of a stage (`waiting`), or
    /// releases it (`over`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<StageProgress>,
}

impl Claim {
    /// Whether another worker runs or holds the claimed try, according to its heartbeat. Of several
    /// workers that only claim, the one with the lowest execution continues.
    pub fn is_contested_by(&self, heartbeat: &Heartbeat) -> bool {
        heartbeat.worker != self.worker
            && heartbeat.executions.iter().any(|execution| {
                (execution.run, execution.item, execution.try_id)
                    == (self.run, self.item, self.try_id)
                    && (!execution.claiming || execution.exec < self.exec)
            })
    }
}

/// The answer to a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClaimAnswer {
    /// Run it: the execution is journalled. For a stage: the permit is granted.
    Run,
    /// Forget it: neither acknowledge nor refuse nor extend it. Another execution is alive.
    Hold,
    /// Acknowledge it without running it: nothing is pending.
    Drop,
}
