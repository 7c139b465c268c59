//! The mark in a scratch directory that says whose it is.

use std::fs;
use std::io;
use std::path::Path;

use rollout_protocol::digest::Digest;
use rollout_protocol::id::{ExecId, ItemId, RunId, TryId, WorkerId};
use rollout_protocol::record::LostReason;
use rollout_protocol::wire::report::{Report, ReportBody};
use serde::{Deserialize, Serialize};

use crate::executor::ExecutionContext;
use crate::supervise;

/// Name of the file with the mark.
const MARK_FILE: &str = "execution.json";

/// Whose a scratch directory is: an execution that may have an environment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScratchMark {
    /// Run.
    pub run: RunId,
    /// Item.
    pub item: ItemId,
    /// Try.
    #[serde(rename = "try")]
    pub try_id: TryId,
    /// Execution.
    pub exec: ExecId,
    /// Digest of what it runs under.
    pub spec: Digest,
    /// Worker.
    pub worker: WorkerId,
}

impl ScratchMark {
    /// Creates the directory with the mark in it. It outlives the process, not the system: after a
    /// power cut the coordinator learns of the loss from the worker's silence.
    pub(crate) fn create(&self, scratch: &Path) -> io::Result<()> {
        // Never its parent: a worker directory that is gone must not come back half.
        match fs::create_dir(scratch) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let unready = scratch.join("execution.json.new");
        fs::write(&unready, serde_json::to_vec(self)?)?;
        fs::rename(unready, scratch.join(MARK_FILE))
    }

    /// The mark of a scratch directory, if it has one that can be read.
    pub fn read(scratch: &Path) -> Option<Self> {
        serde_json::from_slice(&fs::read(scratch.join(MARK_FILE)).ok()?).ok()
    }

    /// What is to be said of the execution when its worker is dead.
    pub fn lost_report(self, reason: LostReason) -> Report {
        Report {
            run: self.run,
            item: self.item,
            try_id: self.try_id,
            exec: self.exec,
            spec: self.spec,
            worker: self.worker,
            body: ReportBody::Lost { reason, phase: None, record: None, cost: 0.0 },
        }
    }
}

impl ExecutionContext {
    /// Creates the scratch directory and notes in it whose it is: when this process dies, its
    /// adopter reports the execution lost. Must be done before an environment is made, and may be
    /// done again.
    ///
    /// # Errors
    /// The system's, about the scratch directory.
    pub async fn create_scratch(&self) -> io::Result<()> {
        let (labels, scratch) = (&self.labels, self.scratch.clone());
        let mark = ScratchMark {
            run: labels.run,
            item: labels.item,
            try_id: labels.try_id,
            exec: labels.exec,
            spec: self.spec,
            worker: labels.worker.clone(),
        };
        supervise::blocking(move || mark.create(&scratch)).await
    }
}
