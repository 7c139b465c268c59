//! Captured outputs and logs of an execution, read from the blob store.
//!
//! Names and contents are text of agents: paths are checked, and nothing is written to a disk.

use bytes::Bytes;
use rollout_protocol::blob::BlobRef;
use rollout_protocol::digest::Digest;
use rollout_protocol::id::ItemId;
use rollout_protocol::record::{Execution, OutputFile, TrialRecord};
use rollout_protocol::reference::LOGS_DIR;
use rollout_store::archive::{self, ArchiveLimits, ArchivePath, ArchiveTruncation, MemberKind};
use rollout_store::{BlobStore, StoreError};
use serde::Serialize;
use tokio::io::AsyncReadExt as _;
use tokio::sync::mpsc;

use crate::results::files::{TrialFilesError, content};

/// Bytes of a piece of a blob.
const PIECE_BYTES: usize = 64 * 1024;

/// A captured file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CapturedFile {
    /// Its path below the trial's directory.
    pub path: String,
    /// Where its content is.
    pub source: CapturedSource,
}

impl CapturedFile {
    /// Whether it is text for people: the output of a script or of an image build. Records of model
    /// calls and documents of a harness are not.
    pub fn is_script_output(&self) -> bool {
        ["/stdout.txt", "/stderr.txt", "/build.log"].iter().any(|name| self.path.ends_with(name))
    }

    /// Whether it is known to have no content: it is printed without a header.
    pub fn is_empty(&self) -> bool {
        matches!(&self.source, CapturedSource::Blob(output) if output.blob.size_bytes == 0)
    }
}

/// Where the content of a captured file is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CapturedSource {
    /// A blob.
    Blob(OutputFile),
    /// A member of an archive.
    Member {
        /// The archive.
        archive: BlobRef,
        /// Its path in the archive.
        path: ArchivePath,
    },
}

/// A file or directory in the logs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LogFile {
    /// Its path below the trial's directory.
    pub path: String,
    /// `file` or `directory`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// Its size, bytes.
    pub size_bytes: u64,
    /// The archive that contains it.
    pub archive: Digest,
}

/// Why captured files cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum CapturedError {
    /// The record of the execution cannot be read.
    #[error(transparent)]
    Record(#[from] TrialFilesError),
    /// A blob cannot be read.
    #[error("cannot read {path}")]
    Store {
        /// Path of the captured file, or of the logs.
        path: String,
        /// The store's error.
        #[source]
        source: StoreError,
    },
    /// The content of a blob cannot be read to its end.
    #[error("cannot read {path}")]
    Read {
        /// Path of the captured file.
        path: String,
        /// The error.
        #[source]
        source: std::io::Error,
    },
    /// An archive cannot be read to its end.
    #[error("cannot read the archive of {path}: {cut}")]
    Archive {
        /// Path of the captured file, or of the logs.
        path: String,
        /// Reason.
        cut: ArchiveTruncation,
    },
    /// No captured file has this name.
    #[error("the execution left no file `{0}`")]
    NoFile(String),
}

/// The record of an execution; `None` if it left none.
///
/// # Errors
/// [`CapturedError`] when the store fails, or the record is of a newer format.
pub async fn record_of(
    store: &dyn BlobStore,
    item: ItemId,
    execution: &Execution,
) -> Result<Option<TrialRecord>, CapturedError> {
    let Some(blob) = &execution.record else { return Ok(None) };
    Ok(Some(content::read_record_of(store, blob, item, Some(execution.exec)).await?))
}

