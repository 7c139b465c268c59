//! The mark in a scratch directory that identifies its execution.

use std::fs;
use std::io;
use std::path::Path;

use rollout_base::fs_make::make_directory;
use rollout_base::supervise;
use rollout_protocol::digest::Digest;
use rollout_protocol::id::{ExecId, ItemId, RunId, TryId, WorkerId};
use rollout_protocol::record::LostReason;
use rollout_protocol::spec::budget::ModelUse;
use rollout_protocol::wire::report::{Report, ReportBody};
use serde::{Deserialize, Serialize};

use crate::executor::ExecutionContext;

/// Name of the file with the mark.
pub(super) const MARK_FILE: &str = "execution.json";

/// The owner of a scratch directory: an execution that may have an environment.
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
    /// Digest of its spec.
    pub spec: Digest,
    /// Worker.
    pub worker: WorkerId,
}

impl ScratchMark {
    /// Creates the directory with the mark in it. The mark survives the process but is not synced:
    /// after a power cut the coordinator notices the loss by the missing heartbeats.
    pub(crate) fn create(&self, scratch: &Path) -> io::Result<()> {
        // Not the directory of the worker itself.
        make_directory(scratch, 1)?;
        let temporary = scratch.join("execution.json.new");
        fs::write(&temporary, serde_json::to_vec(self)?)?;
        fs::rename(temporary, scratch.join(MARK_FILE))
    }

    /// The mark of a scratch directory, if it has a readable one.
    pub fn read(scratch: &Path) -> Option<Self> {
        serde_json::from_slice(&fs::read(scratch.join(MARK_FILE)).ok()?).ok()
    }

    /// The report of the execution when its worker is dead.
    pub fn lost_report(self, reason: LostReason) -> Report {
        Report {
            run: self.run,
            item: self.item,
            try_id: self.try_id,
            exec: self.exec,
            spec: self.spec,
            worker: self.worker,
            body: ReportBody::Lost {
                reason,
                phase: None,
                record: None,
                cost: 0.0,
                model_use: ModelUse::default(),
            },
        }
    }
}

impl ExecutionContext {
    /// Creates the scratch directory with its mark: when this process dies, the worker that adopts
    /// the directory reports the execution lost. Must be called before an environment is created,
    /// and may be repeated.
    ///
    /// # Errors
    /// The scratch directory cannot be created.
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
        let running = self.scratch_work.begin();
        let create = move || {
            let creation = running.lock_creation();
            let created = mark.create(&scratch);
            drop(creation);
            drop(running);
            created
        };
        supervise::blocking(create).await
    }
}
