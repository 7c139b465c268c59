//! Results of runs: metrics, reports, result files of a run directory, exports, analysis tables, and
//! views of runs for commands that only read. Everything here is derived from records and events.

pub mod escape;
pub mod export;
pub mod files;
pub(crate) mod known_cost;
pub mod metrics;
pub mod report;
mod rows;
mod settlements;
pub mod tables;
#[cfg(test)]
pub(crate) mod testing;
pub mod view;

pub use rows::RowsError;
pub use settlements::{SettledTrials, SettlementsError};
