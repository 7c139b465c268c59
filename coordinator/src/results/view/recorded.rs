//! Executions of a trial with the files that their records name.

use rollout_base::backoff::error_chain;
use rollout_protocol::digest::Digest;
use rollout_protocol::error::TrialError;
use rollout_protocol::id::ItemId;
use rollout_protocol::record::{
    ArtifactRecord, EnvironmentRecord, LogsRecord, OutputFile, TrialRecord,
};
use rollout_store::BlobStore;
use serde::{Deserialize, Serialize};

use super::captured::record_of;
use super::detail::ExecutionView;

/// An execution with the files that it left.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RecordedExecution {
    /// The execution.
    #[serde(flatten)]
    pub view: ExecutionView,
    /// Host of its worker.
    pub host: Option<String>,
    /// Its environment.
    pub environment: Option<EnvironmentRecord>,
    /// Errors after the first.
    pub secondary_errors: Vec<TrialError>,
    /// Captured outputs.
    pub outputs: Vec<OutputFile>,
    /// Archives of logs: of the trial and of its steps.
    pub logs: Vec<LogsView>,
    /// Kept files.
    pub artifacts: Vec<ArtifactRecord>,
    /// Why its record cannot be read; `None` if it was read, or if it left none.
    pub record_error: Option<String>,
}

/// An archive of logs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogsView {
    /// Path below the trial's directory.
    pub path: String,
    /// The archive.
    #[serde(flatten)]
    pub logs: LogsRecord,
}

impl RecordedExecution {
    /// Adds to an execution what its record has.
    pub async fn read(store: Option<&dyn BlobStore>, item: ItemId, view: ExecutionView) -> Self {
        let read = match store {
            Some(store) => record_of(store, item, &view.execution).await,
            None => Ok(None),
        };
        let (record, record_error) = match read {
            Ok(record) => (record, None),
            Err(error) => (None, Some(error_chain(&error))),
        };
        Self::new(view, record, record_error)
    }

    fn new(view: ExecutionView, record: Option<TrialRecord>, record_error: Option<String>) -> Self {
        let logs = record.iter().flat_map(TrialRecord::all_logs);
        let logs = logs.map(|(path, logs)| LogsView { path, logs: logs.clone() }).collect();
        let mut filled = Self {
            view,
            host: None,
            environment: None,
            secondary_errors: Vec::new(),
            outputs: Vec::new(),
            logs,
            artifacts: Vec::new(),
            record_error,
        };
        if let Some(record) = record {
            filled.host = Some(record.host);
            filled.environment = record.environment;
            filled.secondary_errors = record.secondary_errors;
            filled.outputs = record.outputs;
            filled.artifacts = record.artifacts;
        }
        filled
    }

    /// Its files: path, size in bytes, digest of the blob, and whether something was left out.
    pub fn files(&self) -> impl Iterator<Item = (&str, u64, Digest, bool)> {
        let outputs = self.outputs.iter().map(|output| {
            let OutputFile { path, blob, truncated, .. } = output;
            (path.as_str(), blob.size_bytes, blob.digest, *truncated)
        });
        let logs = self.logs.iter().map(|LogsView { path, logs }| {
            (path.as_str(), logs.archive.size_bytes, logs.archive.digest, logs.truncated)
        });
        let artifacts = self.artifacts.iter().filter_map(|artifact| {
            let archive = artifact.archive.as_ref()?;
            Some((artifact.path.as_str(), archive.size_bytes, archive.digest, false))
        });
        outputs.chain(logs).chain(artifacts)
    }
}
