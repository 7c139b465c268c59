//! Assembling runs: queue, workers, store, signals and outputs around an engine and its workload.

pub mod embedded;
pub mod host;
pub mod local;
pub mod nats;
pub mod signals;
