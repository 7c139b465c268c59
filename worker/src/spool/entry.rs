//! One finished execution on disk.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rollout_base::digest_line;
use rollout_protocol::blob::{BlobRef, MediaType};
use rollout_protocol::digest::Digest;
use rollout_protocol::phase::Phase;
use rollout_protocol::record::ExecutionRecord;
use rollout_protocol::version;
use rollout_protocol::wire::heartbeat::ActiveExecution;
use serde::{Deserialize, Serialize};

use crate::executor::{FileRole, RecordWithFiles as _};

/// Name of the file whose presence makes an entry complete.
pub(super) const ENTRY_FILE: &str = "entry.json";

/// One finished execution, kept in the spool until its report is acknowledged.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct SpoolEntry {
    /// [`version::RUN_FORMAT`].
    pub(super) format: u32,
    pub(super) record: ExecutionRecord,
    /// The phase in which a stop ended the execution, if it has no verdict.
    pub(super) stopped: Option<Phase>,
    /// Whether a result marker is written.
    pub(super) marker: bool,
    /// In the order of their file names, which are numbers.
    pub(super) files: Vec<SpoolFile>,
    /// Directory of the entry.
    #[serde(skip)]
    pub(super) dir: PathBuf,
    /// Bytes of the entry and its files.
    #[serde(skip)]
    pub(super) bytes: u64,
}

/// A file of an entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SpoolFile {
    pub(super) media_type: MediaType,
    /// Digest of its content; entries of former versions have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) digest: Option<Digest>,
    /// Number of its name, if a file before it had disappeared; otherwise its index.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    number: Option<usize>,
    /// Kind of the record, for workers of former versions.
    of: RecordKind,
    #[serde(flatten)]
    pub(super) role: FileRole,
}

/// A kind of record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum RecordKind {
    Trial,
    Eval,
    Ideas,
}

impl SpoolFile {
    /// The next file of an entry, whose name in its directory is `number`.
    pub(super) fn new(
        entry: &SpoolEntry,
        number: usize,
        media_type: MediaType,
        role: FileRole,
        digest: Digest,
    ) -> Self {
        let of = match &entry.record {
            ExecutionRecord::Trial(_) => RecordKind::Trial,
            ExecutionRecord::Eval(_) => RecordKind::Eval,
            ExecutionRecord::Ideas(_) => RecordKind::Ideas,
        };
        let number = Some(number).filter(|number| *number != entry.files.len());
        Self { media_type, digest: Some(digest), number, of, role }
    }
}

impl SpoolEntry {
    /// Bytes of the record and its files.
    pub(crate) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The record with references to its files, which are stored as `blobs`.
    pub(super) fn record_with(&self, blobs: Vec<BlobRef>) -> ExecutionRecord {
        let mut record = self.record.clone();
        for (file, blob) in self.files.iter().zip(blobs) {
            record.attach(file.role.clone(), blob);
        }
        record
    }

    /// Path of file `index`.
    pub(super) fn file(&self, index: usize) -> PathBuf {
        let number = self.files.get(index).and_then(|file| file.number);
        self.dir.join(number.unwrap_or(index).to_string())
    }

    /// The first file that is missing in the directory of the entry. `None` if the directory itself
    /// cannot be read: its disk may come back.
    pub(super) fn find_missing_file(&self) -> Option<PathBuf> {
        let mut files = (0..self.files.len()).map(|index| self.file(index));
        files.find(|file| {
            let found = fs::symlink_metadata(file);
            found.is_err_and(|error| error.kind() == io::ErrorKind::NotFound) && self.dir.is_dir()
        })
    }

    /// The first file whose stored content differs from what was written, and the content's digest.
    pub(super) fn find_changed_file(&self, blobs: &[BlobRef]) -> Option<(PathBuf, Digest)> {
        let files = self.files.iter().zip(blobs).enumerate();
        let changed =
            |file: &SpoolFile, blob: &BlobRef| file.digest.is_some_and(|d| d != blob.digest);
        let mut changed = files.filter(|(_, (file, blob))| changed(file, blob));
        changed.next().map(|(index, (_, blob))| (self.file(index), blob.digest))
    }

    /// The entry as a heartbeat lists it.
    pub(super) fn heartbeat_entry(&self) -> ActiveExecution {
        let (run, item, try_id, exec) = self.record.ids();
        let phase = Phase::Teardown;
        ActiveExecution {
            run,
            item,
            try_id,
            exec,
            phase,
            claiming: false,
            stage: None,
            parked: None,
        }
    }

    /// The entry in a directory. `None` when it never became complete.
    ///
    /// # Errors
    /// Errors of the system, or the entry is not one that this version can read.
    pub(super) fn read(dir: &Path) -> io::Result<Option<Self>> {
        let bytes = match fs::read(dir.join(ENTRY_FILE)) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let text = digest_line::check(&bytes).map_err(io::Error::other)?;
        if let Some(newer) = version::newer_format(text) {
            return Err(io::Error::other(newer));
        }
        let mut entry: Self = serde_json::from_slice(text)?;
        dir.clone_into(&mut entry.dir);
        Ok(Some(entry))
    }
}
