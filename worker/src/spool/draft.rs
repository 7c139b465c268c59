//! Drafts of any kind of execution.

use rollout_protocol::blob::BlobRef;
use rollout_protocol::record::{ExecutionRecord, LogsRecord, Output, TrialRecord};
use serde::{Deserialize, Serialize};

use crate::executor;
use crate::work::eval::{EvalDraft, EvalRole};
use crate::work::ideas::{IdeasDraft, IdeasRole};
use crate::work::trial::{self, FileRole};

/// The outcome of an execution of any kind.
pub(crate) type Draft = executor::Draft<ExecutionRecord, Role>;

/// What a file becomes in its record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "of", rename_all = "snake_case")]
pub(crate) enum Role {
    /// In a trial's.
    Trial(FileRole),
    /// In an eval's.
    Eval(EvalRole),
    /// In the record of a command that writes ideas.
    Ideas(IdeasRole),
}

impl From<trial::Draft> for Draft {
    fn from(draft: trial::Draft) -> Self {
        draft.map(|record| ExecutionRecord::Trial(Box::new(record)), Role::Trial)
    }
}

impl From<EvalDraft> for Draft {
    fn from(draft: EvalDraft) -> Self {
        draft.map(|record| ExecutionRecord::Eval(Box::new(record)), Role::Eval)
    }
}

impl From<IdeasDraft> for Draft {
    fn from(draft: IdeasDraft) -> Self {
        draft.map(|record| ExecutionRecord::Ideas(Box::new(record)), Role::Ideas)
    }
}

impl Role {
    /// Puts the stored file where it belongs in the record.
    pub(super) fn put(self, record: &mut ExecutionRecord, blob: BlobRef) {
        match (self, record) {
            (Self::Trial(role), ExecutionRecord::Trial(record)) => put(role, record, blob),
            (Self::Eval(role), ExecutionRecord::Eval(record)) => role.put(record, blob),
            (Self::Ideas(role), ExecutionRecord::Ideas(record)) => role.put(record, blob),
            // Only a damaged entry has two kinds; its record stays as it is.
            (Self::Trial(_) | Self::Eval(_) | Self::Ideas(_), _) => {}
        }
    }
}

fn put(role: FileRole, record: &mut TrialRecord, blob: BlobRef) {
    match role {
        FileRole::Output { path, total_bytes, truncated } => {
            record.outputs.push(Output { path, blob, total_bytes, truncated });
        }
        FileRole::Logs { entries, skipped, truncated } => {
            record.logs = Some(LogsRecord { archive: blob, entries, skipped, truncated });
        }
        FileRole::StepLogs { step, entries, skipped, truncated } => {
            if let Some(step) = record.steps.get_mut(step) {
                let logs = LogsRecord { archive: blob, entries, skipped, truncated };
                step.logs = Some(logs);
            }
        }
        FileRole::Artifact { index } => {
            if let Some(artifact) = record.artifacts.get_mut(index) {
                artifact.archive = Some(blob);
            }
        }
    }
}
