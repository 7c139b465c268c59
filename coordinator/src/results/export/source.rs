//! Reader of a run for exports: plan, configuration, and settled trials with their records, one by
//! one.

use std::path::Path;
use std::sync::Arc;

use rollout_engine::journal::RunLayout;
use rollout_protocol::record::{Settlement, TrialRecord};
use rollout_protocol::spec::trial::TrialName;
use rollout_store::BlobStore;
use serde_json::Value;

use super::{ExportError, RunHeader};
use crate::plan::{JobPlan, PlannedTask};
use crate::results::files::content;
use crate::results::settlements::{self, SettledTrials};

/// A run to export.
#[derive(Debug)]
pub(super) struct ExportSource {
    /// The fields of the run's manifest.
    pub(super) header: RunHeader,
    /// `config.json`; `null` when it is missing.
    pub(super) config: Value,
    /// Store of the records and files.
    pub(super) store: Arc<dyn BlobStore>,
    settled: SettledTrials,
}

/// A settled trial.
#[derive(Debug)]
pub(super) struct SettledTrial {
    /// Its name.
    pub(super) name: TrialName,
    /// Its terminal record.
    pub(super) settlement: Settlement,
    /// The record of the execution that settled it, if there is one.
    pub(super) record: Option<TrialRecord>,
    /// Its task.
    pub(super) task: PlannedTask,
}

impl ExportSource {
    /// Reads the configuration of a run, whose settled trials were opened.
    pub(super) fn new(
        run_dir: &Path,
        header: RunHeader,
        store: Arc<dyn BlobStore>,
        settled: SettledTrials,
    ) -> Result<Self, ExportError> {
        let config = settlements::document(&RunLayout::new(run_dir).config())?.unwrap_or_default();
        Ok(Self { header, config, store, settled })
    }

    /// The plan.
    pub(super) fn plan(&self) -> &JobPlan {
        self.settled.plan()
    }

    /// Number of trials.
    pub(super) fn len(&self) -> u64 {
        self.settled.len()
    }

    /// Settled trials whose records are not written yet.
    pub(super) fn missing_records(&self) -> u64 {
        self.header.settled.saturating_sub(self.len() + self.unplanned())
    }

    /// Trials in the records that are not in the plan.
    pub(super) fn unplanned(&self) -> u64 {
        self.settled.unplanned()
    }

    /// Reward keys of verifiers that report several numbers, ascending.
    pub(super) fn keys(&self) -> Vec<String> {
        self.settled.keys()
    }

    /// Whether there are more keys than [`keys`](Self::keys) returns.
    pub(super) fn keys_left_out(&self) -> bool {
        self.settled.keys_left_out()
    }

    /// Reads the trial at an index in the plan's order.
    pub(super) async fn trial(&self, index: u64) -> Result<SettledTrial, ExportError> {
        let (ordinal, settlement) = self.settled.get(index)?;
        let blob = settlement.by.as_ref().and_then(|by| by.record.as_ref());
        let record = match blob {
            None => None,
            Some(blob) => {
                let record = content::read_record(&*self.store, blob, &settlement).await;
                Some(record.map_err(|source| ExportError::Trial {
                    trial: settlement.name.to_string(),
                    source: Box::new(source),
                })?)
            }
        };
        let planned = self.plan().trial(ordinal).expect("it was found in the plan");
        let task = self.plan().tasks()[planned.task].clone();
        Ok(SettledTrial { name: planned.name, settlement, record, task })
    }
}
