//! One finished execution on disk.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rollout_protocol::blob::{BlobRef, MediaType};
use rollout_protocol::digest::Digest;
use rollout_protocol::phase::Phase;
use rollout_protocol::record::ExecutionRecord;
use rollout_protocol::version::RUN_FORMAT;
use rollout_protocol::wire::hello::Running;
use serde::{Deserialize, Serialize};

use super::draft::{Draft, Role};
use crate::digest_line;

/// Name of the file that makes an entry whole.
pub(super) const FILE: &str = "entry.json";

/// How an execution ended that left more than a report.
#[derive(Debug, Clone)]
pub(crate) struct Ending {
    /// What it left.
    pub(crate) draft: Draft,
    /// Where a stop ended it, if it has no verdict.
    pub(crate) stopped: Option<Phase>,
    /// Whether a result marker is written.
    pub(crate) marker: bool,
}

/// What an entry says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Entry {
    /// [`RUN_FORMAT`].
    pub(super) format: u32,
    pub(super) record: ExecutionRecord,
    pub(super) stopped: Option<Phase>,
    pub(super) marker: bool,
    /// In the order of their file names, which are their indices.
    pub(super) files: Vec<EntryFile>,
}

/// A file of an entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct EntryFile {
    pub(super) media_type: MediaType,
    /// Digest of its content; entries of former versions have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) digest: Option<Digest>,
    #[serde(flatten)]
    pub(super) role: Role,
}

/// A spooled execution.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(super) dir: PathBuf,
    pub(super) entry: Entry,
    pub(super) bytes: u64,
}

impl Entry {
    /// The record with its files, which are stored as `blobs`.
    pub(super) fn record_with(&self, blobs: Vec<BlobRef>) -> ExecutionRecord {
        let mut record = self.record.clone();
        for (file, blob) in self.files.iter().zip(blobs) {
            file.role.clone().put(&mut record, blob);
        }
        record
    }
}

impl Kept {
    /// Where file `index` is.
    pub(super) fn file(&self, index: usize) -> PathBuf {
        self.dir.join(index.to_string())
    }

    /// The first file whose stored content is not what was written, and the content's digest.
    pub(super) fn changed(&self, blobs: &[BlobRef]) -> Option<(PathBuf, Digest)> {
        let files = self.entry.files.iter().zip(blobs).enumerate();
        let changed =
            |file: &EntryFile, blob: &BlobRef| file.digest.is_some_and(|d| d != blob.digest);
        let mut changed = files.filter(|(_, (file, blob))| changed(file, blob));
        changed.next().map(|(index, (_, blob))| (self.file(index), blob.digest))
    }

    /// How a hello shows it.
    pub(super) fn line(&self) -> Running {
        let (run, item, try_id, exec) = self.entry.record.ids();
        let phase = Phase::Teardown;
        Running { run, item, try_id, exec, phase, claiming: false, stage: None, parked: None }
    }

    /// The entry in a directory. `None` when it never became whole.
    ///
    /// # Errors
    /// The system's, or that it is not an entry this version can read.
    pub(super) fn read(dir: &Path) -> io::Result<Option<Self>> {
        let bytes = match fs::read(dir.join(FILE)) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let text = digest_line::check(&bytes).map_err(io::Error::other)?;
        let entry: Entry = serde_json::from_slice(text)?;
        if entry.format > RUN_FORMAT {
            let text = format!("its format {} is newer than {RUN_FORMAT}", entry.format);
            return Err(io::Error::other(text));
        }
        Ok(Some(Self { dir: dir.to_owned(), entry, bytes: 0 }))
    }
}
