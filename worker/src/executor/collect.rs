//! Directories of an environment as clean archives on this host's disk.

use std::path::PathBuf;

use rollout_base::fs_make::make_scratch_directory;
use rollout_base::secrets::Redactor;
use rollout_base::shortage::Shortage;
use rollout_base::shown_path::shown;
use rollout_environment::{ByteStream, Environment, Failure, FailureKind};
use rollout_protocol::digest::Digest;
use rollout_store::archive::{
    self, ArchiveLimits, ArchivePath, CapturedFile, ExcludePatterns, RootHandling, SanitizeOptions,
    SecretMembers,
};

use super::context::{COPY_LIMIT, with_timeout};

/// A clean archive of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CleanArchive {
    /// Its path.
    pub file: PathBuf,
    /// Regular files and directories in it.
    pub entries: u64,
    /// Entries that were left out.
    pub skipped: u64,
    /// Whether a limit or an error ended the reading early.
    pub truncated: bool,
    /// Digest of its bytes, computed while they were written.
    pub digest: Digest,
}

/// Why output is missing, and the resource of this host that ran out, if one did.
pub(crate) type CollectionFailure = (String, Option<Shortage>);

/// The result of reading a directory of an environment.
#[derive(Debug)]
pub struct DirectoryReading {
    /// Its archive; `None` when the directory is missing or could not be read.
    pub archive: Option<CleanArchive>,
    /// The requested files, in order.
    pub captured: Vec<CapturedFile>,
    /// Why it could not be read completely.
    pub failure: Option<String>,
    /// Whether the failure is that its content exceeds a limit.
    pub exceeds_limit: bool,
    /// The resource of this host that ran out, if one did.
    pub shortage: Option<Shortage>,
}

impl DirectoryReading {
    fn set_failure(&mut self, (why, shortage): CollectionFailure) {
        (self.failure, self.shortage) = (Some(why), shortage);
    }
}

impl CleanArchive {
    /// Joins both archives; returns the first alone when that fails.
    pub(crate) async fn join(self, other: Self, path: &str) -> (Self, Option<CollectionFailure>) {
        let file = self.file.with_extension("joined.tar");
        match archive::join(vec![self.file.clone(), other.file], &file).await {
            Ok(digest) => {
                let joined = Self {
                    file,
                    digest,
                    entries: self.entries + other.entries,
                    skipped: self.skipped + other.skipped,
                    truncated: self.truncated || other.truncated,
                };
                (joined, None)
            }
            Err(error) => (self, Some(collection_failure(path, &error))),
        }
    }
}

/// Reads a directory of an environment into a clean archive at `to`, which must not exist, without
/// the directory's own name. `capture` also reads one of its files into memory.
pub async fn read_directory(
    environment: &dyn Environment,
    path: &str,
    to: PathBuf,
    limits: ArchiveLimits,
    capture: Option<(ArchivePath, u64)>,
    redactor: &Redactor,
) -> DirectoryReading {
    let options = SanitizeOptions {
        limits,
        root: RootHandling::Drop,
        exclude: ExcludePatterns::default(),
        faithful: false,
        captures: capture.into_iter().collect(),
        redactor: redactor.clone(),
        secrets: SecretMembers::Mask,
    };
    read_sanitized(environment, path, to, options).await
}

/// Opens a file or directory of an environment for reading; `None` when it does not exist.
pub(crate) async fn open_stream(
    environment: &dyn Environment,
    path: &str,
) -> Result<Option<ByteStream>, Failure> {
    with_timeout(COPY_LIMIT, "opening it", environment.copy_from(path)).await
}

/// Reads a directory of an environment into a clean archive at `to`.
pub(crate) async fn read_sanitized(
    environment: &dyn Environment,
    path: &str,
    to: PathBuf,
    options: SanitizeOptions,
) -> DirectoryReading {
    let captured = vec![CapturedFile::NotReached; options.captures.len()];
    let mut reading = DirectoryReading {
        archive: None,
        captured,
        failure: None,
        exceeds_limit: false,
        shortage: None,
    };
    match open_stream(environment, path).await {
        Ok(None) => reading.captured.fill(CapturedFile::Missing),
        Ok(Some(stream)) => sanitize_into(stream, path, to, options, &mut reading).await,
        Err(failure) => {
            let full = (failure.kind == FailureKind::DiskFull).then_some(Shortage::Disk);
            reading.set_failure((format!("{path}: {}", failure.chain()), full));
        }
    }
    reading
}

async fn sanitize_into(
    stream: ByteStream,
    path: &str,
    file: PathBuf,
    options: SanitizeOptions,
    reading: &mut DirectoryReading,
) {
    if let Some(directory) = file.parent()
        && let Err(error) = make_scratch_directory(directory).await
    {
        let why = format!("{path}: {}: {error}", shown(directory));
        return reading.set_failure((why, Shortage::from_io_error(&error)));
    }
    let sanitizing = archive::sanitize(stream, &file, options);
    let Ok(clean) = tokio::time::timeout(COPY_LIMIT, sanitizing).await else {
        let why = format!("{path}: reading it took longer than {COPY_LIMIT:?}");
        return reading.set_failure((why, None));
    };
    reading.captured = clean.captured;
    let report = clean.report;
    match clean.archive {
        Ok(packed) => {
            let (skipped, truncated) = (report.skipped.total(), report.cut.is_some());
            let (entries, digest) = (packed.entries, packed.digest);
            reading.exceeds_limit =
                report.cut.as_ref().is_some_and(archive::ArchiveTruncation::is_limit);
            reading.failure = report.cut.map(|cut| format!("{path} is incomplete: {cut}"));
            reading.archive = Some(CleanArchive { file, entries, skipped, truncated, digest });
        }
        Err(error) => reading.set_failure(collection_failure(path, &error)),
    }
}

fn collection_failure(path: &str, error: &(dyn std::error::Error + 'static)) -> CollectionFailure {
    (format!("{path}: {}", rollout_base::backoff::error_chain(error)), Shortage::from_error(error))
}
