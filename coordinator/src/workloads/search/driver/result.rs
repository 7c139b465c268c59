//! `eval_result.json`: what came of an eval, left in its directory by whoever ran it.

use std::fs::File;
use std::io::{ErrorKind, Read as _};
use std::path::Path;

use rollout_protocol::Timestamp;
use serde::{Deserialize, Serialize};

use super::SearchError;
use crate::engine::atomic_file;
use crate::workloads::search::manifest::{EvalStatus, SearchEvalError, SearchManifest};
use rollout_protocol::search::{EvalId, NodeId};

/// Name of the file.
pub(super) const FILE: &str = "eval_result.json";

/// Bytes of the file.
const MAX_RESULT_BYTES: u64 = 1 << 20;

/// What came of an eval.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EvalResult {
    /// Which.
    pub eval_id: EvalId,
    /// The node that the idea was tried on …
    pub parent_node_id: NodeId,
    /// … and the idea: together they say what this is the result of.
    pub idea_normalized_sha256: String,
    /// How often results of the eval had been thrown away when it was begun.
    #[serde(default)]
    pub round: u32,
    /// How it ended.
    pub status: EvalStatus,
    /// Executions.
    pub attempt: u32,
    /// Worker of the last.
    pub worker: Option<String>,
    /// When the last began.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub finished_at: Option<Timestamp>,
    /// Seconds that all executions took.
    #[serde(default)]
    pub seconds: Option<f64>,
    /// The commit that the idea became.
    pub candidate_commit: Option<String>,
    /// The results of the sweep, below the eval's directory.
    pub results_csv: Option<String>,
    /// What the commands say that it cost.
    pub cost: Option<f64>,
    /// Why it failed.
    pub error: Option<SearchEvalError>,
}

impl EvalResult {
    /// Leaves it in the directory of its eval, whole or not at all.
    ///
    /// # Errors
    /// [`SearchError::File`].
    pub fn write(&self, root: &Path) -> Result<(), SearchError> {
        Ok(atomic_file::write_json(&root.join(FILE), self)?)
    }

    /// The result of an eval, if there is one and it is that eval's and was not thrown away.
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

    /// Takes the result of an eval away.
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
