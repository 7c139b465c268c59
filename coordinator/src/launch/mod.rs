//! Assembling runs: queue, workers, store, signals and outputs around an engine and its workload.

pub mod embedded;
pub mod export;
pub mod facts;
pub mod host;
pub mod local;
pub mod nats;
pub mod signals;
