//! The result of an execution: its record, and the files that become part of it.

use std::path::PathBuf;

use rollout_protocol::blob::{BlobRef, MediaType};
use rollout_protocol::digest::Digest;
use rollout_protocol::phase::Phase;
use rollout_protocol::record::{
    EvalRecord, ExecutionRecord, HarnessRecord, IdeasRecord, LogsRecord, OutputFile, TrialRecord,
};
use rollout_protocol::spec::eval::CommitBundle;
use rollout_store::{BlobContent, BlobStore, StoreError};
use serde::{Deserialize, Serialize};

use super::capture::CapturedStream;
use super::collect::CleanArchive;

/// A finished execution with its record. Its environment is gone.
#[derive(Debug, Clone, PartialEq)]
pub struct Finished<R = ExecutionRecord> {
    /// The record, without its files until they are stored.
    pub record: R,
    /// The files, in the execution's scratch directory.
    pub files: Vec<RecordFile>,
    /// Phase that a stop ended. The execution has no verdict then: its item stays pending.
    pub stopped: Option<Phase>,
}

/// A file to store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordFile {
    /// Its path.
    pub file: PathBuf,
    /// Its media type.
    pub media_type: MediaType,
    /// Its part in the record.
    pub role: FileRole,
    /// Digest of its content, if that was computed while it was written.
    pub digest: Option<Digest>,
}

/// The role of a file in its record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "role", rename_all = "snake_case")]
pub enum FileRole {
    /// Output of a script, or of the image build.
    Output {
        /// Path below the directory of the item's logs.
        path: String,
        /// Bytes that were written, kept or not.
        total_bytes: u64,
        /// Whether the middle was left out.
        truncated: bool,
    },
    /// The archive of `/logs`.
    Logs(ArchiveCounts),
    /// The archive of `/logs/verifier` of a trial's step.
    StepLogs {
        /// Index of the step among those of the record.
        step: usize,
        /// Size of the archive.
        #[serde(flatten)]
        counts: ArchiveCounts,
    },
    /// The archive of a trial's artifact.
    Artifact {
        /// Its index among those of the record.
        index: usize,
    },
    /// A file of a trial's harness.
    HarnessFile {
        /// Its part in the record.
        part: HarnessPart,
        /// Path below the trial's directory.
        path: String,
        /// Number of its bytes.
        total_bytes: u64,
        /// Index of the step among those of the record, for a step with a name.
        #[serde(default)]
        step: Option<usize>,
        /// Whether no later step ran the harness.
        last: bool,
    },
    /// The archive of `/logs` of the sweep's own environment.
    SweepLogs(ArchiveCounts),
    /// The archive of the sweep's output.
    SweepOutput(ArchiveCounts),
    /// The results of an eval.
    Results,
    /// The commit made from the idea of an eval.
    Candidate {
        /// The commit.
        commit: String,
        /// Its parent.
        parent: String,
    },
    /// The archive of the ideas.
    Ideas(ArchiveCounts),
}

/// The part of a file in the record of a harness.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HarnessPart {
    /// The input document, which the record does not name.
    Input,
    /// The output document.
    Output,
    /// The events.
    Events,
}

/// Size of a clean archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArchiveCounts {
    /// Regular files and directories in it.
    pub entries: u64,
    /// Entries that were left out.
    pub skipped: u64,
    /// Whether a limit ended the collection early.
    pub truncated: bool,
}

/// A record with files.
pub trait RecordWithFiles: Clone + Into<ExecutionRecord> {
    /// Adds a stored file. A role that this kind of record does not have is ignored.
    fn attach(&mut self, role: FileRole, blob: BlobRef);
}

impl<R: RecordWithFiles> Finished<R> {
    /// Converts it to the result of any kind of work.
    pub(crate) fn into_any_kind(self) -> Finished {
        let Self { record, files, stopped } = self;
        Finished { record: record.into(), files, stopped }
    }

    /// Stores the files and returns the complete record. May be retried.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn store(&self, store: &dyn BlobStore) -> Result<R, StoreError> {
        let contents = self.files.iter().map(|RecordFile { file, media_type, digest, .. }| {
            BlobContent::of_file(file.clone(), *media_type, *digest)
        });
        let blobs = store.put_many(contents.collect()).await?;
        let mut record = self.record.clone();
        for (file, blob) in self.files.iter().zip(blobs) {
            record.attach(file.role.clone(), blob);
        }
        Ok(record)
    }
}

impl Finished {
    /// Whether a report can hold the whole result: then the report is the record.
    pub(crate) fn is_bare(&self) -> bool {
        match &self.record {
            ExecutionRecord::Trial(record) => self.files.is_empty() && is_bare_trial(record),
            ExecutionRecord::Eval(_) | ExecutionRecord::Ideas(_) => false,
        }
    }
}

