//! Results of runs: metrics, reports, result files of a run directory, and exports. Everything here
//! is derived from records and events.

pub mod escape;
pub mod export;
pub mod files;
pub mod metrics;
pub mod report;
#[cfg(test)]
pub(crate) mod testing;
