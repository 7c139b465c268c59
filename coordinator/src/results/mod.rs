//! Results of runs: metrics, reports, the files of a run directory for people, and records in other
//! formats. Everything here is made of records and events.

pub mod escape;
pub mod export;
pub mod files;
pub mod metrics;
pub mod report;
#[cfg(test)]
pub(crate) mod testing;
