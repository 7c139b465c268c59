//! Changes of a directory of an environment, computed from two archives of it.
//!
//! * [`WorkspaceSnapshot::take`] reads the directory before the agent: an index in memory, and the
//!   text of small files in an anonymous file on this host's disk.
//! * [`WorkspaceSnapshot::finish`] reads it again after the agent, and writes an archive with the
//!   list of changes, a patch of text files, and the added and changed files.
//!
//! Both archives are hostile. Everything beyond the limits is left out, and the list says so. The
//! comparison uses the true contents; everything that is written has its secrets masked.

mod compare;
mod contents;
mod describe;
mod files;
mod index;
mod package;
mod patch;
mod scan;

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use rollout_base::secrets::Redactor;
use rollout_base::shown_path::shown;
use rollout_base::supervise;
use rollout_store::archive::{ArchiveLimits, ExcludePatterns, PackedArchive, with_reader};
use tokio::io::AsyncRead;

use self::compare::compare;
use self::contents::ContentFile;
use self::index::WorkspaceIndex;
use self::package::DiffWriter;
use self::scan::{ScanStage, Scanner};

/// The directory to compare, and the limits.
#[derive(Debug, Clone)]
pub struct WorkspaceOptions {
    /// Absolute path of the directory inside the environment.
    pub directory: String,
    /// Service of the directory; `None` for the agent's environment.
    pub service: Option<String>,
    /// Patterns of entries that are not compared.
    pub exclude: Vec<String>,
    /// Directory of this host for temporary files.
    pub scratch: PathBuf,
    /// Limits of each archive.
    pub limits: ArchiveLimits,
    /// Bytes of earlier text to keep for the patch.
    pub text_bytes: u64,
    /// Masks secrets in everything that is written.
    pub redactor: Redactor,
}

/// Errors of a comparison.
#[derive(Debug, thiserror::Error)]
pub enum WorkspaceDiffError {
    /// It is a file, a link, or something else.
    #[error("it is not a directory")]
    NotDirectory,
    /// Temporary files cannot be written or read.
    #[error("cannot {action} a temporary file in {}", shown(path))]
    Disk {
        /// The failed action, as an infinitive.
        action: &'static str,
        /// Directory of the file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
}

/// A computed diff.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FinishedDiff {
    /// The archive of the artifact.
    pub archive: PackedArchive,
    /// Bytes of changed files in it.
    pub files_bytes: u64,
    /// Why changes may be missing, with secrets masked. Empty if none are.
    pub truncated_because: Vec<String>,
}

/// A directory before the agent.
#[derive(Debug)]
pub struct WorkspaceSnapshot {
    options: WorkspaceOptions,
    index: WorkspaceIndex,
    contents: ContentFile,
}

impl WorkspaceSnapshot {
    /// Reads the directory from an archive of it, or takes note that it does not exist. The archive
    /// has the name of the directory as the first component of all paths.
    ///
    /// # Errors
    /// [`WorkspaceDiffError`]. An archive that is incomplete or too large is none.
    pub async fn take<S>(
        source: Option<S>,
        options: WorkspaceOptions,
    ) -> Result<Self, WorkspaceDiffError>
    where
        S: AsyncRead + Send + Unpin + 'static,
    {
        let scratch = options.scratch.clone();
        let mut contents = supervise::blocking(move || ContentFile::create(&scratch)).await?;
        let mut index = WorkspaceIndex::default();
        if let Some(source) = source {
            let scanned = options.clone();
            (index, contents) = with_reader(source, move |reader| {
                let exclude = ExcludePatterns::new(scanned.exclude.iter().map(String::as_str));
                let stage = ScanStage::Before { text_bytes: scanned.text_bytes };
                let scanner = Scanner::new(stage, &mut contents, &exclude, &scanned.redactor);
                scanner.scan(reader, scanned.limits).map(|index| (index, contents))
            })
            .await?;
        }
        Ok(Self { options, index, contents })
    }

    /// Bytes of text that it keeps.
    pub fn text_bytes(&self) -> u64 {
        self.contents.length()
    }

    /// Reads the directory again and writes the artifact to `to`, which must not exist, with at
    /// most `files_bytes` of changed files.
    ///
    /// # Errors
    /// [`WorkspaceDiffError`], for the whole artifact.
    pub async fn finish<S>(
        self,
        source: Option<S>,
        to: &Path,
        files_bytes: u64,
    ) -> Result<FinishedDiff, WorkspaceDiffError>
    where
        S: AsyncRead + Send + Unpin + 'static,
    {
        let Self { options, index: before, mut contents } = self;
        let to = to.to_owned();
        let Some(source) = source else {
            return supervise::blocking(move || {
                write(&options, &before, &WorkspaceIndex::default(), &contents, files_bytes, &to)
            })
            .await;
        };
        let (options, before, after, contents) = with_reader(source, move |reader| {
            let exclude = ExcludePatterns::new(options.exclude.iter().map(String::as_str));
            let stage = ScanStage::After { before: &before, files_bytes };
            let scanner = Scanner::new(stage, &mut contents, &exclude, &options.redactor);
            let after = scanner.scan(reader, options.limits);
            after.map(|after| (options, before, after, contents))
        })
        .await?;
        supervise::blocking(move || write(&options, &before, &after, &contents, files_bytes, &to))
            .await
    }
}

fn write(
    options: &WorkspaceOptions,
    before: &WorkspaceIndex,
    after: &WorkspaceIndex,
    contents: &ContentFile,
    files_bytes: u64,
    to: &Path,
) -> Result<FinishedDiff, WorkspaceDiffError> {
    let (mut changes, counts) = compare(before, after);
    let mut truncated_because = Vec::new();
    for (index, stage) in [(before, "before the agent"), (after, "after the agent")] {
        let reasons = index.incomplete_reasons();
        truncated_because
            .extend(reasons.map(|why| options.redactor.text(&format!("{stage}: {why}"))));
    }
    let writer = DiffWriter { options, contents, files_bytes };
    let disk = |source| WorkspaceDiffError::Disk {
        action: "write or read",
        path: options.scratch.clone(),
        source,
    };
    let written = writer.write(&mut changes, counts, &truncated_because, to);
    let (archive, files_bytes) = written.map_err(disk)?;
    Ok(FinishedDiff { archive, files_bytes, truncated_because })
}
