//! The model gateway: real agents in sandboxes and containers, a model server that keeps its own log, and the
//! program that is killed while replies come.

mod alone;
mod docker;
mod fixture;
mod fleet;
mod isolation;
mod kills;
mod limits;
mod pods;
mod records;
mod selection;
mod unknowns;

use std::time::Duration;

/// Longest duration of a run on a busy machine with two processors.
const DEADLINE: Duration = Duration::from_secs(240);
