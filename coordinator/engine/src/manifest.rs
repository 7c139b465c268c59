//! `manifest.json`: the small header of a run's state. Everything in it can be derived again from
//! the journal; it is replaced atomically.

use std::path::Path;

use rollout_protocol::Timestamp;
use rollout_protocol::digest::Digest;
use rollout_protocol::id::RunId;
use rollout_protocol::version::RUN_FORMAT;
use serde::{Deserialize, Serialize};

use super::RunError;
use crate::journal::RunLayout;

/// The manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunManifest {
    /// Format of the run directory.
    pub format: u32,
    /// Run.
    pub run: RunId,
    /// Name of the job.
    pub job: String,
    /// Start of the first session.
    pub created_at: Timestamp,
    /// When this was written.
    pub updated_at: Timestamp,
    /// Digest of the plan.
    pub plan: Digest,
    /// Epoch of the last session.
    pub epoch: u32,
    /// State of the run.
    pub state: RunState,
    /// Items of the plan.
    pub total: u64,
    /// Items with a terminal record.
    pub settled: u64,
    /// Items offered and unreported.
    pub in_flight: u64,
    /// The part of the journal that is known to be durable.
    pub journal: JournalExtent,
    /// Files of terminal records that will not change any more.
    pub sealed: Vec<RecordsFile>,
    /// The last file of terminal records, which the next session writes again; `None` unless a
    /// session ended in order and the file is not empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unsealed: Option<RecordsFile>,
    /// Epochs whose sessions reopened settled items; absent in manifests of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reopened: Option<Vec<u32>>,
    /// Digest of everything else in it; absent in manifests of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<Digest>,
}

/// State of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    /// A session is running, or died.
    Running,
    /// A session was stopped; items are pending.
    Stopped,
    /// Everything is settled.
    Completed,
}

/// A durable length of the journal.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalExtent {
    /// Segment.
    pub epoch: u32,
    /// Its length, bytes.
    pub durable_bytes: u64,
}

/// A file of terminal records.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordsFile {
    /// Its name below `records/`.
    pub file: String,
    /// Settlements in it.
    pub settlements: u64,
    /// Its length.
    pub bytes: u64,
    /// Digest of its bytes.
    pub digest: Digest,
}

impl RunManifest {
    /// Reads the manifest of a run directory; `None` when there is none.
    ///
    /// # Errors
    /// [`RunError`] when it cannot be read, is damaged, or is of a newer format.
    pub fn read(layout: &RunLayout) -> Result<Option<Self>, RunError> {
        let path = layout.manifest();
        let failed = |source| RunError::File { action: "read", path: path.clone(), source };
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        Self::parse(&path, &bytes).map(Some)
    }

    /// Parses the manifest that was read from `path`.
    ///
    /// # Errors
    /// [`RunError`] when it is damaged, or of a newer format.
    pub fn parse(path: &Path, bytes: &[u8]) -> Result<Self, RunError> {
        let damaged = |reason| RunError::Damaged { path: path.to_owned(), reason };
        let manifest: Self =
            serde_json::from_slice(bytes).map_err(|error| damaged(error.to_string()))?;
        let Self { format: found, digest, .. } = manifest;
        if found > RUN_FORMAT {
            return Err(RunError::Newer { path: path.to_owned(), found, known: RUN_FORMAT });
        }
        if digest.is_some_and(|digest| digest != manifest.content()) {
            return Err(damaged("its content does not match its digest".to_owned()));
        }
        Ok(manifest)
    }

    /// Replaces the manifest of a run directory.
    ///
    /// # Errors
    /// [`RunError::File`].
    pub fn write(&self, layout: &RunLayout) -> Result<(), RunError> {
        let whole = Self { digest: Some(self.content()), ..self.clone() };
        super::atomic_file::write_json(&layout.manifest(), &whole)
    }

    /// Digest of everything but the digest.
    fn content(&self) -> Digest {
        let bare = Self { digest: None, ..self.clone() };
        Digest::sha256(&serde_json::to_vec(&bare).expect("text keys only"))
    }
}