/// The captured files that a name means: all outputs without one, else an output, the outputs in a
/// directory, or a file in the logs. Whether a file in the logs exists is found when it is read.
///
/// # Errors
/// [`CapturedError::NoFile`] for a name that is neither, when there are no logs.
pub fn captured_files(
    record: &TrialRecord,
    name: Option<&str>,
) -> Result<Vec<CapturedFile>, CapturedError> {
    let outputs = record.outputs.iter().map(|output| CapturedFile {
        path: output.path.clone(),
        source: CapturedSource::Blob(output.clone()),
    });
    let Some(name) = name else { return Ok(outputs.collect()) };
    let name = name.trim_end_matches('/');
    let outputs: Vec<CapturedFile> = outputs.collect();
    for wanted in [name.to_owned(), format!("{LOGS_DIR}/{name}")] {
        let below = format!("{wanted}/");
        let is_wanted = |file: &&CapturedFile| file.path == wanted || file.path.starts_with(&below);
        let found: Vec<_> = outputs.iter().filter(is_wanted).cloned().collect();
        if !found.is_empty() {
            return Ok(found);
        }
    }
    let missing = || CapturedError::NoFile(name.to_owned());
    let (base, logs, path) = record
        .all_logs()
        .find_map(|(base, logs)| {
            let path = name.strip_prefix(&base)?.strip_prefix('/')?;
            Some((base, logs, path))
        })
        .or_else(|| Some((LOGS_DIR.to_owned(), record.logs.as_ref()?, name)))
        .ok_or_else(missing)?;
    let member = ArchivePath::clean(path.as_bytes()).ok().flatten().ok_or_else(missing)?;
    let source = CapturedSource::Member { archive: logs.archive.clone(), path: member };
    Ok(vec![CapturedFile { path: format!("{base}/{path}"), source }])
}

/// The files and directories in the logs of a trial and of its steps.
///
/// # Errors
/// [`CapturedError`] when the store fails or an archive is damaged.
pub async fn list_logs(
    store: &dyn BlobStore,
    record: &TrialRecord,
) -> Result<Vec<LogFile>, CapturedError> {
    let mut found = Vec::new();
    for (base, logs) in record.all_logs() {
        let archive = logs.archive.digest;
        let source = store.get(&archive).await;
        let source =
            source.map_err(|source| CapturedError::Store { path: base.clone(), source })?;
        let members = archive::list(source, ArchiveLimits::LOGS).await;
        let members = members.map_err(|cut| CapturedError::Archive { path: base.clone(), cut })?;
        for member in members {
            let kind = match member.kind {
                MemberKind::File => "file",
                MemberKind::Directory => "directory",
                // An archive of Rollout has no others.
                MemberKind::Symlink(_) | MemberKind::HardLink(_) | MemberKind::Special => continue,
            };
            let Ok(Some(path)) = member.path else { continue };
            let path = format!("{base}/{}", String::from_utf8_lossy(path.as_bytes()));
            found.push(LogFile { path, kind, size_bytes: member.size_bytes, archive });
        }
    }
    Ok(found)
}

/// Sends the content of a captured file to `pieces`. Ends early, without an error, when the
/// receiver is closed.
///
/// # Errors
/// [`CapturedError`]; a part of the content may have been sent.
pub async fn read_captured(
    store: &dyn BlobStore,
    file: &CapturedFile,
    pieces: mpsc::Sender<Bytes>,
) -> Result<(), CapturedError> {
    let path = || file.path.clone();
    let digest = match &file.source {
        CapturedSource::Blob(output) => &output.blob.digest,
        CapturedSource::Member { archive, .. } => &archive.digest,
    };
    let source = store.get(digest).await;
    let mut source = source.map_err(|source| CapturedError::Store { path: path(), source })?;
    if let CapturedSource::Member { path: member, .. } = &file.source {
        let copied = archive::copy_file(source, member.clone(), ArchiveLimits::LOGS, pieces).await;
        let found = copied.map_err(|cut| CapturedError::Archive { path: path(), cut })?;
        return if found { Ok(()) } else { Err(CapturedError::NoFile(path())) };
    }
    let mut buffer = vec![0; PIECE_BYTES];
    loop {
        let read = source.read(&mut buffer).await;
        let read = read.map_err(|source| CapturedError::Read { path: path(), source })?;
        if read == 0 || pieces.send(Bytes::copy_from_slice(&buffer[..read])).await.is_err() {
            return Ok(());
        }
    }
}
