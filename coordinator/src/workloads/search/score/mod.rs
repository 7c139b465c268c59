//! How much better one sweep's results are than another's, by a profile that says which columns
//! count how much.
//!
//! A *sweep* is a CSV file with a header and one row per configuration. [`summarize`] reads it once,
//! in bounded memory; [`compare`] makes the score of two summaries. Nothing here depends on the
//! order of columns, on time, or on anything but the two files, the profile and the limit.

mod compare;
mod completeness;
mod summary;
#[cfg(test)]
mod tests;

pub use compare::{ColumnDelta, Grade, Recommendation, SweepComparison, compare};
pub use completeness::{ConfigGaps, SweepCompleteness};
pub use summary::{SweepError, SweepSummary, summarize};
