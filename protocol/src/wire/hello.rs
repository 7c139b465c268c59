//! Hellos: what a worker says of itself and of all it runs.

use serde::{Deserialize, Serialize};

use crate::id::{ExecId, ItemId, RunId, TryId, WorkerId};
use crate::phase::Phase;

/// The state of a worker, said anew about once a second and when it changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
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
    /// Slots it has.
    pub slots: u32,
    /// Every execution whose report is not acknowledged: running, spooled, uploading.
    pub executions: Vec<Running>,
}

/// One execution of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Running {
    /// Run.
    pub run: RunId,
    /// Item.
    pub item: ItemId,
    /// Try.
    #[serde(rename = "try")]
    pub try_id: TryId,
    /// Execution.
    pub exec: ExecId,
    /// Where it is.
    pub phase: Phase,
}
