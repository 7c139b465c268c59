//! Typed references to what a trial left in the blob store: its output, its events, its artifacts.
//! Readers use references and no paths, so they work wherever the blobs are.

use serde::{Deserialize, Serialize};

use crate::artifact::ArtifactType;
use crate::blob::{BlobRef, MediaType};
use crate::record::{HarnessRecord, LogsRecord, TrialRecord};

/// Directory of the logs of a trial or of a step.
pub const LOGS_DIR: &str = "logs";
/// Directory of the steps of a trial.
pub const STEPS_DIR: &str = "steps";

/// A reference to the output of a trial. Written as its [`BlobRef`] with the key `output_type`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct OutputRef {
    /// The document.
    #[serde(flatten)]
    pub blob: BlobRef,
    /// The schema of the document.
    pub output_type: OutputType,
}

/// The schema of an output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum OutputType {
    /// The document of a harness, see [`TrialOutput`](crate::harness::TrialOutput).
    #[serde(rename = "trial_output_v1")]
    TrialOutputV1,
    /// The record of the execution, see [`TrialRecord`]: the output of an agent without a harness.
    #[serde(rename = "trial_record")]
    TrialRecord,
}

/// A reference to a log of events, `hook_events_v1`: one JSON object per line. Written as its
/// [`BlobRef`] with the keys `step` and `events`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct EventLogRef {
    /// The log. It may contain lines that are no events.
    #[serde(flatten)]
    pub blob: BlobRef,
    /// Step of the task, if the task has steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    /// Number of valid events.
    pub events: u64,
}

/// A reference to an artifact. Written as its [`BlobRef`] with the keys `artifact_type`, `path` and
/// `truncated`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ArtifactRef {
    /// The content: a clean archive if its media type is [`MediaType::Tar`].
    #[serde(flatten)]
    pub blob: BlobRef,
    /// Its type.
    #[serde(default)]
    pub artifact_type: ArtifactType,
    /// Path below the trial's directory. Identifies the artifact in its trial.
    pub path: String,
    /// Whether something was left out.
    #[serde(default)]
    pub truncated: bool,
}

/// All references of one execution of a trial.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrialReferences {
    /// The output; `None` if the settlement contains everything.
    pub output: Option<OutputRef>,
    /// Logs of events, in the order of the steps.
    pub event_logs: Vec<EventLogRef>,
    /// Artifacts, each with a path of its own.
    pub artifacts: Vec<ArtifactRef>,
}

impl OutputRef {
    /// The output of an agent without a harness: the record of its execution.
    pub const fn for_record(record: BlobRef) -> Self {
        Self { blob: record, output_type: OutputType::TrialRecord }
    }
}

impl TrialReferences {
    /// The references of an execution with this record, which is stored as `blob`.
    pub fn from_record(blob: &BlobRef, record: &TrialRecord) -> Self {
        let harness = record.harness.as_deref();
        let document = harness.and_then(|harness| harness.output.clone());
        let output = match document {
            Some(blob) => OutputRef { blob, output_type: OutputType::TrialOutputV1 },
            None => OutputRef::for_record(blob.clone()),
        };
        let event_logs = event_logs(record);
        let artifacts = artifacts(record, &event_logs);
        Self { output: Some(output), event_logs, artifacts }
    }
}

fn event_logs(record: &TrialRecord) -> Vec<EventLogRef> {
    let log = |step: Option<&str>, harness: &HarnessRecord| {
        let events = harness.events.as_ref()?;
        let blob = events.log.clone()?;
        Some(EventLogRef { blob, step: step.map(str::to_owned), events: events.total })
    };
    if record.steps.is_empty() {
        return record.harness.iter().filter_map(|harness| log(None, harness)).collect();
    }
    let steps = record.steps.iter();
    steps.filter_map(|step| log(Some(&step.name), step.harness.as_deref()?)).collect()
}

fn artifacts(record: &TrialRecord, event_logs: &[EventLogRef]) -> Vec<ArtifactRef> {
    let outputs = record.outputs.iter().map(|output| {
        let is_trace = event_logs.iter().any(|log| log.blob.digest == output.blob.digest);
        let artifact_type = match output.blob.media_type {
            _ if is_trace => ArtifactType::Trace,
            Some(MediaType::Text) => ArtifactType::Log,
            _ => ArtifactType::Custom,
        };
        let (blob, path) = (output.blob.clone(), output.path.clone());
        ArtifactRef { blob, artifact_type, path, truncated: output.truncated }
    });
    let logs = record.all_logs().map(|(path, logs)| ArtifactRef {
        blob: logs.archive.clone(),
        artifact_type: ArtifactType::Log,
        path,
        truncated: logs.truncated,
    });
    let kept = record.artifacts.iter().filter_map(|artifact| {
        Some(ArtifactRef {
            blob: artifact.archive.clone()?,
            artifact_type: artifact.artifact_type,
            path: artifact.path.clone(),
            truncated: artifact.error.is_some(),
        })
    });
    outputs.chain(logs).chain(kept).collect()
}

impl TrialRecord {
    /// The archives of logs, of the trial and of its steps, with their paths below the trial's
    /// directory.
    pub fn all_logs(&self) -> impl Iterator<Item = (String, &LogsRecord)> {
        let own = self.logs.iter().map(|logs| (LOGS_DIR.to_owned(), logs));
        let steps = self.steps.iter().filter_map(|step| {
            let path = format!("{STEPS_DIR}/{}/{LOGS_DIR}", step.name);
            step.logs.as_ref().map(|logs| (path, logs))
        });
        own.chain(steps)
    }
}

#[cfg(test)]
mod tests;
