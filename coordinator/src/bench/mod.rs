//! Benchmarks of the engine itself: trials that do nothing, against a floor measured in the same
//! process with the same sizes. Timings are only ever printed, never asserted.

mod floor;
mod null;
mod usage;

pub mod dispatch;

#[cfg(test)]
pub(crate) use self::{dispatch::plan, null::Null};
