//! What stands in the lock of a run.

use rollout_protocol::wire::position::ReportPosition;

/// The value of the key.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct LockValue {
    /// The process that owns the run.
    pub(crate) owner: u32,
    /// Where that process is, or was.
    pub(crate) host: usize,
    pub(crate) epoch: u32,
    /// How much of the journal its successor must have: a segment and its records.
    pub(crate) head: Option<JournalHead>,
}

/// A place in a journal.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct JournalHead {
    pub(crate) epoch: u32,
    pub(crate) records: usize,
    /// The last report that the journal holds up to there.
    pub(crate) position: Option<ReportPosition>,
}
