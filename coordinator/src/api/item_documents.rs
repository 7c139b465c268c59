//! Documents about items of a run.

use rollout_protocol::Timestamp;
use rollout_protocol::record::OutputFile;
use rollout_protocol::reference::ArtifactRef;
use serde::Serialize;
#[cfg(feature = "openapi")]
use utoipa::ToSchema;

use crate::results::view::TrialRow;

/// An item.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(ToSchema))]
pub(super) struct ItemDocument {
    /// Its id.
    item: String,
    /// `agent/dataset/task__attempt`.
    name: String,
    /// Agent.
    agent_name: String,
    /// Dataset.
    dataset_name: String,
    /// Task.
    task_name: String,
    /// Attempt, from 1.
    attempt: u32,
    /// `queued`, `waiting`, `running`, `completed`, `failed`, `cancelled` or `unverified`.
    state: &'static str,
    /// Tries so far.
    tries: u32,
    /// Whether the reward is 1; null unless it is settled.
    passed: Option<bool>,
    /// Its reward; null without a verdict.
    reward: Option<f64>,
    /// Its error, without the message.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    error: Option<serde_json::Value>,
    /// Cost of all its executions, as far as it is known; null if nothing of it is.
    cost: Option<f64>,
    /// Whether the cost of some model calls is not known.
    cost_is_lower_bound: bool,
    /// The worker that ran it, or runs it.
    worker: Option<String>,
    /// Duration of the execution that settled it, seconds.
    total_sec: Option<f64>,
    /// When it was settled.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    settled_at: Option<Timestamp>,
}

/// The captured outputs of an item.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(ToSchema))]
pub(super) struct OutputList {
    /// The outputs.
    pub(super) outputs: Vec<OutputDocument>,
}

/// A captured output.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(ToSchema))]
pub(super) struct OutputDocument {
    /// `name` of `logs`.
    path: String,
    /// Bytes that are kept.
    size_bytes: u64,
    /// Bytes that were written.
    total_bytes: u64,
    /// Digest of its content.
    digest: String,
    /// Whether a part was left out.
    truncated: bool,
}

/// The artifacts of an item.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(ToSchema))]
pub(super) struct ArtifactList {
    /// The artifacts.
    artifacts: Vec<ArtifactDocument>,
}

/// An artifact.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(ToSchema))]
pub(super) struct ArtifactDocument {
    /// Its path, which identifies it in its item.
    path: String,
    /// Size of its content, bytes.
    size_bytes: u64,
    /// Digest of its content.
    digest: String,
    /// Whether something was left out.
    truncated: bool,
}

impl From<TrialRow> for ItemDocument {
    fn from(row: TrialRow) -> Self {
        Self {
            item: row.item.to_string(),
            name: row.name,
            agent_name: row.agent_name,
            dataset_name: row.dataset_name,
            task_name: row.task_name,
            attempt: row.attempt,
            state: row.state.as_str(),
            tries: row.tries,
            passed: row.passed,
            reward: row.reward,
            error: row.error.and_then(|error| serde_json::to_value(error).ok()),
            cost: row.cost,
            cost_is_lower_bound: row.cost_is_lower_bound,
            worker: row.worker,
            total_sec: row.total_sec,
            settled_at: row.settled_at,
        }
    }
}

impl From<&OutputFile> for OutputDocument {
    fn from(output: &OutputFile) -> Self {
        Self {
            path: output.path.clone(),
            size_bytes: output.blob.size_bytes,
            total_bytes: output.total_bytes,
            digest: output.blob.digest.to_string(),
            truncated: output.truncated,
        }
    }
}

impl From<Vec<ArtifactRef>> for ArtifactList {
    fn from(artifacts: Vec<ArtifactRef>) -> Self {
        let document = |artifact: ArtifactRef| ArtifactDocument {
            path: artifact.path,
            size_bytes: artifact.blob.size_bytes,
            digest: artifact.blob.digest.to_string(),
            truncated: artifact.truncated,
        };
        Self { artifacts: artifacts.into_iter().map(document).collect() }
    }
}
