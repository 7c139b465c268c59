//! The value of the run lock.

use rollout_protocol::wire::position::ReportPosition;

/// The value of the key.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct LockValue {
    /// The process that owns the run.
    pub(crate) owner: u32,
    /// The host of that process.
    pub(crate) host: usize,
    pub(crate) epoch: u32,
    /// The part of the journal its successor must have: a segment and its records.
    pub(crate) head: Option<JournalHead>,
}

/// A position in a journal.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct JournalHead {
    pub(crate) epoch: u32,
    pub(crate) records: usize,
    /// The last report in the journal up to this position.
    pub(crate) position: Option<ReportPosition>,
}
