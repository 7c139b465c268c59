//! Runs on workers of other processes, over NATS.

mod error;
mod job;
mod model_leases;
mod retry;
mod server;
mod sweep;

pub use error::ServerError;
use job::RemoteJob;
pub(super) use model_leases::lease_to_workers;
pub use server::{ConnectedServer, PreparedServer, RemoteOptions};
pub use sweep::{QueueSweep, forget_runs, sweep_old};
