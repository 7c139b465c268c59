//! The journal: every decision of a run, in order, on disk before it has any effect.
//!
//! # Guarantees
//! * **One writer per segment.** Each epoch has its own file `journal/<epoch>.log`, created
//!   exclusively. A previous owner that wakes up writes into its own segment, which is never read
//!   beyond the length that its successor recorded.
//! * **Durable before effect.** A batch is one write and one `fdatasync`; effects follow it.
//!   Records made while a batch is in flight form the next one: there is no timer.
//! * **Survives being cut anywhere.** Length and checksum per record; reading stops at the first
//!   record that is not whole. A tail that a dying writer left takes no effect. Damage to durable
//!   bytes is an error that names file and offset: the durable length is in a file beside the
//!   segment, and each batch begins with a record that states that all before it was durable.
//! * **One more place.** With a [`JournalMirror`] a batch is durable when the mirror has it too.
//! * **A compaction is one segment.** With everything that is still needed it replaces all earlier
//!   ones, which are removed when it is durable.
//! * **A failed write ends its segment** at its last durable length; the next one takes over.
//!
//! # Format
//! ```text
//! segment = "rollout-journal 1\n" frame*
//! frame   = length:u32le crc32c:u32le payload      crc over length and payload
//! payload = {"at": <RFC 3339>, "synced": true, "record": {<kind>: …}}     see core::JournalRecord
//! ```
//! A segment of format 2 has `report` or `completed` in place of records that have a short form.
//! `synced` occurs only in the first record of a batch. The first record of a segment names the
//! previous segment, its valid length and its digest. The segments that count are the newest one
//! with a whole first record, and those it goes back to.

mod bit_repair;
mod compaction;
mod damage;
mod durable_length;
mod frame;
mod layout;
mod mirror;
mod prefix;
mod read;
mod rebuild;
mod salvage;
mod segment;
mod segment_index;
mod short_form;
#[cfg(test)]
mod tests;
mod write;

pub use compaction::JournalCompaction;
pub use frame::TooLongRecord;
pub use layout::RunLayout;
pub use mirror::{JournalMirror, MirrorError, SegmentEpochs, SegmentOffset};
pub use prefix::{JournalPrefix, RecordChain};
pub use read::{ReplayExtent, ReplaySummary, replay, sync_segment};
pub use rebuild::SegmentRebuilder;
pub use salvage::{JournalDamage, JournalSalvage};
pub use segment_index::{
    MissingRecords, Reopenings, SegmentExtent, SegmentIndex, next_epoch, segment_epochs,
};
pub(crate) use short_form::JOURNAL_FORMAT;
pub use write::{CommittedBatch, JournalWriter};

use std::path::PathBuf;

use rollout_base::shown_path::shown;

/// Why a journal cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// An input or output error.
    #[error("cannot {action} {}", shown(path))]
    Io {
        /// Attempted action.
        action: &'static str,
        /// Path.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// The file is not a journal, or has a newer format.
    #[error("{} is not a journal segment that this version can read", shown(path))]
    Header {
        /// The file.
        path: PathBuf,
    },
    /// Bytes that were durable are missing or changed.
    #[error(
        "{} is damaged at byte {}",
        shown(path),
        extent(*offset, *durable_bytes, *records_behind)
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Start of the first record that is not whole.
        offset: u64,
        /// Length known to be durable, 0 when none is.
        durable_bytes: u64,
        /// Number of whole records that follow.
        records_behind: u64,
    },
    /// The bytes of a previous segment differ from those that its successor recorded.
    #[error("{} was changed after the run continued in the next segment", shown(path))]
    Changed {
        /// The file.
        path: PathBuf,
    },
    /// Another process has created a later segment.
    #[error("another process has continued the run after {}", shown(path))]
    Superseded {
        /// The segment of this process.
        path: PathBuf,
    },
    /// A segment is missing.
    #[error("{} is missing", shown(path))]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// The copy of the journal in the catalog cannot be written or read.
    #[error("cannot use the journal in the catalog")]
    Mirror(#[from] MirrorError),
    /// A record was not written, and nothing after it.
    #[error(transparent)]
    TooLong(#[from] TooLongRecord),
    /// A whole record that this version cannot parse.
    #[error("{} has a record at byte {offset} that this version cannot read", shown(path))]
    Record {
        /// The file.
        path: PathBuf,
        /// Where it begins.
        offset: u64,
        /// Parse error.
        #[source]
        source: serde_json::Error,
    },
    /// The journal belongs to another run, or its first record is not an opening.
    #[error("{} does not begin with the opening of a session", shown(path))]
    NoOpening {
        /// The file.
        path: PathBuf,
    },
}

/// Place and extent of damage: `4252 of 10926 (6 intact records follow)`.
fn extent(offset: u64, durable_bytes: u64, records_behind: u64) -> String {
    let records = match records_behind {
        0 => "no intact record follows".to_owned(),
        1 => "1 intact record follows".to_owned(),
        count => format!("{count} intact records follow"),
    };
    if durable_bytes > offset {
        format!("{offset} of {durable_bytes} ({records})")
    } else {
        format!("{offset} ({records})")
    }
}

impl JournalError {
    pub(crate) fn io(
        action: &'static str,
        path: &std::path::Path,
    ) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { action, path, source }
    }

    /// Whether a catalog gave no answer, as opposed to a negative one.
    pub(crate) fn is_unanswered(&self) -> bool {
        matches!(self, Self::Mirror(error) if error.is_unanswered())
    }
}
