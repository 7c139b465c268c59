//! `eval_result.json`: the result of an eval, which the backend writes to its directory.

use std::fs::File;
use std::io::{ErrorKind, Read as _};
use std::path::Path;

use rollout_engine::atomic_file;
use rollout_protocol::Timestamp;
use serde::{Deserialize, Serialize};

use super::SearchError;
use crate::workloads::search::manifest::{EvalStatus, SearchEvalError, SearchManifest, StepCalls};
use rollout_protocol::search::{EvalId, NodeId};

/// Name of the file.
pub(super) const FILE: &str = "eval_result.json";

/// Maximum size of the file in bytes.
const MAX_RESULT_BYTES: u64 = 1 << 20;

/// The result of an eval.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EvalResult {
    /// Number of the eval.
    pub eval_id: EvalId,
    /// The node on which the idea was tried. Node and idea identify the eval of this result.
    pub parent_node_id: NodeId,
    /// SHA-256 of the idea's normalized text.
    pub idea_normalized_sha256: String,
    /// Number of discards of the eval's results before it began.
    #[serde(default)]
    pub round: u32,
    /// Status of the eval.
    pub status: EvalStatus,
    /// Number of executions.
    pub attempt: u32,
    /// Worker of the last execution.
    pub worker: Option<String>,
    /// Start of the last execution.
    pub started_at: Option<Timestamp>,
    /// End of the last execution.
    pub finished_at: Option<Timestamp>,
    /// Duration of all executions, seconds.
    #[serde(default)]
    pub seconds: Option<f64>,
    /// The commit that the idea became.
    pub candidate_commit: Option<String>,
    /// Path of the sweep's results, below the eval's directory.
    pub results_csv: Option<String>,
    /// Cost that the commands reported, and of the model calls of their agents.
    pub cost: Option<f64>,
    /// Model calls of the agents, by step.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<StepCalls>,
    /// Variables of values in its results, output and commit that look like secrets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub possible_secrets: Vec<String>,
    /// Why it failed.
    pub error: Option<SearchEvalError>,
}

impl EvalResult {
    /// Writes it to the directory of its eval, atomically.
    ///
    /// # Errors
    /// [`SearchError::File`].
    pub fn write(&self, root: &Path) -> Result<(), SearchError> {
        Ok(atomic_file::write_json(&root.join(FILE), self)?)
    }

    /// Reads the result of an eval; `None` if it is missing, of another eval, or discarded.
    pub(in crate::workloads::search) fn read(
        root: &Path,
        manifest: &SearchManifest,
        id: EvalId,
    ) -> Result<Option<Self>, SearchError> {
        let eval = &manifest.evaluations[&id];
        let path = root.join(FILE);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(SearchError::io("open", &path)(error)),
        };
        let mut bytes = Vec::new();
        file.take(MAX_RESULT_BYTES)
            .read_to_end(&mut bytes)
            .map_err(SearchError::io("read", &path))?;
        let found: Result<Self, _> = serde_json::from_slice(&bytes);
        let found = match found {
            Ok(found) => found,
            Err(error) => return Err(SearchError::Damaged { path, reason: error.to_string() }),
        };
        let is_its = found.eval_id == eval.eval_id
            && found.parent_node_id == eval.parent_node_id
            && found.idea_normalized_sha256 == eval.idea_normalized_sha256
            && found.round == manifest.eval_discards(id)
            && found.status.is_settled();
        Ok(is_its.then_some(found))
    }

    /// Removes the result of an eval.
    pub(super) fn discard(root: &Path) -> Result<(), SearchError> {
        let path = root.join(FILE);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(SearchError::io("remove", &path)(error))
            }
            _ => Ok(()),
        }
    }
}