fn is_bare_trial(record: &TrialRecord) -> bool {
    record.environment.is_none()
        && record.secondary_errors.is_empty()
        && record.outputs.is_empty()
        && record.logs.is_none()
        && record.verifier_stdout.is_none()
        && record.verifier_stderr.is_none()
        && record.artifacts.is_empty()
        && record.steps.is_empty()
        && record.verifier_environment.is_none()
        && record.harness.is_none()
        && record.gateway.is_none()
}

impl RecordFile {
    /// A text file that goes to `path` below the directory of the item's logs.
    pub(crate) fn text(file: PathBuf, path: String, total_bytes: u64, truncated: bool) -> Self {
        let role = FileRole::Output { path, total_bytes, truncated };
        Self { file, media_type: MediaType::Text, role, digest: None }
    }

    /// Captured output, for files whose paths begin with `prefix`.
    pub(crate) fn captured(streams: [CapturedStream; 2], prefix: &str) -> [Self; 2] {
        let [stdout, stderr] = streams;
        [(stdout, "stdout.txt"), (stderr, "stderr.txt")].map(|(captured, name)| {
            let CapturedStream { file, total_bytes, truncated } = captured;
            Self::text(file, format!("{prefix}{name}"), total_bytes, truncated)
        })
    }

    /// An archive.
    pub(crate) fn archive(
        archive: CleanArchive,
        role: impl FnOnce(ArchiveCounts) -> FileRole,
    ) -> Self {
        let CleanArchive { file, entries, skipped, truncated, digest } = archive;
        let role = role(ArchiveCounts { entries, skipped, truncated });
        Self { file, media_type: MediaType::Tar, role, digest: Some(digest) }
    }
}

impl ArchiveCounts {
    fn into_logs_record(self, archive: BlobRef) -> LogsRecord {
        let Self { entries, skipped, truncated } = self;
        LogsRecord { archive, entries, skipped, truncated }
    }
}

impl RecordWithFiles for TrialRecord {
    fn attach(&mut self, role: FileRole, blob: BlobRef) {
        match role {
            FileRole::Output { path, total_bytes, truncated } => {
                self.outputs.push(OutputFile { path, blob, total_bytes, truncated });
            }
            FileRole::Logs(counts) => self.logs = Some(counts.into_logs_record(blob)),
            FileRole::StepLogs { step, counts } => {
                if let Some(step) = self.steps.get_mut(step) {
                    step.logs = Some(counts.into_logs_record(blob));
                }
            }
            FileRole::Artifact { index } => {
                if let Some(artifact) = self.artifacts.get_mut(index) {
                    artifact.archive = Some(blob);
                }
            }
            FileRole::HarnessFile { part, path, total_bytes, step, last } => {
                let step = step.and_then(|step| self.steps.get_mut(step)?.harness.as_deref_mut());
                let whole = self.harness.as_deref_mut().filter(|_| last);
                for harness in step.into_iter().chain(whole) {
                    attach_to_harness(harness, part, &blob);
                }
                self.outputs.push(OutputFile { path, blob, total_bytes, truncated: false });
            }
            _ => {}
        }
    }
}

fn attach_to_harness(harness: &mut HarnessRecord, part: HarnessPart, blob: &BlobRef) {
    match (part, &mut harness.events) {
        (HarnessPart::Output, _) => harness.output = Some(blob.clone()),
        (HarnessPart::Events, Some(events)) => events.log = Some(blob.clone()),
        (HarnessPart::Input, _) | (HarnessPart::Events, None) => {}
    }
}

impl RecordWithFiles for EvalRecord {
    fn attach(&mut self, role: FileRole, blob: BlobRef) {
        match role {
            FileRole::Output { path, total_bytes, truncated } => {
                self.outputs.push(OutputFile { path, blob, total_bytes, truncated });
            }
            FileRole::Logs(counts) => self.logs = Some(counts.into_logs_record(blob)),
            FileRole::SweepLogs(counts) => {
                self.sweep_logs = Some(Box::new(counts.into_logs_record(blob)));
            }
            FileRole::SweepOutput(counts) => {
                self.sweep_output = Some(counts.into_logs_record(blob));
            }
            FileRole::Results => self.results = Some(blob),
            FileRole::Candidate { commit, parent } => {
                self.candidate = Some(CommitBundle { commit, parent: Some(parent), blob });
            }
            _ => {}
        }
    }
}

impl RecordWithFiles for IdeasRecord {
    fn attach(&mut self, role: FileRole, blob: BlobRef) {
        match role {
            FileRole::Output { path, total_bytes, truncated } => {
                self.outputs.push(OutputFile { path, blob, total_bytes, truncated });
            }
            FileRole::Ideas(counts) => self.ideas = Some(counts.into_logs_record(blob)),
            FileRole::Logs(counts) => self.logs = Some(counts.into_logs_record(blob)),
            _ => {}
        }
    }
}

impl RecordWithFiles for ExecutionRecord {
    fn attach(&mut self, role: FileRole, blob: BlobRef) {
        match self {
            Self::Trial(record) => record.attach(role, blob),
            Self::Eval(record) => record.attach(role, blob),
            Self::Ideas(record) => record.attach(role, blob),
        }
    }
}
