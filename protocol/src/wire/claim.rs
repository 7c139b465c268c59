//! Claims: a worker that holds a suspicious delivery asks whether it shall run it, and one that runs
//! an eval whether its next stage may begin.

use serde::{Deserialize, Serialize};

use super::heartbeat::Heartbeat;
use super::stage::StageProgress;
use crate::digest::Digest;
use crate::id::{ExecId, ItemId, RunId, TryId, WorkerId};

/// The question.
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
    /// Who asks.
    pub worker: WorkerId,
    /// Asked by an execution that runs already: for the ticket of a stage (`waiting`), or to say
    /// that it needs it no longer (`over`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<StageProgress>,
}

impl Claim {
    /// Whether another worker runs or holds the claimed try, by what it says of itself. Of several
    /// that only ask, the one with the lowest execution goes on.
    pub fn is_contested_by(&self, hello: &Heartbeat) -> bool {
        hello.worker != self.worker
            && hello.executions.iter().any(|line| {
                (line.run, line.item, line.try_id) == (self.run, self.item, self.try_id)
                    && (!line.claiming || line.exec < self.exec)
            })
    }
}

/// The answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClaimAnswer {
    /// Run it: the execution is journalled. Of a stage: it has its ticket.
    Run,
    /// Forget it: neither acknowledge nor refuse nor extend it. Another execution lives.
    Hold,
    /// Acknowledge it away: nothing is owed.
    Drop,
}
