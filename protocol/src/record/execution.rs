//! Records of executions of any kind.

use serde::{Deserialize, Serialize};

use super::{Durations, EvalRecord, IdeasRecord, Timestamps, TrialRecord, Verdict};
use crate::error::TrialError;
use crate::id::{ExecId, ItemId, RunId, TryId};

/// The record of one execution. The kind shows in the content.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ExecutionRecord {
    /// Of an eval.
    Eval(Box<EvalRecord>),
    /// Of a command that writes ideas.
    Ideas(Box<IdeasRecord>),
    /// Of a trial.
    Trial(Box<TrialRecord>),
}

impl From<TrialRecord> for ExecutionRecord {
    fn from(record: TrialRecord) -> Self {
        Self::Trial(Box::new(record))
    }
}

impl From<EvalRecord> for ExecutionRecord {
    fn from(record: EvalRecord) -> Self {
        Self::Eval(Box::new(record))
    }
}

impl From<IdeasRecord> for ExecutionRecord {
    fn from(record: IdeasRecord) -> Self {
        Self::Ideas(Box::new(record))
    }
}

impl ExecutionRecord {
    /// Run, item, try and execution.
    pub fn ids(&self) -> (RunId, ItemId, TryId, ExecId) {
        match self {
            Self::Eval(record) => (record.run, record.item, record.try_id, record.exec),
            Self::Ideas(record) => (record.run, record.item, record.try_id, record.exec),
            Self::Trial(record) => (record.run, record.item, record.try_id, record.exec),
        }
    }

    /// Its verdict.
    pub fn verdict(&self) -> Verdict {
        match self {
            Self::Eval(record) => record.verdict(),
            Self::Ideas(record) => record.verdict(),
            Self::Trial(record) => record.verdict.clone(),
        }
    }

    /// Its durations.
    pub fn durations(&self) -> &Durations {
        match self {
            Self::Eval(record) => &record.durations,
            Self::Ideas(record) => &record.durations,
            Self::Trial(record) => &record.durations,
        }
    }

    /// Its times.
    pub fn timestamps(&self) -> &Timestamps {
        match self {
            Self::Eval(record) => &record.timestamps,
            Self::Ideas(record) => &record.timestamps,
            Self::Trial(record) => &record.timestamps,
        }
    }

    /// Adds an error of the collection.
    pub fn add_error(&mut self, error: TrialError) {
        match self {
            Self::Eval(record) => record.secondary_errors.push(error),
            Self::Ideas(record) => record.secondary_errors.push(error),
            Self::Trial(record) => record.secondary_errors.push(error),
        }
    }
}
