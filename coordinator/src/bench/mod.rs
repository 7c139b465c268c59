//! Benchmarks of the engine: trials that do nothing, compared with a floor measured in the same run
//! with the same sizes. Timings are printed, never asserted.

mod floor;
mod usage;

pub mod dispatch;
pub mod noop;

use rollout_store::StoreError;

use crate::events::ReportError;
use crate::plan::JobPlanError;
use rollout_engine::RunError;

/// Error of a measurement.
#[derive(Debug, thiserror::Error)]
pub enum DispatchBenchError {
    /// The run failed.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The report failed.
    #[error(transparent)]
    Report(#[from] ReportError),
    /// The plan cannot be built.
    #[error(transparent)]
    Plan(#[from] JobPlanError),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The disk failed.
    #[error("the disk failed while it was measured")]
    Io(#[from] std::io::Error),
    /// Not every trial was settled.
    #[error("{owed} trials were not settled")]
    Owed {
        /// How many.
        owed: u64,
    },
}
