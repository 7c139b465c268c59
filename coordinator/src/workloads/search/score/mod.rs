//! Scores of sweeps: how much better one sweep's results are than another's, by the weights of a
//! profile.
//!
//! A *sweep* is a CSV file with a header and one row per configuration. [`summarize`] reads it
//! once, in bounded memory; [`compare`] scores two summaries. The result depends only on the two
//! files, the profile and the limit, not on the order of columns or on time.

mod compare;
mod completeness;
mod summary;
#[cfg(test)]
mod tests;

pub use compare::{ColumnDelta, Grade, Recommendation, SweepComparison, compare};
pub use completeness::{ConfigGaps, SweepCompleteness};
pub use summary::{NumberlessRows, SweepError, SweepSummary, summarize};
