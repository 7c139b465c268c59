//! Ids that stand in every document of the contract.

use serde::{Deserialize, Serialize};

use super::json_object::{FieldError, JsonObject};

/// The trial that a document belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrialIds {
    /// The run.
    pub run_id: String,
    /// The trial: its item id.
    pub trial_id: String,
    /// The variant: the agent's name.
    pub variant_id: String,
    /// The task.
    pub task_id: String,
    /// The repetition, from 0.
    pub repl_idx: u64,
}

impl TrialIds {
    /// Reads the ids of a document.
    pub(super) fn read(document: &JsonObject<'_>) -> Result<Self, FieldError> {
        let ids = document.required_object("ids")?;
        Ok(Self {
            run_id: ids.required_text("run_id")?.to_owned(),
            trial_id: ids.required_text("trial_id")?.to_owned(),
            variant_id: ids.required_text("variant_id")?.to_owned(),
            task_id: ids.required_text("task_id")?.to_owned(),
            repl_idx: ids.required_count("repl_idx")?,
        })
    }
}
