//! Drafts of any kind of execution.

use std::path::PathBuf;

use rollout_protocol::blob::{BlobRef, MediaType};
use rollout_protocol::record::{ExecutionRecord, LogsRecord, Output, TrialRecord};
use serde::{Deserialize, Serialize};

use crate::work::eval::{EvalDraft, EvalFile, EvalRole};
use crate::work::trial::{self, CapturedFile, FileRole};

/// What an execution left: a record, and files that are not stored yet.
#[derive(Debug, Clone)]
pub(crate) enum Draft {
    /// Of a trial.
    Trial(trial::Draft),
    /// Of an eval.
    Eval(EvalDraft),
}

/// What a file becomes in its record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "of", rename_all = "snake_case")]
pub(super) enum Role {
    /// In a trial's.
    Trial(FileRole),
    /// In an eval's.
    Eval(EvalRole),
}

/// A file that waits to be moved into an entry.
pub(super) struct Loose {
    pub(super) file: PathBuf,
    pub(super) media_type: MediaType,
    pub(super) role: Role,
}

impl Draft {
    /// The record and its files.
    pub(super) fn into_parts(self) -> (ExecutionRecord, Vec<Loose>) {
        match self {
            Self::Trial(trial::Draft { record, files }) => {
                let loose = |CapturedFile { file, media_type, role }| {
                    let role = Role::Trial(role);
                    Loose { file, media_type, role }
                };
                (ExecutionRecord::Trial(Box::new(record)), files.into_iter().map(loose).collect())
            }
            Self::Eval(EvalDraft { record, files }) => {
                let loose = |EvalFile { file, media_type, role }| {
                    let role = Role::Eval(role);
                    Loose { file, media_type, role }
                };
                (ExecutionRecord::Eval(Box::new(record)), files.into_iter().map(loose).collect())
            }
        }
    }
}

impl Role {
    /// Puts the stored file where it belongs in the record.
    pub(super) fn put(self, record: &mut ExecutionRecord, blob: BlobRef) {
        match (self, record) {
            (Self::Trial(role), ExecutionRecord::Trial(record)) => put(role, record, blob),
            (Self::Eval(role), ExecutionRecord::Eval(record)) => role.put(record, blob),
            // Only a damaged entry has both kinds; its record stays as it is.
            (Self::Trial(_), ExecutionRecord::Eval(_))
            | (Self::Eval(_), ExecutionRecord::Trial(_)) => {}
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
