//! The journal: everything a run decided, in order, on disk before it has any effect.
//!
//! # Guarantees
//! * **One writer per segment.** Each epoch has its own file `journal/<epoch>.log`, created
//!   exclusively. A former owner that wakes up writes into its own segment, which nobody reads any
//!   more beyond the length that its successor wrote down.
//! * **Durable before effect.** A batch is one write and one `fdatasync`; effects follow it. What
//!   gathers while a batch is on its way is the next one: there is no timer.
//! * **Survives being cut anywhere.** Length and checksum per record; reading stops at the first
//!   record that is not whole. A tail that a dying writer left takes no effect. Damage to what was
//!   durable is an error that names file and offset: the durable length is in a file beside the
//!   segment, and each batch begins with a record that says that all before it was durable.
//! * **A failed write ends its segment** at its last durable length; the next one takes over.
//!
//! # Format
//! ```text
//! segment = "rollout-journal 1\n" frame*
//! frame   = length:u32le crc32c:u32le payload      crc over length and payload
//! payload = {"at": <RFC 3339>, "synced": true, "record": {<kind>: …}}     see core::Record
//! ```
//! `synced` stands in the first record of a batch only.
//! The first record of a segment names the former segment, its valid length and its digest. The
//! segments that count are the newest one with a whole first record and those it goes back to.

mod bit_repair;
mod damage;
mod durable_length;
mod frame;
mod layout;
mod prefix;
mod read;
mod rebuild;
mod salvage;
mod segment;
mod segment_index;
#[cfg(test)]
mod tests;
mod write;

pub use layout::RunLayout;
pub use prefix::{JournalPrefix, RecordChain};
pub use read::{ReplaySummary, replay, sync_segment};
pub use rebuild::SegmentRebuilder;
pub use salvage::{JournalDamage, JournalSalvage};
pub use segment_index::{MissingRecords, SegmentIndex, next_epoch};
pub use write::{CommittedBatch, JournalWriter};

use std::path::PathBuf;

/// What is wrong with a journal, or why it cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// An input or output error.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// The file is not a journal, or one of a newer format.
    #[error("{} is not a journal segment that this version can read", path.display())]
    Header {
        /// The file.
        path: PathBuf,
    },
    /// Bytes that were durable are missing or changed.
    #[error(
        "{} is damaged at byte {offset}: {}",
        path.display(),
        extent(*records_behind, *durable_bytes)
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where the first record that is not whole begins.
        offset: u64,
        /// Length known to be durable, 0 when none is.
        durable_bytes: u64,
        /// Whole records that follow.
        records_behind: u64,
    },
    /// The bytes of a former segment are not those that its successor saw.
    #[error("{} was changed after the run had gone on in the next segment", path.display())]
    Changed {
        /// The file.
        path: PathBuf,
    },
    /// A segment is missing.
    #[error("{} is missing", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// A record that is whole but not understood.
    #[error("{} has a record at byte {offset} that this version cannot read", path.display())]
    Record {
        /// The file.
        path: PathBuf,
        /// Where it begins.
        offset: u64,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
    /// The journal belongs to another run, or its first record is not an opening.
    #[error("{} does not begin with the opening of a sitting", path.display())]
    NoOpening {
        /// The file.
        path: PathBuf,
    },
}

/// How much is affected by damage.
fn extent(records_behind: u64, durable_bytes: u64) -> String {
    let records = match records_behind {
        0 => "no whole record follows".to_owned(),
        1 => "1 whole record follows".to_owned(),
        count => format!("{count} whole records follow"),
    };
    match durable_bytes {
        0 => records,
        bytes => format!("{records}, and {bytes} bytes were known to be durable"),
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
}
