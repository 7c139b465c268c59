//! Results of runs: metrics, and records in other formats.

pub mod export;
pub mod metrics;
