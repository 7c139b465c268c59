//! Tar archives: deterministic ones of ours, and hostile ones from environments.
//!
//! * [`pack`]: a directory becomes an archive whose bytes depend on nothing but its content.
//! * [`extract`], [`sanitize`]: archives that an agent may have shaped. Only regular files and
//!   directories come out, never outside the directory, never more than [`ArchiveLimits`] say. An archive
//!   that lies, ends early or is too large is cut, not refused: what came before the cut stays.
//! * [`extract_faithful`]: the same with executable bits, and with the symbolic links that stay inside.
//! * [`first_file`]: one small file of a hostile archive, in memory.
//! * [`extract_trusted`]: our own archives, with symbolic links; anything unexpected is an error.
//! * [`list`]: what an archive holds.

mod blocking_reader;
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

use std::path::{Path, PathBuf};

use rollout_protocol::digest::Digest;
use rollout_protocol::limits;

pub use self::exclude::ExcludePatterns;
pub use self::extract::{extract, extract_faithful, extract_trusted};
pub use self::join::join;
pub use self::pack::{FilterDecision, pack};
pub use self::path::{ArchivePath, InvalidArchivePath, link_stays_inside};
pub use self::read::{ArchiveMember, MemberKind, list};
pub use self::sanitize::{CapturedFile, RootHandling, SanitizeOptions, SanitizeOutcome, sanitize};
pub use self::single::first_file;

/// How much of an archive is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArchiveLimits {
    /// Members of every kind, skipped ones included.
    pub entries: u64,
    /// Content of all members. What describes them beyond their headers is bounded alike.
    pub bytes: u64,
}

impl ArchiveLimits {
    /// For what an environment left in its log directory.
    pub const LOGS: Self = Self { entries: limits::LOGS_ENTRIES, bytes: limits::LOGS_BYTES };
    /// For what is kept of an environment beside its logs.
    pub const ARTIFACTS: Self =
        Self { entries: limits::ARTIFACTS_ENTRIES, bytes: limits::ARTIFACTS_BYTES };
    /// For parts of task directories.
    pub const BUNDLE: Self = Self { entries: limits::BUNDLE_ENTRIES, bytes: limits::BUNDLE_BYTES };
}

/// An archive that was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PackedArchive {
    /// Digest of its bytes.
    pub digest: Digest,
    /// Number of its bytes.
    pub size_bytes: u64,
    /// Members it holds.
    pub entries: u64,
}

/// What was taken from a hostile archive, and what was not.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ArchiveReport {
    /// Regular files taken.
    pub files: u64,
    /// Directories named by the archive.
    pub directories: u64,
    /// Bytes of the files.
    pub bytes: u64,
    /// Members left out.
    pub skipped: SkippedMembers,
    /// Why reading ended before the archive did.
    pub cut: Option<ArchiveTruncation>,
}

impl ArchiveReport {
    /// Counts a member that is neither file nor directory.
    fn skip(&mut self, kind: &MemberKind) {
        match kind {
            MemberKind::Symlink(_) | MemberKind::HardLink => self.skipped.links += 1,
            _ => self.skipped.special += 1,
        }
    }
}

/// Members left out, by reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SkippedMembers {
    /// Symbolic and hard links.
    pub links: u64,
    /// Devices, pipes and other special files.
    pub special: u64,
    /// Names that lead outside, or are longer or deeper than allowed.
    pub names: u64,
    /// Files where a directory is, or the reverse.
    pub conflicts: u64,
}

impl SkippedMembers {
    /// All of them.
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
    /// It is not a valid archive from some point on.
    #[error("it is not a valid tar archive: {0}")]
    Malformed(&'static str),
    /// It ended in the middle.
    #[error("it ended early")]
    Ended,
    /// Its source failed.
    #[error("reading it failed: {0}")]
    Source(String),
}

/// Why an archive could not be written or unpacked.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// An input or output error on local disk.
    #[error("{action} {path}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// Something that no archive of ours may hold.
    #[error("{path} cannot be packed: {reason}")]
    NotPackable {
        /// Path below the packed directory.
        path: PathBuf,
        /// Why not.
        reason: &'static str,
    },
    /// A file that changed while it was packed.
    #[error("{path} changed while it was packed")]
    Changed {
        /// Path below the packed directory.
        path: PathBuf,
    },
    /// A directory beyond the limits.
    #[error("{path} is too large to be packed: {cut}")]
    TooLarge {
        /// The packed directory.
        path: PathBuf,
        /// The limit.
        cut: ArchiveTruncation,
    },
    /// An archive that should be one of ours and is not.
    #[error("the archive cannot be unpacked: {reason}")]
    Untrusted {
        /// What was found.
        reason: String,
    },
}

impl ArchiveError {
    pub(crate) fn io(action: &'static str, path: &Path, source: impl Into<std::io::Error>) -> Self {
        Self::Io { action, path: path.to_owned(), source: source.into() }
    }
}
