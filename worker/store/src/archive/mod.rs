//! Tar archives: deterministic ones made by Rollout, and hostile ones from environments.
//!
//! * [`pack`]: a directory becomes an archive whose bytes depend only on its content.
//! * [`extract`], [`sanitize`]: archives that an agent may have crafted. Only regular files and
//!   directories are extracted, never outside the directory, never beyond [`ArchiveLimits`]. An
//!   archive that is inconsistent, incomplete or too large is truncated, not refused: everything
//!   before the cut is kept.
//! * [`extract_faithful`]: the same with executable bits and the symbolic links that stay inside.
//! * [`extract_blob`]: the same from a blob store, whose failures are errors.
//! * [`first_file`]: one small file of a hostile archive, in memory; [`stream_first_file`]: one file
//!   in pieces.
//! * [`copy_file`]: the content of one file by its path, in pieces.
//! * [`extract_trusted`]: archives made by Rollout, with symbolic links; anything unexpected is an
//!   error.
//! * [`list`]: the members of an archive.

mod blob;
mod blocking_reader;
mod copy_file;
mod directory_writer;
mod exclude;
mod extract;
mod join;
mod pack;
mod path;
mod pax;
mod read;
mod sanitize;
mod single;
mod write;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rollout_base::shown_path::shown;
use rollout_protocol::digest::Digest;
use rollout_protocol::limits;

pub use self::blob::{ExtractBlobError, extract_blob};
pub use self::blocking_reader::with_reader;
pub use self::copy_file::copy_file;
pub use self::exclude::ExcludePatterns;
pub use self::extract::{extract, extract_faithful, extract_trusted};
pub use self::join::join;
pub use self::pack::{FilterDecision, pack, pack_directory};
pub use self::path::{ArchivePath, InvalidArchivePath, link_stays_inside};
pub use self::read::MemberReader;
pub use self::read::{ArchiveMember, MemberKind, list};
pub use self::sanitize::{
    CapturedFile, RootHandling, SanitizeOptions, SanitizeOutcome, SecretMembers, sanitize,
};
pub use self::single::{FilePieces, first_file, stream_first_file};

pub use self::write::ArchiveWriter;

/// Limits on reading an archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArchiveLimits {
    /// Members of any kind, skipped ones included.
    pub entries: u64,
    /// Content of all members. Extended headers have a separate limit of the same size.
    pub bytes: u64,
}

impl ArchiveLimits {
    /// For the log directory of an environment.
    pub const LOGS: Self = Self { entries: limits::LOGS_ENTRIES, bytes: limits::LOGS_BYTES };
    /// For artifacts of an environment.
    pub const ARTIFACTS: Self =
        Self { entries: limits::ARTIFACTS_ENTRIES, bytes: limits::ARTIFACTS_BYTES };
    /// For a directory whose changes are to be computed.
    pub const WORKSPACE: Self =
        Self { entries: limits::WORKSPACE_ENTRIES, bytes: limits::WORKSPACE_BYTES };
    /// For parts of task directories.
    pub const BUNDLE: Self = Self { entries: limits::BUNDLE_ENTRIES, bytes: limits::BUNDLE_BYTES };
}

/// A finished archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PackedArchive {
    /// Digest of its bytes.
    pub digest: Digest,
    /// Number of its bytes.
    pub size_bytes: u64,
    /// Number of its members.
    pub entries: u64,
}

/// Summary of reading a hostile archive: extracted and skipped members.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ArchiveReport {
    /// Extracted regular files.
    pub files: u64,
    /// Directories named by the archive.
    pub directories: u64,
    /// Bytes of the files.
    pub bytes: u64,
    /// Skipped members.
    pub skipped: SkippedMembers,
    /// Members left out because they hold secrets.
    pub secrets: LeftOutSecrets,
    /// Why the archive was not read to its end.
    pub cut: Option<ArchiveTruncation>,
}

/// Members that were left out because they hold secrets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LeftOutSecrets {
    /// Their number.
    pub members: u64,
    /// The variables of the secrets.
    pub names: BTreeSet<Arc<str>>,
}

impl LeftOutSecrets {
    /// Why an archive is incomplete; `None` if nothing was left out.
    pub fn reason(&self) -> Option<String> {
        let names: Vec<&str> = self.names.iter().map(AsRef::as_ref).collect();
        let (members, names) = (self.members, names.join(", "));
        (members > 0)
            .then(|| format!("{members} entries were left out: they hold the value of {names}"))
    }
}

impl ArchiveReport {
    /// Counts a skipped member that is neither file nor directory.
    fn skip(&mut self, kind: &MemberKind) {
        match kind {
            MemberKind::Symlink(_) | MemberKind::HardLink(_) => self.skipped.links += 1,
            _ => self.skipped.special += 1,
        }
    }
}

/// Skipped members, by reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SkippedMembers {
    /// Symbolic and hard links.
    pub links: u64,
    /// Devices, pipes and other special files.
    pub special: u64,
    /// Names that lead outside, or exceed the limits on length or depth.
    pub names: u64,
    /// Files in place of a directory, or the reverse.
    pub conflicts: u64,
}

impl SkippedMembers {
    /// Their sum.
    pub const fn total(&self) -> u64 {
        self.links + self.special + self.names + self.conflicts
    }
}

/// Why an archive was not read to its end.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ArchiveTruncation {
    /// It has more members than allowed.
    #[error("it has more than {0} entries")]
    Entries(u64),
    /// The next member would exceed the bytes allowed.
    #[error("it has more than {0} bytes")]
    Bytes(u64),
    /// The archive is invalid from some point on.
    #[error("it is not a valid tar archive: {0}")]
    Malformed(&'static str),
    /// The archive ended in the middle.
    #[error("it is incomplete")]
    Incomplete,
    /// The source failed.
    #[error("cannot read it: {0}")]
    Source(String),
}

impl ArchiveTruncation {
    /// Whether the content exceeds a limit. Otherwise it could not be read.
    #[must_use]
    pub const fn is_limit(&self) -> bool {
        matches!(self, Self::Entries(_) | Self::Bytes(_))
    }
}

/// Errors of writing or extracting an archive.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// An input or output error on local disk.
    #[error("cannot {action} {}", shown(path))]
    Io {
        /// The failed action, as an infinitive.
        action: &'static str,
        /// The path it failed on.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// An entry that a trusted archive must not contain.
    #[error("cannot pack {path}: {reason}")]
    NotPackable {
        /// Path below the packed directory.
        path: PathBuf,
        /// The reason.
        reason: &'static str,
    },
    /// A file that changed while it was packed.
    #[error("cannot pack {path}: it changed while it was read")]
    Changed {
        /// Path below the packed directory.
        path: PathBuf,
    },
    /// A directory beyond the limits.
    #[error("cannot pack {}: {cut}", shown(path))]
    TooLarge {
        /// The packed directory.
        path: PathBuf,
        /// The limit.
        cut: ArchiveTruncation,
    },
    /// A trusted archive that is not valid.
    #[error("cannot unpack the archive: {reason}")]
    Invalid {
        /// The problem.
        reason: String,
    },
}

impl ArchiveError {
    /// A failed action, as an infinitive, on a path.
    pub fn io(action: &'static str, path: &Path, source: impl Into<std::io::Error>) -> Self {
        Self::Io { action, path: path.to_owned(), source: source.into() }
    }
}
