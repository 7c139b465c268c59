//! Assembly of runs: queue, workers, store, signals and outputs around an engine and its workload.
//! A caller passes a typed request, such as [`run::RunRequest`], and gets a typed outcome.

pub mod control_socket;
pub mod embedded;
mod error;
pub mod exit;
pub mod export;
pub mod facts;
pub mod farm;
mod hints;
pub mod host;
pub mod live_output;
pub mod local;
pub mod masked;
#[cfg(feature = "nats")]
pub mod nats;
pub mod on_demand;
pub mod parameters;
pub mod planning;
#[cfg(feature = "nats")]
pub mod resume;
pub mod run;
pub mod search;
mod session;
mod session_catalog;
pub mod signals;
pub mod slot_pool;
pub mod store;

pub use error::LaunchError;
