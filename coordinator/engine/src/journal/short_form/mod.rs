//! Short form of the records that a farm has most of: reports of its executions, and completions. It has
//! each fact once, times as distances from the first one, and no names of lists with a fixed order.

mod blob;
mod completions;
mod report;

pub(super) use completions::ShortCompletions;
pub(super) use report::ShortReport;

use crate::core::SessionStart;

/// Newest format of a segment that this version reads: it has records in the short form. Earlier
/// versions refuse it by its first record. Segments of runs that they can continue have `RUN_FORMAT`.
pub(crate) const JOURNAL_FORMAT: u32 = 2;

/// Form of the records in a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RecordForm {
    /// Every version reads it.
    Full,
    /// Short where there is a short form.
    Short,
}

impl RecordForm {
    /// The form in the segment with this opening.
    pub(super) fn of(opened: &SessionStart) -> Self {
        if opened.format < JOURNAL_FORMAT { Self::Full } else { Self::Short }
    }
}

/// Why a record in the short form cannot be read.
type Unreadable = &'static str;
