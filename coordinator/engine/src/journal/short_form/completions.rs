//! The short form of completions.

use rollout_protocol::farm::{Completion, FarmRecord};
use serde::{Deserialize, Serialize};

use super::Unreadable;
use super::blob::ShortBlob;
use crate::core::JournalRecord;

/// Completions of samples that ended together, and the records of their executions.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::journal) struct ShortCompletions {
    #[serde(rename = "c")]
    completions: Vec<Completion>,
    /// For each of them.
    #[serde(rename = "k")]
    records: Vec<Option<ShortBlob>>,
}

impl ShortCompletions {
    /// The short form of a record; `None` if it has none.
    pub(in crate::journal) fn of(record: &JournalRecord) -> Option<Self> {
        let JournalRecord::Farm(record) = record else { return None };
        let FarmRecord::Completed { completions } = &**record else { return None };
        let mut completions = completions.clone();
        let records = completions.iter_mut().map(|one| {
            let execution = one.result.execution.as_mut()?;
            execution.record.take().as_ref().map(ShortBlob::from)
        });
        let records = records.collect();
        Some(Self { completions, records })
    }

    /// The record.
    pub(in crate::journal) fn into_record(self) -> Result<JournalRecord, Unreadable> {
        let Self { mut completions, records } = self;
        if completions.len() != records.len() {
            return Err("its completions and their records differ in number");
        }
        for (one, record) in completions.iter_mut().zip(records) {
            let Some(record) = record else { continue };
            let execution = one.result.execution.as_mut();
            execution.ok_or("it has the record of no execution")?.record = Some(record.into());
        }
        Ok(JournalRecord::Farm(Box::new(FarmRecord::Completed { completions })))
    }
}
